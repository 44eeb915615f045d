"""The same job trained by a peer: its weights and tokens exported, its steps read back.

    peer = peers.torch(options)                  # None: not installed, say peers.MISSING
    peer.export(job, folder)                     # `job` as a dict or the path of a job file
    about, steps = peer.train("gpt2_torch.py", folder, "--threads", "1")
    steps[-1]["loss"], steps[-1]["seconds"]
"""
import json
import os
import pathlib
import subprocess

from harness.measure import BenchError

PEERS = pathlib.Path(__file__).resolve().parent.parent / "peers"
MISSING = "not installed: bench/peers/setup"
LOSS_TOLERANCE = 2e-4  # relative, of one fp32 step against another's


class Torch:
    def __init__(self, options, python):
        self.options, self.python = options, python

    def export(self, job, folder):
        """Writes what the scripts in bench/peers train on; `folder` is made."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(job, dict):
            path = folder / "job.yaml"
            path.write_text(json.dumps(job))  # JSON is YAML
            job = path
        done = subprocess.run([self.options.program("peer_input"), str(job), str(folder)], capture_output=True,
                              text=True, timeout=120)
        if done.returncode != 0:
            raise BenchError(done.stderr)

    def train(self, script, folder, *arguments, env=None, prefix=(), timeout=240):
        """(what it runs with, [its steps]) of a script of bench/peers."""
        command = [*prefix, self.python, str(PEERS / script), str(folder), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                              env={**os.environ, **(env or {})})
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return lines[0], lines[1:]


def torch(options):
    """None where bench/peers/setup has not run."""
    python = pathlib.Path(os.environ.get("HEADRACE_PEERS", PEERS)) / ".venv" / "bin" / "python"
    return Torch(options, str(python)) if python.exists() else None


def check_losses(ours, theirs, tolerance=LOSS_TOLERANCE):
    """Two lists of losses, step by step: the largest relative difference. BenchError beyond the tolerance."""
    largest = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    if largest > tolerance:
        raise BenchError(f"the sides do not do the same work: losses differ by {largest:.1e}, "
                         f"ours {ours}, theirs {theirs}")
    return largest
