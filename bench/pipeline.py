"""Two workers against one, and against torch.distributed.pipelining, at M = 8."""
import tempfile

from engine import TUNED
from harness import BenchError, Figure, interleave, median, peers, spread
from harness.cluster import Cluster, Worker

MICRO_BATCHES = 8
BOUND = 2 * MICRO_BATCHES / (MICRO_BATCHES + 1)  # GPipe's bubble and nothing else

MODELS = {
    "d384": {"family": "gpt2", "vocab_size": 256, "n_layer": 6, "n_embd": 384, "n_head": 6, "n_positions": 256},
    "gpt2-small": {"family": "gpt2", "vocab_size": 50257, "n_layer": 12, "n_embd": 768, "n_head": 12,
                   "n_positions": 1024},
    "tiny": {"family": "gpt2", "vocab_size": 64, "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16},
}


class Side:
    """One way of training a job: its losses, and for each run the median seconds of a step."""

    def __init__(self):
        self.losses = None
        self.seconds = []
        self.stages = []  # of ours: stage seconds of each step
        self.plan = None

    def add(self, steps, plan=None):
        losses = [step["loss"] for step in steps]
        if self.losses not in (None, losses):
            raise BenchError(f"losses of one job changed from run to run: {self.losses}, {losses}")
        self.losses, self.plan = losses, plan
        counted = steps[1:]  # the first one warms up
        self.seconds.append(median([step["seconds"] for step in counted]))
        self.stages += [step["stage_seconds"] for step in counted if "stage_seconds" in step]
        return self.seconds[-1]


def job_of(model, cluster, length, steps):
    """Micro-batches of one sequence."""
    return {"name": "pipeline", "model": model, "data": cluster.tokens(100_000, model["vocab_size"]),
            "training": {"steps": steps, "batch_size": MICRO_BATCHES, "micro_batches": MICRO_BATCHES,
                         "sequence_length": length,
                         "optimizer": {"kind": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1}},
            "pipeline": {"schedule": "1f1b", "recompute": "never"}}


def ratios(slow, fast):
    return [a / b for a, b in zip(slow, fast)]


def where_time_goes(options, name, one, two):
    keys = ["wall", "compute", "wait_receive", "wait_send", "optimizer"]
    rows = []
    for label, side, stage in [("K = 1", one, 0), ("K = 2, stage 0", two, 0), ("K = 2, stage 1", two, 1)]:
        mean = {key: sum(step[stage].get(key, 0) for step in side.stages) / len(side.stages) for key in keys}
        rows.append([label, *(f"{mean[key]:.3f}" for key in keys)])
    return options.table(f"{name}: mean seconds of a step", ["", *keys], rows)


def best_environment(torch, folder, cut):
    """(its name, the environment) of the faster of PyTorch as it comes and tuned, by the second of two steps."""
    seconds = {}
    for setting, environment in {"default": {}, "tuned": TUNED}.items():
        _, steps = torch.train("pipelining_torch.py", folder, "--cuts", cut, "--steps", 2, env=environment)
        seconds[setting] = (steps[-1]["seconds"], environment)
    best = min(seconds, key=lambda setting: seconds[setting][0])
    return best, seconds[best][1]


def measure(options, name, length, steps, schedules):
    """Figures of one model; `schedules` of the peer, if it is installed."""
    torch = peers.torch(options) if schedules else None
    one, two, theirs = Side(), Side(), {schedule: Side() for schedule in schedules}
    with Cluster(options, [Worker(memory="6GiB")] * 2) as cluster, tempfile.TemporaryDirectory() as folder:
        job = job_of(MODELS[name], cluster, length, steps)

        def train(stages):
            return cluster.run({**job, "pipeline": {**job["pipeline"], "stages": stages}})

        def ours(side, stages):
            def run():
                done = train(stages)
                return side.add(done["steps"], done["plan"])
            return run

        # Once untimed: layers are measured then, and where we cut, the peer does too.
        cut = train(2)["plan"]["stage"][1]["first_layer"]
        sides = {"one": ours(one, 1), "two": ours(two, 2)}
        if torch:
            torch.export(job, folder)
            setting, environment = best_environment(torch, folder, cut)

            def peer(schedule):
                return lambda: theirs[schedule].add(
                    torch.train("pipelining_torch.py", folder, "--cuts", cut, "--schedule", schedule,
                                env=environment)[1])

            sides.update({schedule: peer(schedule) for schedule in schedules})
        interleave(sides, options.rounds)

    if one.losses != two.losses:
        raise BenchError(f"K = 1 and K = 2 differ: {one.losses}, {two.losses}")
    speedup = ratios(one.seconds, two.seconds)
    planned = one.plan["step_s"] / two.plan["step_s"] / BOUND
    yield Figure(f"{name}: two workers ÷ one ÷ {BOUND:.2f}", median(speedup) / BOUND, "", 0.95,
                 detail=f"{spread(speedup)} ×; cut before layer {cut}, planned {planned:.3f} "
                        f"({two.plan['stage'][0].get('cost_source', 'flops')})")
    yield where_time_goes(options, name, one, two)
    for schedule in schedules:
        label = f"{name}: two workers ÷ torch {schedule}"
        if not torch:
            yield Figure(label, None, "×", 1.3, detail=peers.MISSING)
            continue
        off = peers.check_losses(two.losses, theirs[schedule].losses)
        ratio = ratios(theirs[schedule].seconds, two.seconds)
        yield Figure(label, median(ratio), "×", 1.3, detail=f"{spread(ratio)}; {setting}, losses within {off:.0e}")


def run(options):
    if options.quick:
        yield from measure(options, "tiny", 16, 2, [])
        return
    yield from measure(options, "d384", 256, 4, ["1f1b", "gpipe"])
    yield from measure(options, "gpt2-small", 64, 3, ["1f1b"])
