"""The same job trained by a peer: its weights and tokens exported, its steps read back.

    peer = peers.torch(options)                  # None: not installed, say peers.MISSING
    peer.export(job, folder)                     # `job` as a dict or the path of a job file
    with peer.paced("gpt2_torch.py", folder) as side: side.step()["seconds"]    # or step by step
    about, steps = peer.train("gpt2_torch.py", folder, "--threads", "1")
    steps[-1]["loss"], steps[-1]["seconds"]
"""
import array
import json
import os
import pathlib
import subprocess
import tempfile
import threading

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

    def paced(self, script, folder, *arguments, env=None):
        """The script as a Paced process."""
        return Paced([self.python, str(PEERS / script), str(folder), *map(str, arguments)], env)


class LlmC:
    """llm.c on what peer_input wrote."""

    TENSORS = ["wte", "wpe", "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
               "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
               "mlp.c_proj.weight", "mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"]

    def __init__(self, program):
        self.program = program
        self.version = int(subprocess.run([program], capture_output=True, text=True, check=True).stdout)

    def paced(self, folder, env=None):
        folder = pathlib.Path(folder)
        training = json.loads((folder / "job.json").read_text())["training"]
        self._write_checkpoint(folder)
        return Paced([self.program, str(folder / "llm_c.bin"), str(folder / "tokens.bin"),
                      *(str(training[key]) for key in ("batch_size", "sequence_length", "steps"))], env)

    def _write_checkpoint(self, folder):
        """The weights in llm.c's order, each kind of tensor of all layers together."""
        document = json.loads((folder / "job.json").read_text())
        model, flat = document["model"], (folder / "weights.bin").read_bytes()
        if not model["tied"] or model["n_inner"] != 4 * model["n_embd"]:
            raise BenchError("llm.c knows tied models with an MLP of four widths only")
        kinds, at = {kind: [] for kind in self.TENSORS}, 0
        for tensor in document["tensors"]:
            size = 4
            for side in tensor["shape"]:
                size *= side
            kind = next(kind for kind in self.TENSORS
                        if tensor["name"].endswith("." + kind + (".weight" if kind in ("wte", "wpe") else "")))
            kinds[kind].append(flat[at: at + size])
            at += size
        vocabulary = model["vocab_size"]
        padded = -(-vocabulary // 128) * 128 if self.version >= 3 else vocabulary
        kinds["wte"].append(bytes(4 * (padded - vocabulary) * model["n_embd"]))
        header = [0] * 256
        header[:8] = [20240326, self.version, model["n_positions"], vocabulary, model["n_layer"], model["n_head"],
                      model["n_embd"], padded]
        with open(folder / "llm_c.bin", "wb") as file:
            file.write(array.array("i", header).tobytes())
            for parts in kinds.values():
                file.writelines(parts)


class Paced:
    """A process that trains one step for each line it reads (--paced): several can be measured in turn without
    starting anew. Its first line, what it runs with, is `about`."""

    def __init__(self, command, env=None):
        self.command = [*command, "--paced"]
        self.env = {**os.environ, **(env or {})}

    def __enter__(self):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, env=self.env)
        try:
            self.about = self._read()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Ends it; harmless where it has ended."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()

    def step(self):
        """Runs the next step: {"step", "loss", "seconds", …}."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: what it said is in the error below
        return self._read()

    def _read(self, timeout_s=240):
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            timer.cancel()
        self.errors.seek(0)
        raise BenchError(f"{' '.join(self.command)} ended with {self.process.wait()}:\n{self.errors.read()[-3000:]}")


def torch(options):
    """None where bench/peers/setup has not run."""
    python = pathlib.Path(os.environ.get("HEADRACE_PEERS", PEERS)) / ".venv" / "bin" / "python"
    return Torch(options, str(python)) if python.exists() else None


def llm_c():
    """None where bench/peers/setup --llm-c has not run."""
    program = pathlib.Path(os.environ.get("HEADRACE_PEERS", PEERS)) / "llm_c"
    return LlmC(str(program)) if program.exists() else None


def check_losses(ours, theirs, tolerance=LOSS_TOLERANCE):
    """Two lists of losses, step by step: the largest relative difference. BenchError beyond the tolerance."""
    largest = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    if largest > tolerance:
        raise BenchError(f"the sides do not do the same work: losses differ by {largest:.1e}, "
                         f"ours {ours}, theirs {theirs}")
    return largest
