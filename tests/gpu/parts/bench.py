"""Tokens a second and MFU of GPT-2 in bf16: one worker, two workers on the device, and PyTorch, in turn."""
import contextlib
import os
import subprocess
import threading

from harness import peers
from harness.measure import BenchError, interleave, median

from parts import jobs
from parts.context import FAILED, MEASURED, PASSED, SKIPPED, Result, tail

# Dense bf16 with sums in fp32, TFLOP/s, as NVIDIA's data sheets say; the first name that is found decides.
PEAKS = [("B200", 2250), ("GB200", 2250), ("H200", 989), ("GH200", 989), ("H100 PCIe", 756), ("H100 NVL", 835),
         ("H100", 989), ("H800", 989), ("A100", 312), ("A800", 312), ("L40S", 362), ("L40", 181), ("L4", 121),
         ("RTX 5090", 210), ("RTX 4090", 165), ("RTX 4080", 97), ("RTX 3090", 71), ("A10", 125)]
GOALS = {"124M": 0.50}           # MFU
LOSS_TOLERANCE = 5e-3            # relative, of two bf16 trainings' first steps
BATCH = 64                       # sequences of 1024 tokens: 65,536 a step
LARGE_MIB = 40_000               # a device with more takes 8 micro-batches, one with less 32
WARM = 3                         # steps of each job that are not counted


def peak_flops(device):
    return next((tflops * 1e12 for name, tflops in PEAKS if name in device), None)


def plan(context):
    """{model: (rounds, steps a job)}"""
    if context.size == "dry":
        return {"124M": (1, 2)}
    return {"124M": (1, 6)} if context.size == "quick" else {"124M": (3, 15), "355M": (2, 10)}


def make_job(context, name, stages=1):
    _, steps = plan(context)[name]
    micro_batches = 8 if context.device.memory_mib > LARGE_MIB else 32
    batch, parts = (4, 2) if context.size == "dry" else (BATCH, micro_batches)
    return jobs.gpt2(context, name, steps, batch, parts, stages=stages)


def torch_arguments():
    return ["--device", "cuda", "--dtype", "bf16", "--compile"]


class Preparation(threading.Thread):
    """Exports each job for PyTorch and lets it compile its code into a cache, while other parts run: a minute's work
    that nobody wants inside the bench."""

    def __init__(self, context):
        super().__init__(daemon=True)
        self.context, self.done, self.process, self.stopped = context, {}, None, False
        self.torch = peers.Torch(context.options, context.python)
        self.env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(context.work / "inductor"),
                    "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}

    def run(self):
        for name in plan(self.context):
            try:
                self.done[name] = self.prepare(name)
            except Exception as error:  # told by the bench, which goes on without the peer
                self.done[name] = error
            if self.stopped:
                return

    def prepare(self, name):
        folder = self.context.work / f"peer-{name}"
        rounds, steps = plan(self.context)[name]
        job = make_job(self.context, name)
        job["training"]["steps"] = rounds * steps + 1  # one to compile in
        self.torch.export(job, folder)
        command = [self.context.python, str(peers.PEERS / "gpt2_torch.py"), str(folder), *torch_arguments(), "--steps", "1"]
        self.process = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = self.process.communicate(timeout=300)
        if self.process.returncode != 0:
            raise BenchError(f"PyTorch ended with {self.process.returncode}: {tail(output)}")
        return folder

    def stop(self):
        self.stopped = True
        if self.process and self.process.poll() is None:
            self.process.kill()


class Ours:
    """Jobs of one model on one cluster; the seconds of each counted step."""

    def __init__(self, context, cluster, name):
        self.context, self.cluster, self.name, self.losses, self.links = context, cluster, name, [], ""

    def train(self, stages):
        job = make_job(self.context, self.name, stages)
        done = self.cluster.run(job)
        steps = done["steps"]
        if len(steps) != job["training"]["steps"]:
            raise BenchError(f"{done['state']} after {len(steps)} steps: {done.get('message', '')}")
        self.losses = [step["loss"] for step in steps]
        if stages > 1:
            self.links = ", ".join(sorted({link["transport"] for link in done.get("links", [])}))
        return [step["seconds"] for step in steps[min(WARM, len(steps) - 1):]]


class Theirs:
    def __init__(self, side, steps):
        self.side, self.steps, self.losses = side, steps, []

    def train(self):
        done = [self.side.step() for _ in range(self.steps)]
        self.losses += [step["loss"] for step in done]
        return [step["seconds"] for step in done[min(WARM, len(done) - 1):]]


def run(context):
    for name in plan(context):
        if context.left() < 40 and context.size != "dry":
            yield Result(f"GPT-2 {name}", SKIPPED, "no time is left")
            continue
        yield from measure(context, name)


def peer(context, stack, name):
    """(PyTorch's side, started and compiled; why there is none)."""
    preparation = context.preparation
    if preparation is None:
        return None, "PyTorch cannot use the device"
    preparation.join(min(150, context.left() / 2))
    ready = preparation.done.get(name, BenchError("it was not compiled in time"))
    if isinstance(ready, Exception):
        return None, str(ready)[-300:]
    side = stack.enter_context(peers.Paced([context.python, str(peers.PEERS / "gpt2_torch.py"), str(ready),
                                            *torch_arguments()], preparation.env))
    theirs = Theirs(side, plan(context)[name][1])
    theirs.first = side.step()["loss"]
    return theirs, ""


def measure(context, name):
    rounds, _ = plan(context)[name]
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(context.cluster([context.worker(share=0.35)] * 2))
        ours = Ours(context, cluster, name)
        sides = {"one worker": lambda: ours.train(1), "two workers": lambda: ours.train(2)}
        theirs, why = peer(context, stack, name)
        if theirs:
            sides["PyTorch"] = theirs.train
        try:
            seconds = {side: [s for each in job for s in each] for side, job in interleave(sides, rounds).items()}
        except BenchError as error:
            yield Result(f"GPT-2 {name}", FAILED, str(error)[-300:])
            return
    yield from figures(context, name, seconds, ours)
    if not theirs:
        yield Result(f"GPT-2 {name}, PyTorch", SKIPPED, why)
        return
    ratio = median(seconds["PyTorch"]) / median(seconds["one worker"])
    yield Result(f"GPT-2 {name}, one worker over PyTorch", MEASURED, f"compiled, {context.torch['version']}", ratio, "×")
    yield agreement(name, ours.losses[0], theirs.first)


def figures(context, name, seconds, ours):
    job = make_job(context, name)
    training = job["training"]
    tokens = training["batch_size"] * training["sequence_length"]
    flops, peak = jobs.flops_per_token(job["model"], training["sequence_length"]), peak_flops(context.device.name)
    for side, taken in seconds.items():
        middle = median(taken)
        detail = f"{1000 * middle:.1f} ms a step ({1000 * min(taken):.1f}–{1000 * max(taken):.1f}, n = {len(taken)})"
        if side == "two workers":
            detail += f", {ours.links}"
        yield Result(f"GPT-2 {name}, {side}", MEASURED, detail, tokens / middle, "tokens/s")
        if peak:
            yield Result(f"GPT-2 {name}, {side}, MFU", MEASURED, f"of {peak / 1e12:.0f} TFLOP/s", tokens * flops / middle / peak,
                         target=GOALS.get(name) if side == "one worker" else None)


def agreement(name, ours, theirs):
    """The first step's losses: the sides do the same work or the ratio says nothing."""
    off = abs(ours - theirs) / theirs
    return Result(f"GPT-2 {name}, loss of step 1 beside PyTorch", PASSED if off <= LOSS_TOLERANCE else FAILED,
                  f"{ours:.5f}, {theirs:.5f}; bound {LOSS_TOLERANCE:.0e}", off, "relative")
