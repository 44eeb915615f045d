"""GPipe's Table 3: pipelines over slow links; workers in network namespaces shaped by tc, and a delay.

Simulated workers at a P100's speed stand for the paper's (their actions take time, everything else is real, tensors
travel in full); a small model on real workers shows the same with real compute. Each is compared with itself on
loopback. A link's transfer time is that of all that one stage sends to another in a step, one way, at the link's rate.
"""
import math
import subprocess
import sys

from harness import BenchError, Figure, median, spread
from harness import network
from harness.cluster import Cluster, Worker

# (rate for tc, Mbit/s, one-way delay in ms)
GIGABIT = ("1gbit", 1000, 1)
SLOW = ("100mbit", 100, 10)
FLOPS = 8e12
MICRO_BATCHES = 32
# Stages, micro-batches, and over which links; more micro-batches of the same size hide what 32 expose.
SIDES = [(2, 32, [(GIGABIT, "fp32"), (GIGABIT, "bf16"), (SLOW, "fp32")]),
         (4, 32, [(GIGABIT, "fp32"), (GIGABIT, "bf16")]),
         (8, 32, [(GIGABIT, "fp32"), (GIGABIT, "bf16"), (SLOW, "fp32"), (SLOW, "bf16")]),
         (8, 64, [(GIGABIT, "fp32"), (GIGABIT, "bf16")]),
         (8, 128, [(GIGABIT, "fp32")])]
# GPIPE.md, Table 3 (P100s without NVLink, M = 32), Transformer-24.
PAPER = {2: 1.0, 4: 1.8, 8: 3.3}


def transformer(stages, steps, dtype="fp32", quick=False, micro_batches=MICRO_BATCHES):
    """The paper's Transformer-24, micro-batches of one sequence of 256."""
    width, layers, vocabulary = (64, 6, 256) if quick else (2048, 24, 32000)
    return {
        "name": f"slow-{stages}",
        "model": {"family": "gpt2", "vocab_size": vocabulary, "n_layer": layers, "n_embd": width, "n_head": 16,
                  "n_positions": 256, "tie_word_embeddings": False},
        "training": {"steps": steps, "batch_size": micro_batches, "micro_batches": micro_batches,
                     "sequence_length": 32 if quick else 256, "optimizer": {"kind": "rmsprop", "learning_rate": 1e-4}},
        "pipeline": pipeline(stages, dtype),
    }


def small(stages, steps, dtype="fp32", quick=False):
    width, layers = (64, 2) if quick else (384, 6)
    return {
        "name": f"small-{stages}",
        "model": {"family": "gpt2", "vocab_size": 256, "n_layer": layers, "n_embd": width, "n_head": 6 if not quick else 4,
                  "n_positions": 256},
        "training": {"steps": steps, "batch_size": 8, "micro_batches": 8, "sequence_length": 32 if quick else 256,
                     "optimizer": {"kind": "adamw", "learning_rate": 1e-4}},
        "pipeline": pipeline(stages, dtype),
    }


def pipeline(stages, dtype):
    # Workers in namespaces of one machine would else share its memory.
    spec = {"stages": stages, "schedule": "1f1b", "recompute": "always", "transport": "grpc"}
    if dtype != "fp32":
        spec["boundary_dtype"] = dtype
    return spec


def boundary_bytes(spec):
    """Of what one stage sends another in a step, one way."""
    training, model = spec["training"], spec["model"]
    size = 2 if spec["pipeline"].get("boundary_dtype") == "bf16" else 4
    return training["batch_size"] * training["sequence_length"] * model["n_embd"] * size


class Side:
    """One cluster of a kind: on loopback, or behind links."""

    def __init__(self, options, stages, device, link=None):
        self.link, self.network, self.cluster = link, None, None
        self.options, self.stages, self.device = options, stages, device

    def __enter__(self):
        workers = [Worker(memory="" if self.device.startswith("sim") else "2GiB", device=self.device)
                   for _ in range(self.stages)]
        listen = "127.0.0.1:0"
        try:
            if self.link is not None:
                rate, mbit, delay_ms = self.link
                self.network = network.Network(self.stages, rate, delay_ms)
                self.network.__enter__()
                listen = f"{self.network.address()}:0"
                for i, worker in enumerate(workers):
                    worker.prefix = self.network.prefix(i)
                    worker.listen = f"{self.network.address(i)}:0"
                    worker.args = ["--link", f"{mbit}Mbit/s,{delay_ms}ms"]
            self.cluster = Cluster(self.options, workers, listen=listen)
            self.cluster.__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.cluster is not None:
            self.cluster.__exit__()
        if self.network is not None:
            self.network.__exit__()

    def train(self, spec):
        """Seconds of each step but the first, and the job."""
        spec = {**spec, "data": self.cluster.tokens(20_000, vocabulary=256)}
        done = self.cluster.run(spec)
        return [step["seconds"] for step in done["steps"][1:]], done


def compute_seconds(done):
    """The busiest stage's, of a step."""
    return max(s["compute"] + s.get("recompute", 0) for s in done["steps"][-1]["stage_seconds"])


def least_seconds(plan):
    """Of a step, whatever the order of actions: for some stage, the first micro-batch's way to it through the stages
    before, its own work on all, and the last gradient's way back."""
    least, before = 0, 0
    for stage in plan["stage"]:
        work = stage["forward_s"] + stage.get("recompute_s", 0) + stage["backward_s"]
        before += stage.get("gradient_s", 0)
        least = max(least, before + plan["micro_batches"] * work)
        before += stage["forward_s"] + stage["backward_s"] + stage.get("activation_s", 0)
    return least


def calibrate(link):
    """(Mbit/s, round trip in ms) that a plain socket gets between two namespaces."""
    rate, _, delay_ms = link
    server = ("import socket,time\n"
              "s=socket.create_server(('0.0.0.0',5555)); c,_=s.accept(); c.setsockopt(6,1,1)\n"
              "for _ in range(5): c.sendall(c.recv(1))\n"
              "start=time.time(); n=0\n"
              "while d:=c.recv(1<<20): n+=len(d)\n"
              "print(n*8e-6/(time.time()-start))\n")
    client = ("import socket,sys,time\n"
              "for i in range(50):\n"
              "  try: s=socket.create_connection((sys.argv[1],5555)); break\n"
              "  except OSError: time.sleep(.05)\n"
              "s.setsockopt(6,1,1); trips=[]\n"
              "for _ in range(5): start=time.time(); s.sendall(b'x'); s.recv(1); trips.append(time.time()-start)\n"
              "start=time.time(); block=bytes(1<<17)\n"
              "while time.time()-start<1: s.sendall(block)\n"
              "print(1e3*sorted(trips)[2])\n")
    with network.Network(2, rate, delay_ms) as net:
        listening = subprocess.Popen([*net.prefix(1), sys.executable, "-c", server], stdout=subprocess.PIPE, text=True)
        try:
            asked = subprocess.run([*net.prefix(0), sys.executable, "-c", client, net.address(1)], capture_output=True,
                                   text=True, timeout=20)
            answer, _ = listening.communicate(timeout=20)
        finally:
            listening.kill()
        return float(answer), float(asked.stdout)


def run(options):
    why = network.missing()
    if why:
        for name in ("simulated pipelines at 1 Gbit/s of loopback", "small model at 1 Gbit/s of loopback"):
            yield Figure(name, None, "×", target=0.95, detail=why)
        return
    device = f"sim:flops={FLOPS / 1e12:g}T,memory=64GiB"
    steps = 2 if options.quick else 3
    if not options.quick:
        for link in (GIGABIT, SLOW):
            mbit, trip_ms = calibrate(link)
            yield Figure(f"plain socket at {link[0]} + {link[2]} ms", mbit, "Mbit/s", detail=f"round trip {trip_ms:.1f} ms")

    rows, ratios, base = [], [], None
    for stages, micro_batches, sides in [(2, 32, [(GIGABIT, "fp32")])] if options.quick else SIDES:
        spec = transformer(stages, steps, quick=options.quick, micro_batches=micro_batches)
        tokens = spec["training"]["batch_size"] * spec["training"]["sequence_length"]
        with Side(options, stages, device) as side:
            seconds, done = side.train(spec)
        free_s, planned_s = median(seconds), done["plan"]["step_s"]
        base = base or free_s
        case = f"K = {stages}, M = {micro_batches}"
        speed = base * micro_batches / MICRO_BATCHES
        rows.append([f"{case}, loopback", f"{PAPER[stages]:.1f}" if micro_batches == MICRO_BATCHES else "",
                     f"{speed / free_s:.2f}", f"{tokens / free_s:.0f}", "1", "1", f"{compute_seconds(done):.2f} s", ""])
        for link, dtype in sides:
            spec = transformer(stages, steps if link is GIGABIT and stages > 2 else 2, dtype, options.quick, micro_batches)
            with Side(options, stages, device, link) as side:
                seconds, done = side.train(spec)
                data = side.cluster.tokens(20_000, vocabulary=256)
                advice = side.cluster.plan({**spec, "data": data}).get("link_advice")
            transfer_s = boundary_bytes(spec) * 8e-6 / link[1]
            ratio, compute_s = free_s / median(seconds), compute_seconds(done)
            rows.append([f"{case}, {link[0]} + {link[2]} ms{', bf16' if dtype == 'bf16' else ''}", "",
                         f"{speed / median(seconds):.2f}", f"{tokens / median(seconds):.0f}", f"{ratio:.3f}",
                         f"{planned_s / done['plan']['step_s']:.3f}", f"{compute_s:.2f} s", f"{transfer_s:.2f} s"])
            if link is GIGABIT and transfer_s < compute_s:
                why = f"no schedule of this cut passes {planned_s / least_seconds(done['plan']):.3f}"
                if advice:
                    why += f"; the plan advises M = {advice['micro_batches']} of the same micro-batches"
                ratios.append((ratio, f"{case}, {dtype}", why))
    yield options.table(
        f"GPipe's Table 3 beside ours: Transformer-24 at {FLOPS / 1e12:g} TFLOP/s a worker, M = {MICRO_BATCHES} "
        "and more, throughput over K = 2, M = 32 on loopback",
        ["", "GPipe", "ours", "tokens/s", "of loopback", "by plan", "compute of a stage", "transfer"], rows)
    for ratio, name, why in ratios:
        yield Figure(f"simulated {name} at 1 Gbit/s of loopback", ratio, "×", target=None if options.quick else 0.95,
                     detail=why)
    yield from real(options)


def real(options):
    """Two real workers, a small model."""
    sides = {"loopback": (None, "fp32"), "1 Gbit/s": (GIGABIT, "fp32")}
    if not options.quick:
        sides |= {"100 Mbit/s": (SLOW, "fp32"), "100 Mbit/s, bf16": (SLOW, "bf16")}
    seconds = {name: [] for name in sides}  # of steps, those of one round beside one another
    losses, compute = {}, 0
    for i in range(min(options.rounds, 2)):
        names = list(sides)
        for name in names[i % len(names):] + names[:i % len(names)]:
            link, dtype = sides[name]
            spec = small(2, 2 if options.quick else 6, dtype, options.quick)
            with Side(options, 2, "cpu", link) as side:
                times, done = side.train(spec)
            seconds[name] += times
            losses[name] = done["steps"][-1]["loss"]
            compute = max(compute, compute_seconds(done))
    if losses["loopback"] != losses["1 Gbit/s"] or not math.isfinite(losses["loopback"]):
        raise BenchError(f"the link changed the loss: {losses}")
    spec = small(2, 1, quick=options.quick)
    tokens = spec["training"]["batch_size"] * spec["training"]["sequence_length"]
    free_s = median(seconds["loopback"])
    yield options.table(
        "A small model on two real workers (6 blocks, d = 384, T = 256, M = 8)",
        ["", "tokens/s", "of loopback", "transfer", "loss"],
        [[name, f"{tokens / median(values):.0f}", f"{free_s / median(values):.3f}",
          "" if sides[name][0] is None else
          f"{boundary_bytes(small(2, 1, sides[name][1], options.quick)) * 8e-6 / sides[name][0][1]:.3f} s",
          f"{losses[name]:.4f}"] for name, values in seconds.items()])
    ratios = [a / b for a, b in zip(seconds["loopback"], seconds["1 Gbit/s"], strict=True)]
    yield Figure("small model at 1 Gbit/s of loopback", median(ratios), "×", target=None if options.quick else 0.95,
                 detail=f"{spread(ratios)}; compute of a stage {compute:.2f} s a step")
