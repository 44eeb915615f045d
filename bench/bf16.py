"""`precision: bf16`: a training step against own fp32 and PyTorch's bf16 autocast, 1 thread; the loss curve."""
import contextlib
import json
import pathlib
import tempfile

import engine
from harness import BenchError, Figure, cluster, interleave, median, peers, spread

OVER_FP32, OVER_TORCH, CURVE = 1.7, 1.2, 0.01
STEPS = 300
# Relative, of the first step's loss: what rounding to 8 bits leaves, with other orders of rounding.
LOSS_TOLERANCE = 2e-3
EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"
TEXT = EXAMPLES / "data" / "kjv.txt"
NO_BF16 = "this CPU has no avx512_bf16"


def has_bf16():
    return "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text()


class Sides:
    """Ours in both precisions and the best of PyTorch's settings, each step of each in turn."""

    def __init__(self, options, model, torch, folder):
        self.options, self.torch, self.folder = options, torch, folder
        # The first step is warm-up and shows that all sides do the same; the second chooses the best.
        engine.export(options, model, options.rounds + 2, folder)
        self.losses, self.trial, self.best = {}, {}, None

    def run(self):
        """{side: [seconds of each round's step]}."""
        program = self.options.program("engine_bench")
        precision = "bf16" if has_bf16() else "bf16_emulated"
        with contextlib.ExitStack() as stack:
            self.sides = {}
            for name in ("fp32", precision):
                self.enter(stack, name.split("_")[0],
                           peers.Paced([program, str(self.folder), "--precision", name], engine.ONE_THREAD))
            self.about = self.sides["bf16"].about
            for setting, (env, arguments) in (engine.SETTINGS if self.torch else {}).items():
                side = self.torch.paced("gpt2_torch.py", self.folder, "--threads", "1", "--dtype", "bf16", *arguments,
                                        env={**engine.ONE_THREAD, **env})
                self.enter(stack, setting, side)
                if self.best and self.trial[setting] > self.trial[self.best]:
                    self.sides.pop(setting).stop()
                else:
                    if self.best:
                        self.sides.pop(self.best).stop()
                    self.best = setting
            return interleave({name: lambda name=name: self.step(name) for name in self.sides}, self.options.rounds)

    def enter(self, stack, name, side):
        stack.enter_context(side)
        self.sides[name], self.losses[name] = side, []
        self.step(name)
        self.trial[name] = self.step(name)
        peers.check_losses(self.losses["fp32"][:1], self.losses[name][:1], LOSS_TOLERANCE)

    def step(self, name):
        done = self.sides[name].step()
        self.losses[name].append(done["loss"])
        return done["seconds"]


def speed(options):
    name, model = next(iter((engine.QUICK if options.quick else engine.MODELS).items()))
    torch = None if options.quick else peers.torch(options)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        sides = Sides(options, model, torch, folder)
        seconds = sides.run()
    tokens = sides.about["tokens"]
    ratios = [fp32 / bf16 for fp32, bf16 in zip(seconds["fp32"], seconds["bf16"], strict=True)]
    yield Figure(f"{name} tokens_per_s", tokens / median(seconds["bf16"]), "tokens/s",
                 detail=f"{tokens} tokens a step; fp32 {tokens / median(seconds['fp32']):.0f}")
    yield Figure(f"{name} over_fp32", median(ratios), "×", target=OVER_FP32, detail=spread(ratios))
    if not torch:
        yield Figure(f"{name} over_torch", None, "×", target=OVER_TORCH, detail=engine.left_out(options, peers.MISSING))
        return
    ratios = [theirs / ours for theirs, ours in zip(seconds[sides.best], seconds["bf16"], strict=True)]
    each = ", ".join(f"{setting} {tokens / sides.trial[setting]:.0f}" for setting in engine.SETTINGS)
    yield Figure(f"{name} over_torch", median(ratios), "×", target=OVER_TORCH,
                 detail=f"{spread(ratios)} against {sides.best}; torch tokens/s in a trial: {each}")


def curve(options):
    """examples/bible.yaml in both precisions at once, a worker each."""
    if options.quick:
        text, steps = "In the beginning was the word. " * 400, 3
    elif TEXT.exists():
        text, steps = TEXT.read_text(), STEPS
    else:
        yield Figure("loss_curve", None, "", target=CURVE, at_least=False,
                     detail="examples/data/kjv.txt is missing: deploy/quickstart writes it")
        return
    with cluster.Cluster(options, [cluster.Worker(memory="1GiB")] * 2) as two:
        losses = {}
        for name, more in {"fp32": "fp32", "bf16": "bf16" if has_bf16() else "bf16\n  bf16_emulate: true"}.items():
            path = two.folder / f"{name}.yaml"
            (two.folder / "text").write_text(text)
            path.write_text(edited((EXAMPLES / "bible.yaml").read_text(), {
                "data/kjv.txt": str(two.folder / "text"), "steps: 400": f"steps: {steps}\n  precision: {more}",
                "warmup_steps: 40": f"warmup_steps: {min(40, steps - 1)}", "eval_every: 100": "eval_every: 0",
                "stages: 2": "stages: 1", "name: bible": f"name: {name}"}))
            losses[name] = json.loads(two.headrace("submit", str(path), "-o", "json"))["job_id"]
        for name, job in losses.items():
            two.headrace("watch", job)
            described = json.loads(two.headrace("describe", job, "-o", "json"))
            losses[name] = [step["loss"] for step in described["steps"]]
    apart = [abs(a - b) / b for a, b in zip(losses["bf16"], losses["fp32"], strict=True)]
    yield Figure("loss_curve", max(apart), "", target=CURVE, at_least=False,
                 detail=f"largest relative difference of {steps} steps, median {median(apart):.2g}; "
                        f"last loss {losses['bf16'][-1]:.4f}, fp32 {losses['fp32'][-1]:.4f}")


def edited(text, replacements):
    for old, new in replacements.items():
        if old not in text:
            raise BenchError(f"examples/bible.yaml has no '{old}' any more")
        text = text.replace(old, new)
    return text


def run(options):
    if not has_bf16() and not options.quick:
        yield Figure("over_fp32", None, "×", target=OVER_FP32, detail=NO_BF16)
        yield Figure("over_torch", None, "×", target=OVER_TORCH, detail=NO_BF16)
    else:
        yield from speed(options)
    yield from curve(options)
