"""What a cluster that has ended must not leave: processes, sockets, shared memory, files in the making."""
import os
import pathlib

SHARED_MEMORY = pathlib.Path("/dev/shm")


def listing(folder):
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def open_sockets():
    """Paths and abstract names of Headrace's Unix sockets on this machine."""
    lines = pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]
    names = (line.split(maxsplit=7)[7] for line in lines if len(line.split(maxsplit=7)) == 8)
    return {name for name in names if "headrace" in name}


class Before:
    """How it was; `after` says what is new. Not what others on this machine may have started meanwhile: names are told."""

    def __init__(self):
        self.shared, self.sockets = listing(SHARED_MEMORY), open_sockets()

    def after(self, cluster):
        """In words, one each; empty: nothing is left."""
        found = [f"process {process.pid} ({name}) still runs"
                 for name, process in [*cluster.processes.items(), *cluster.ended] if process.poll() is None]
        found += [f"/dev/shm/{name}" for name in sorted(listing(SHARED_MEMORY) - self.shared) if "headrace" in name]
        found += [f"socket {name}" for name in sorted(open_sockets() - self.sockets) if str(cluster.folder) in name]
        found += [f"socket {path}" for path in cluster.folder.glob("**/*.sock")]
        found += [f"file in the making: {path}" for path in cluster.folder.glob("**/*.tmp") if path.is_file()]
        return found
