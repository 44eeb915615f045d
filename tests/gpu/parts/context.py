"""What the parts of tests/gpu/check share: where things lie, how long is left, what was found."""
import dataclasses
import os
import pathlib
import subprocess
import time

from harness.cluster import Cluster, Worker

PASSED, FAILED, SKIPPED, MEASURED = "passed", "failed", "skipped", "measured"


class Skip(Exception):
    """Why a part cannot be run here; no failure."""


class PartTimeout(Exception):
    """A part ran past its limit: raised inside it, so that what it started is stopped."""


@dataclasses.dataclass
class Result:
    """One line of the table."""
    name: str
    verdict: str
    detail: str = ""
    value: float | None = None
    unit: str = ""
    target: float | None = None  # of a measurement: a goal, which decides nothing
    part: str = ""

    def columns(self):
        value = "" if self.value is None else f"{self.value:.4g} {self.unit}".rstrip()
        target = "" if self.target is None else f"≥ {self.target:.4g}"
        return [self.part, self.name, self.verdict, value, target, self.detail]


def judged(name, ok, detail="", **more):
    return Result(name, PASSED if ok else FAILED, detail, **more)


@dataclasses.dataclass
class Device:
    index: int
    name: str
    memory_mib: int
    capability: str

    @property
    def memory_bytes(self):
        return self.memory_mib << 20


@dataclasses.dataclass
class Context:
    options: object               # harness.Options: where programs are
    env: dict                     # of every program of ours
    work: pathlib.Path            # temporary, removed at the end
    out: pathlib.Path             # kept
    python: str                   # with PyTorch, if any has it
    size: str = "full"            # "full", "quick" or "dry"
    deadline: float = 0           # time.monotonic() at which the part in hand is stopped
    device: Device | None = None
    num_devices: int = 1
    kind: str = "cuda"            # "cpu": stands in for the device in a dry run
    torch: dict = dataclasses.field(default_factory=dict)  # {}: PyTorch cannot use the device
    preparation: object = None    # of the bench, begun before the parts

    def left(self):
        return max(0.1, self.deadline - time.monotonic())

    def run(self, command, limit=None, env=None):
        """The ended process, output as text, standard error in with it. subprocess.TimeoutExpired if it did not."""
        return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", stdin=subprocess.DEVNULL, env={**self.env, **(env or {})},
                              timeout=min(limit or self.left(), self.left()))

    def worker(self, share=0.1, device=None, threads=1):
        """A worker on the device with a share of its memory; or on the CPU."""
        device = device or self.kind
        small = device == "cpu" or self.size == "dry"
        memory = "256MiB" if small else f"{int(self.device.memory_mib * share)}MiB"
        return Worker(memory=memory, device=device, threads=threads, env=self.env)

    def cluster(self, workers):
        return Cluster(self.options, workers)


def tail(text, lines=3, most=400):
    """The end of a program's output, in a line."""
    return "; ".join(line.strip() for line in text.strip().splitlines()[-lines:])[-most:]


def library_folders(python):
    """Folders of CUDA's libraries on this machine: the toolkit's, else those that came with PyTorch."""
    found = []
    for name in ("libcublasLt.so.13", "libnccl.so.2"):
        folder = find_library(name, python)
        if folder and folder not in found:
            found.append(folder)
    return found


def find_library(name, python):
    listed = subprocess.run(["sh", "-c", "ldconfig -p 2>/dev/null || /sbin/ldconfig -p"], capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        if line.split() and line.split()[0] == name:
            return os.path.dirname(line.split()[-1])
    patterns = ["/usr/local/cuda/lib64", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/x86_64-linux/lib",
                "/opt/nvidia/*/lib*"]
    for pattern in patterns:
        for folder in sorted(pathlib.Path("/").glob(pattern.lstrip("/"))):
            if (folder / name).exists():
                return str(folder)
    asked = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                           capture_output=True, text=True)
    packages = pathlib.Path(asked.stdout.strip() or "/nonexistent")
    for path in sorted(packages.glob(f"nvidia/*/lib/{name}")):
        return str(path.parent)
    return None
