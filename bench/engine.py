"""One worker's compute: a training step against the FMA roof, PyTorch and llm.c, fp32, 1 thread."""
import array
import contextlib
import json
import os
import pathlib
import random
import subprocess
import tempfile

from harness import BenchError, Figure, interleave, median, peers, spread

# Tokens of a step: 1024 and 2048.
MODELS = {
    "gpt2-small": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 512, "vocab_size": 50257, "batch": 2},
    "d384-v256": {"n_layer": 6, "n_embd": 384, "n_head": 6, "n_positions": 256, "vocab_size": 256, "batch": 8},
    "d384-v50257": {"n_layer": 6, "n_embd": 384, "n_head": 6, "n_positions": 256, "vocab_size": 50257, "batch": 8},
}
QUICK = {"quick": {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 32, "vocab_size": 100, "batch": 2}}
ROOF, TORCH, LLM_C = 0.80, 1.2, 5.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

# PyTorch as it comes, and with what is known to help it on a CPU: freed memory kept by malloc, MKL told that
# a processor of another maker has AVX-512 as well, and torch.compile.
TUNED = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000",
         "MALLOC_TOP_PAD_": "1000000000", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}
SETTINGS = {"default": ({}, []), "tuned": (TUNED, []), "compiled": (TUNED, ["--compile"])}


def job(model, steps, folder):
    keys = {key: value for key, value in model.items() if key != "batch"}
    draw = random.Random(1)
    path = pathlib.Path(folder) / "tokens.u32"
    count = (model["n_positions"] + 1) * model["batch"] * (steps + 1)
    path.write_bytes(array.array("I", [draw.randrange(model["vocab_size"]) for _ in range(count)]).tobytes())
    return {
        "name": "engine",
        "model": {"family": "gpt2", **keys},
        "data": {"tokens": str(path), "token_type": "uint32", "validation_split": 0.0},
        "training": {"steps": steps, "batch_size": model["batch"], "micro_batches": 1,
                     "sequence_length": model["n_positions"], "clip_norm": 1.0,
                     "optimizer": {"kind": "adamw", "learning_rate": 1e-4, "weight_decay": 0.1}},
    }


def export(options, model, steps, folder):
    path = pathlib.Path(folder) / "job.yaml"
    path.write_text(json.dumps(job(model, steps, folder)))  # JSON is YAML
    done = subprocess.run([options.program("peer_input"), str(path), str(folder)], capture_output=True, text=True,
                          timeout=120)
    if done.returncode != 0:
        raise BenchError(done.stderr)


class Measured:
    """Ours and the best of some other sides, each step of each in turn."""

    def __init__(self, options, model, peers_of, folder):
        """`peers_of(folder)`: {name: a context manager with step()}."""
        self.rounds, self.folder = options.rounds, pathlib.Path(folder)
        # The first step is warm-up and shows that all sides do the same; the second chooses the best.
        export(options, model, self.rounds + 2, folder)
        self.sides = {"ours": peers.Paced([options.program("engine_bench"), str(folder)], ONE_THREAD),
                      **peers_of(folder)}
        self.losses, self.roof = {name: [] for name in self.sides}, []
        self.trial, self.best = {}, None

    def run(self):
        """{side: [seconds of each round's step]}, ours and the best other one's."""
        with contextlib.ExitStack() as stack:
            self.enter(stack, "ours")
            self.about = self.sides["ours"].about
            for name in self.sides:
                if name == "ours":
                    continue
                self.enter(stack, name)
                if self.best and self.trial[name] > self.trial[self.best]:
                    self.sides[name].stop()
                else:
                    if self.best:
                        self.sides[self.best].stop()
                    self.best = name
            self.roof.clear()
            chosen = ["ours", *([self.best] if self.best else [])]
            return interleave({name: lambda name=name: self.step(name) for name in chosen}, self.rounds)

    def enter(self, stack, name):
        stack.enter_context(self.sides[name])
        self.step(name)
        self.trial[name] = self.step(name)
        peers.check_losses(self.losses["ours"][:1], self.losses[name][:1])

    def step(self, name):
        done = self.sides[name].step()
        self.losses[name].append(done["loss"])
        if name == "ours":
            self.roof.append(done["roof_flops"])
        return done["seconds"]


def ops_table(options, name, folder):
    """Where the time of two steps goes, in a run of its own: looking costs little, but something."""
    done = subprocess.run([options.program("engine_bench"), str(folder), "--steps", "3", "--ops"],
                          capture_output=True, text=True, timeout=240, env={**os.environ, **ONE_THREAD})
    if done.returncode != 0:
        raise BenchError(done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    steps = lines[2:-1]
    total, roof = sum(step["seconds"] for step in steps), median([step["roof_flops"] for step in steps])
    rows = []
    for op in sorted(lines[-1]["ops"], key=lambda op: -op["seconds"]):
        share = f"{op['flops'] / op['seconds'] / roof:.2f}" if op["flops"] else ""
        rows.append([op["name"], f"{op['seconds'] / len(steps):.4f}", f"{op['seconds'] / total:.1%}", share])
    rest = total - sum(op["seconds"] for op in lines[-1]["ops"])
    rows.append(["(no op)", f"{rest / len(steps):.4f}", f"{rest / total:.1%}", ""])
    return options.table(f"{name}: seconds of a step by op", ["op", "seconds", "share", "of the roof"], rows)


def against_torch(options, name, model, torch):
    """Against the roof and PyTorch; without PyTorch against the roof alone."""
    def sides(folder):
        if not torch:
            return {}
        return {setting: torch.paced("gpt2_torch.py", folder, "--threads", "1", *arguments,
                                     env={**ONE_THREAD, **env})
                for setting, (env, arguments) in SETTINGS.items()}

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        measured = Measured(options, model, sides, folder)
        seconds = measured.run()
        tokens, flops = measured.about["tokens"], measured.about["flops_per_token"]
        shares = [tokens * flops / s / roof for s, roof in zip(seconds["ours"], measured.roof, strict=True)]
        yield Figure(f"{name} tokens_per_s", tokens / median(seconds["ours"]), "tokens/s",
                     detail=f"{tokens} tokens a step; roof {median(measured.roof) / 1e9:.0f} GFLOP/s")
        yield Figure(f"{name} roof_share", median(shares), "", target=ROOF, detail=spread(shares))
        if not torch:
            yield Figure(f"{name} over_torch", None, "×", target=TORCH, detail=left_out(options, peers.MISSING))
        else:
            best = measured.best
            peers.check_losses(measured.losses["ours"], measured.losses[best])
            ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds[best], strict=True)]
            each = ", ".join(f"{setting} {tokens / measured.trial[setting]:.0f}" for setting in SETTINGS)
            yield Figure(f"{name} over_torch", median(ratios), "×", target=TORCH,
                         detail=f"{spread(ratios)} against {best}; torch tokens/s in a trial: {each}")
        yield ops_table(options, name, folder)


def against_llm_c(options, name, model, llm_c):
    """A step of one sequence: llm.c takes long."""
    if not llm_c:
        yield Figure(f"{name} over_llm_c", None, "×", target=LLM_C,
                     detail=left_out(options, "not installed: bench/peers/setup --llm-c FOLDER"))
        return
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        measured = Measured(options, {**model, "batch": 1},
                            lambda folder: {"llm.c": llm_c.paced(folder, ONE_THREAD)}, folder)
        seconds = measured.run()
        ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["llm.c"], strict=True)]
        yield Figure(f"{name} over_llm_c", median(ratios), "×", target=LLM_C,
                     detail=f"{spread(ratios)}; {measured.about['tokens']} tokens a step, llm.c "
                            f"{measured.about['tokens'] / median(seconds['llm.c']):.1f} tokens/s")


def left_out(options, why):
    return "left out of --quick" if options.quick else why


def run(options):
    torch = None if options.quick else peers.torch(options)
    llm_c = None if options.quick else peers.llm_c()
    for name, model in (QUICK if options.quick else MODELS).items():
        yield from against_torch(options, name, model, torch)
        yield from against_llm_c(options, name, model, llm_c)
