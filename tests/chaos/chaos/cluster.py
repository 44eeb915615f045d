"""A coordinator and workers whose processes can be killed, stopped, cut off and started again.

Every worker reaches the coordinator, and is reached, through a proxy of its own, but for those that are `plain`. Data
folders named in `small_disks` are tmpfs of their own, where the process may mount.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from chaos.proxy import Proxy

START_S = 30
CLIENT_S = 30


UNREACHABLE = 4  # exit code of a client that finds no coordinator


class Failure(Exception):
    """What must not happen has."""


class Unreachable(Failure):
    """The coordinator did not answer."""


class Cluster:
    def __init__(self, build, workers, name, plain=(), small_disks=None, environment=None, memory="512MiB"):
        self.build = pathlib.Path(build)
        self.names = [f"w{i}" for i in range(workers)]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"headrace-{name}-"))
        self.plain, self.small_disks = set(plain), dict(small_disks or {})
        self.environment, self.memory = dict(environment or {}), memory
        self.processes = {}   # name → Popen of its present process
        self.ended = []       # (name, Popen) of those before
        self.proxies = {}     # "w0" in front of it, "w0-coordinator" behind
        self.mounted = []
        self.address = None
        self.num_jobs = 0

    def __enter__(self):
        try:
            for name, size in self.small_disks.items():
                self._mount(name, size)
            self.start("coordinator")
            for name in self.names:
                self.start(name)
            self.await_workers(len(self.names))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for proxy in self.proxies.values():
            proxy.close()
        self.proxies = {}
        for path in self.mounted:
            subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _mount(self, name, size):
        path = self.folder / name
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "headrace", str(path)], check=False,
                              capture_output=True)
        if done.returncode == 0:
            self.mounted.append(path)

    def has_small_disk(self, name):
        return self.folder / name in self.mounted

    # ---- Processes

    def start(self, name):
        """Starts a process, or starts it again on its old data and address."""
        if name in self.processes:
            self.ended.append((name, self.processes[name]))
        command = self._coordinator() if name == "coordinator" else self._worker(name)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
                env={**os.environ, "OMP_WAIT_POLICY": "passive", **self.environment})
        if name == "coordinator":
            self._await_address()

    def _coordinator(self):
        (self.folder / "address").unlink(missing_ok=True)
        return [self.build / "bin" / "headrace-coordinator", "--listen", self.address or "127.0.0.1:0", "--data-dir",
                self.folder / "coordinator", "--address-file", self.folder / "address", "--die-with-parent"]

    def _worker(self, name):
        command = [self.build / "bin" / "headrace-worker", "--name", name, "--memory-limit", self.memory, "--threads", "1",
                   "--device", "cpu", "--data-dir", self.folder / name, "--die-with-parent"]
        if name in self.plain:
            return command + ["--coordinator", self.address, "--listen", "127.0.0.1:0"]
        sock = f"unix:{self.folder}/{name}.sock"
        (self.folder / f"{name}.sock").unlink(missing_ok=True)
        if name not in self.proxies:
            self.proxies[name] = Proxy(sock)
            self.proxies[name + "-coordinator"] = Proxy(self.address)
        return command + ["--coordinator", self.proxies[name + "-coordinator"].address, "--listen", sock, "--advertise",
                          self.proxies[name].address]

    def _await_address(self):
        path, deadline = self.folder / "address", time.monotonic() + START_S
        while not (path.exists() and path.read_text().strip()):
            if time.monotonic() > deadline or not self.runs("coordinator"):
                raise Failure("the coordinator does not start:\n" + self.log("coordinator"))
            time.sleep(0.02)
        self.address = path.read_text().strip()

    def runs(self, name):
        return self.processes[name].poll() is None

    def signal(self, name, number):
        if self.runs(name):
            self.processes[name].send_signal(number)

    def cut(self, name, mode, delay=0.0):
        """Both what reaches the worker and what it sends to the coordinator."""
        for proxy in (self.proxies[name], self.proxies[name + "-coordinator"]):
            proxy.set(mode, delay)

    def stop(self, seconds=30):
        """SIGTERM to all, workers first: what each exit code was. Failure where one does not end."""
        codes = {}
        for name in [*self.names, "coordinator"]:
            self.signal(name, signal.SIGTERM)
            try:
                codes[name] = self.processes[name].wait(seconds)
            except subprocess.TimeoutExpired:
                raise Failure(f"{name} does not end within {seconds} s of SIGTERM:\n{self.log(name)}") from None
        return codes

    def log(self, name, characters=3000):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-characters:] if path.exists() else ""

    # ---- The client

    def headrace(self, *arguments, seconds=CLIENT_S):
        """How the client ended: a CompletedProcess, or None where it did not in time."""
        try:
            return subprocess.run([self.build / "bin" / "headrace", *arguments], capture_output=True, text=True,
                                  timeout=seconds, env=self._client_environment())
        except subprocess.TimeoutExpired:
            return None

    def client(self, label, *arguments):
        """Starts one; its output goes to LABEL.log."""
        with open(self.folder / f"{label}.log", "ab") as log:
            return subprocess.Popen([self.build / "bin" / "headrace", *arguments], stdout=log, stderr=log,
                                    stdin=subprocess.DEVNULL, env=self._client_environment())

    def _client_environment(self):
        return {**os.environ, "HEADRACE_COORDINATOR": self.address, "XDG_STATE_HOME": str(self.folder / "state"),
                "NO_COLOR": "1"}

    def must(self, *arguments, seconds=CLIENT_S):
        """Its output. Failure where it does not succeed."""
        done = self.headrace(*arguments, seconds=seconds)
        if done is None or done.returncode != 0:
            said = "no answer in time" if done is None else f"exit code {done.returncode}: {done.stderr[-2000:]}"
            kind = Unreachable if done is None or done.returncode == UNREACHABLE else Failure
            raise kind(f"headrace {' '.join(arguments)}: {said}")
        return done.stdout

    def submit(self, job):
        self.num_jobs += 1
        path = self.folder / f"job-{self.num_jobs}.yaml"
        path.write_text(json.dumps(job))  # JSON is YAML
        return json.loads(self.must("submit", str(path), "-o", "json"))["job_id"]

    def describe(self, job):
        return json.loads(self.must("describe", job, "-o", "json"))

    def try_describe(self, job):
        """None while the coordinator does not answer."""
        done = self.headrace("describe", job, "-o", "json", seconds=10)
        return json.loads(done.stdout) if done is not None and done.returncode == 0 else None

    def await_workers(self, count, seconds=START_S):
        deadline = time.monotonic() + seconds
        while True:
            done = self.headrace("workers", "-o", "json")
            found = json.loads(done.stdout or "[]") if done is not None and done.returncode == 0 else []
            if sum(bool(w.get("alive") and not w.get("job_id")) for w in found) >= count:
                return
            if time.monotonic() > deadline:
                raise Failure(f"of {count} workers there are {found}")
            time.sleep(0.05)
