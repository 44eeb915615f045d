"""What is done to a cluster, drawn from a seed alone: the same seed gives the same faults at the same moments.

    for fault in draw_faults(random.Random(seed), workers=4):
        time.sleep(fault.after)
        apply(fault, cluster, …)
"""
import dataclasses
import os
import pathlib
import signal

# Kind of fault → how often, of all.
WEIGHTS = {
    "kill": 30,              # SIGKILL, and started again after a while
    "terminate": 8,          # SIGTERM: it may hand over what it has
    "stop": 12,              # SIGSTOP, and waked
    "cut": 10,               # nothing gets through to it or from it, and nobody is told
    "reset": 8,              # its connections end
    "slow": 6,               # its link takes longer
    "kill_coordinator": 14,
    "stop_coordinator": 3,
    "damage_checkpoint": 8,  # a bit of a stored slice flips, or its end is gone
    "damage_snapshot": 4,    # the same of a slice on a worker's disk
    "full_disk": 5,          # of the worker, or the coordinator, that has a small one
    "checkpoint": 6,         # a person asks for one,
    "pause": 4,              # … pauses the job and resumes it,
    "drain": 4,              # … drains a worker and lets it serve again
}


@dataclasses.dataclass
class Fault:
    number: int
    after: float  # seconds since the one before
    kind: str
    worker: int   # where it is one's
    hold: float   # seconds until it is undone
    draw: float   # in [0, 1), for what else is to be chosen

    def __str__(self):
        return f"#{self.number} {self.kind} w{self.worker} for {self.hold:.2f} s"


def draw_faults(draw, workers, gap):
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    number = 0
    while True:
        number += 1
        yield Fault(number, draw.uniform(0.2, 2 * gap), draw.choices(kinds, weights)[0], draw.randrange(workers),
                    draw.choice([0.05, 0.5, 1.5, 3.0]) * draw.uniform(0.5, 1.5), draw.random())


class Faults:
    """Does them, and undoes them. `later(seconds, call)` calls when the time has come."""

    def __init__(self, cluster, jobs, later, log):
        self.cluster, self.jobs, self.later, self.log = cluster, jobs, later, log
        self.busy = set()  # what is disturbed now: one thing at a time each

    def apply(self, fault):
        """False: there was nothing to do it to."""
        target = "coordinator" if fault.kind.endswith("_coordinator") else f"w{fault.worker}"
        if target in self.busy:
            return False
        undo = getattr(self, "_" + fault.kind)(target, fault)
        if undo is None:
            return False
        self.log(str(fault))
        if callable(undo):
            self.busy.add(target)

            def done():
                undo()
                self.busy.discard(target)
            self.later(fault.hold, done)
        return True

    # ---- Each returns how it is undone; True: it is over; None: not now.

    def _kill(self, name, fault):
        self.cluster.signal(name, signal.SIGKILL)
        self.cluster.processes[name].wait()
        return lambda: self.cluster.start(name)

    _kill_coordinator = _kill

    def _terminate(self, name, fault):
        self.cluster.signal(name, signal.SIGTERM)

        def again():
            try:
                self.cluster.processes[name].wait(40)
            except Exception:
                self.log(f"{name} does not end within 40 s of SIGTERM")
                raise
            self.cluster.start(name)
        return again

    def _stop(self, name, fault):
        self.cluster.signal(name, signal.SIGSTOP)
        return lambda: self.cluster.signal(name, signal.SIGCONT)

    _stop_coordinator = _stop

    def _cut(self, name, fault, mode="drop", delay=0.0):
        if name not in self.cluster.proxies:
            return None
        self.cluster.cut(name, mode, delay)
        return lambda: self.cluster.cut(name, "pass")

    def _reset(self, name, fault):
        return self._cut(name, fault, "reset")

    def _slow(self, name, fault):
        return self._cut(name, fault, "delay", 0.02 + 0.2 * fault.draw)

    def _damage_checkpoint(self, name, fault):
        slices = [piece["sha256"] for job in self.jobs() for checkpoint in job.get("checkpoints", [])
                  for piece in checkpoint.get("slices", []) if piece.get("sha256")]
        paths = [path for sha in slices for path in self._files_of(sha)]
        return damage(paths, fault.draw)

    def _files_of(self, sha):
        return [*(self.cluster.folder / "coordinator").glob(f"**/{sha}"), *(self.cluster.folder / "shared").glob(f"**/*{sha}*")]

    def _damage_snapshot(self, name, fault):
        return damage(sorted((self.cluster.folder / name).glob("**/*.safetensors")), fault.draw)

    def _full_disk(self, name, fault):
        small = [each for each in ("coordinator", *self.cluster.names) if self.cluster.has_small_disk(each)]
        if not small:
            return None
        where = small[int(fault.draw * len(small))]
        filler = self.cluster.folder / where / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
        self.log(f"   the full disk is {where}'s")
        return lambda: filler.unlink(missing_ok=True)

    def _running(self, fault):
        names = [job["id"] for job in self.jobs() if job.get("state") == "running"]
        return names[int(fault.draw * len(names))] if names else None

    def _checkpoint(self, name, fault):
        job = self._running(fault)
        return job and bool(self.cluster.headrace("checkpoint", job, seconds=10)) or None

    def _pause(self, name, fault):
        job = self._running(fault)
        if job is None or self.cluster.headrace("pause", job, seconds=10) is None:
            return None
        return lambda: resume(self.cluster, job, self.later)

    def _drain(self, name, fault):
        if self.cluster.headrace("drain", name, seconds=10) is None:
            return None
        return lambda: uncordon(self.cluster, name, self.later)


def resume(cluster, job, later):
    """Until it has been heard: the coordinator may be away, or the job not paused yet."""
    state = (cluster.try_describe(job) or {}).get("state", "")
    if state in ("done", "failed", "cancelled"):
        return
    if state == "paused" and cluster.headrace("resume", job, seconds=10).returncode == 0:
        return
    later(0.5, lambda: resume(cluster, job, later))


def uncordon(cluster, name, later):
    done = cluster.headrace("uncordon", name, seconds=10)
    if done is None or done.returncode == 4:  # the coordinator is away
        later(0.5, lambda: uncordon(cluster, name, later))


def damage(paths, draw):
    """Flips a bit of one of these files, or cuts it."""
    paths = [pathlib.Path(path) for path in paths if os.path.getsize(path) > 0]
    if not paths:
        return None
    path = paths[int(draw * len(paths))]
    size = path.stat().st_size
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        if draw < 0.3:
            file.truncate(size // 2)
        else:
            at = int(draw * size)
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 16]))
    return True
