"""A coordinator and workers as real processes on loopback, stopped whatever happens.

    with Cluster(options, [Worker(memory="1GiB")] * 2) as cluster:
        job = cluster.run({"name": "x", "model": …, "data": cluster.tokens(100_000, vocabulary=256), …})
        job["steps"][-1]["seconds"]
"""
import array
import dataclasses
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

from harness.measure import BenchError

START_S = 30


@dataclasses.dataclass
class Worker:
    memory: str = "2GiB"
    device: str = "cpu"
    threads: int = 1
    args: list = dataclasses.field(default_factory=list)    # more flags
    env: dict = dataclasses.field(default_factory=dict)
    prefix: list = dataclasses.field(default_factory=list)  # such as ["ip", "netns", "exec", "w0"]
    listen: str = "127.0.0.1:0"  # or "unix": a socket in the cluster's folder


class Cluster:
    def __init__(self, options, workers, listen="127.0.0.1:0", coordinator_prefix=(), coordinator_args=()):
        self.options = options
        self.workers = list(workers)
        self.listen = listen
        self.coordinator_prefix = list(coordinator_prefix)
        self.coordinator_args = list(coordinator_args)
        self.processes = {}
        self.folder = None
        self.address = None
        self.num_jobs = 0

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        try:
            self._start_coordinator()
            for i, worker in enumerate(self.workers):
                self._start_worker(i, worker)
            self._await_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes.values()):
            process.terminate()
        deadline = time.monotonic() + 5
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _spawn(self, label, command, env=None):
        log = open(self.folder / f"{label}.log", "wb")
        self.processes[label] = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
            env={**os.environ, "OMP_WAIT_POLICY": "passive", **(env or {})})
        log.close()

    def _start_coordinator(self):
        address = self.folder / "address"
        self._spawn("coordinator", [
            *self.coordinator_prefix, self.options.program("headrace-coordinator"), "--listen", self.listen,
            "--data-dir", str(self.folder / "coordinator"), "--address-file", str(address), "--die-with-parent",
            *self.coordinator_args])
        deadline = time.monotonic() + START_S
        while not address.exists():
            if time.monotonic() > deadline or self.processes["coordinator"].poll() is not None:
                raise BenchError("the coordinator did not start:\n" + self.log("coordinator"))
            time.sleep(0.02)
        self.address = address.read_text().strip()

    def _start_worker(self, index, worker):
        name = f"w{index}"
        self._spawn(name, [
            *worker.prefix, self.options.program("headrace-worker"), "--coordinator", self.address, "--name", name,
            "--listen", f"unix:{self.folder}/{name}.sock" if worker.listen == "unix" else worker.listen,
            "--device", worker.device, "--threads", str(worker.threads),
            *(["--memory-limit", worker.memory] if worker.memory else []),
            "--data-dir", str(self.folder / name), "--die-with-parent", *worker.args], worker.env)

    def _await_workers(self):
        deadline = time.monotonic() + START_S + len(self.workers)
        while True:
            found = json.loads(self.headrace("workers", "-o", "json") or "[]")
            free = [w for w in found if w.get("alive") and not w.get("job_id")]
            if len(free) >= len(self.workers):
                return
            dead = [name for name, process in self.processes.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise BenchError(f"{len(free)} of {len(self.workers)} workers came:\n" +
                                 "\n".join(self.log(name) for name in dead or list(self.processes)[-1:]))
            time.sleep(0.05)

    def log(self, label):
        return (self.folder / f"{label}.log").read_text()[-4000:]

    def headrace(self, *arguments, check=True, timeout=600):
        """The client's standard output. BenchError with what it said where it fails."""
        done = subprocess.run([self.options.program("headrace"), *arguments], capture_output=True, text=True,
                              timeout=timeout, env={**os.environ, "HEADRACE_COORDINATOR": self.address,
                                                    "XDG_STATE_HOME": str(self.folder / "state"), "NO_COLOR": "1"})
        if check and done.returncode != 0:
            raise BenchError(f"headrace {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    def tokens(self, count, vocabulary, seed=1):
        """A job's data section: a file of `count` random tokens."""
        path = self.folder / f"tokens-{count}-{vocabulary}-{seed}.bin"
        if not path.exists():
            draw = random.Random(seed)
            path.write_bytes(array.array("I", [draw.randrange(vocabulary) for _ in range(count)]).tobytes())
        return {"tokens": str(path), "token_type": "uint32", "validation_split": 0.0, "seed": seed}

    def write_job(self, job):
        self.num_jobs += 1
        path = self.folder / f"job-{self.num_jobs}.yaml"
        path.write_text(json.dumps(job))  # JSON is YAML
        return str(path)

    def run(self, job, timeout=600):
        """Trains `job` to its end; the job as `headrace describe -o json` prints it, with its steps."""
        submitted = json.loads(self.headrace("submit", self.write_job(job), "-o", "json", *self.simulate(),
                                             timeout=timeout))
        name = submitted["job_id"]
        self.headrace("watch", name, timeout=timeout)
        return json.loads(self.headrace("describe", name, "-o", "json"))

    def plan(self, job, *arguments):
        """The plan of `job` on these workers. BenchError where it is refused."""
        return json.loads(self.headrace("plan", self.write_job(job), "-o", "json", *self.simulate(), *arguments))

    def simulate(self):
        """What the client needs to be told for simulated workers."""
        return ["--simulate"] if any(worker.device.startswith("sim:") for worker in self.workers) else []

    def pid(self, label):
        """Of "coordinator", or of worker number `label`; behind a prefix that execs (ip netns exec) the same."""
        return self.processes[label if isinstance(label, str) else f"w{label}"].pid

    def cpu_seconds(self, label):
        """User and system time the process has used so far."""
        fields = pathlib.Path(f"/proc/{self.pid(label)}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_rss(self, label):
        """Bytes, the process's peak so far (VmHWM)."""
        status = pathlib.Path(f"/proc/{self.pid(label)}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
