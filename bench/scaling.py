"""GPipe's Table 2 beside ours: throughput over K stages and M micro-batches on simulated devices; early recompute."""
import statistics
import time

from harness import Figure
from harness.cluster import Cluster, Worker

# Huang et al., arXiv 1811.06965, Table 2: the Transformer of 48 layers, normalised to K = 2, M = 1.
PAPER = {(2, 1): 1, (4, 1): 1.07, (8, 1): 1.3, (2, 4): 1.7, (4, 4): 3.2, (8, 4): 4.8,
         (2, 32): 1.8, (4, 32): 3.4, (8, 32): 6.3}
SCHEDULE = "gpipe"


def bound(stages, micro_batches):
    """Throughput of K stages in those of one that does all their work: M·K / (M + K − 1)."""
    return micro_batches * stages / (micro_batches + stages - 1)


def job(cluster, stages, micro_batches, steps, recompute="never"):
    """Boundaries of 64 KiB, which really travel; a layer or more a stage, whose times are declared."""
    return {
        "name": f"k{stages}-m{micro_batches}",
        "model": {"family": "gpt2", "vocab_size": 256, "n_layer": 62, "n_embd": 128, "n_head": 4, "n_positions": 128,
                  "tie_word_embeddings": False},
        "data": cluster.tokens(100_000, vocabulary=256),
        "training": {"steps": steps, "batch_size": micro_batches, "micro_batches": micro_batches,
                     "sequence_length": 128, "optimizer": {"kind": "sgd", "learning_rate": 0.1}},
        "pipeline": {"stages": stages, "schedule": SCHEDULE, "recompute": recompute},
    }


def simulated(count, device):
    return [Worker(memory=None, device=device, listen="unix") for _ in range(count)]


def step_seconds(done):
    """Median of all steps but the first, which opens connections; the end-of-step exchange is in each."""
    return statistics.median(step["seconds"] for step in done["steps"][1:])


class Scaling:
    def __init__(self, options):
        self.options = options
        self.share = {}  # (K, M): measured share of the bound
        self.coordinator = 0.0
        self.workers = 0.0

    def run(self, action_ms, all_stages, all_micro_batches, steps):
        with Cluster(self.options, simulated(max(all_stages), f"sim:action={action_ms}ms")) as cluster:
            for stages in all_stages:
                for micro_batches in all_micro_batches:
                    ideal = (micro_batches + stages - 1) * 2 * action_ms / 1e3
                    measured = step_seconds(self.measure(cluster, stages, micro_batches, steps))
                    self.share[stages, micro_batches] = ideal / measured

    def measure(self, cluster, stages, micro_batches, steps):
        before, start = cluster.cpu_seconds("coordinator"), time.monotonic()
        workers = sum(cluster.cpu_seconds(i) for i in range(len(cluster.workers)))
        done = cluster.run(job(cluster, stages, micro_batches, steps))
        seconds = time.monotonic() - start
        if stages * micro_batches >= 32 * 32:
            self.coordinator = max(self.coordinator, (cluster.cpu_seconds("coordinator") - before) / seconds)
            used = sum(cluster.cpu_seconds(i) for i in range(len(cluster.workers))) - workers
            self.workers = max(self.workers, used / seconds)
        return done

    def rows(self, all_stages, all_micro_batches):
        for micro_batches in all_micro_batches:
            row = [f"M = {micro_batches}"]
            for stages in all_stages:
                if stages <= 8:
                    row.append(PAPER.get((stages, micro_batches), ""))
                if (stages, micro_batches) in self.share:
                    share = self.share[stages, micro_batches]
                    row.append(f"{share * bound(stages, micro_batches):.2f} ({share:.3f})")
                else:
                    row.append("")
            yield row


def early_recompute(options, stages, micro_batches, unit_ms, steps):
    """Step time in units of a forward, with F = R = 1 and B = 2."""
    device = f"sim:action={unit_ms}ms,backward={2 * unit_ms}ms"
    with Cluster(options, simulated(stages, device)) as cluster:
        return [step_seconds(cluster.run(job(cluster, stages, m, steps, "always"))) * 1e3 / unit_ms
                for m in micro_batches]


def run(options):
    scaling = Scaling(options)
    if options.quick:
        all_stages, all_micro_batches = [2, 4], [1, 4]
        scaling.run(2, all_stages, all_micro_batches, 2)
    else:
        all_stages, all_micro_batches = [2, 4, 8, 16, 32], [1, 4, 32, 128]
        scaling.run(20, all_stages, [1, 4, 32], 6)
        scaling.run(10, all_stages, [128], 6)
    header = ["throughput ÷ one stage's"]
    for stages in all_stages:
        header += [f"paper, K = {stages}"] * (stages <= 8) + [f"ours, K = {stages}"]
    yield options.table(
        "GPipe's Table 2 (Transformer, relative to K = 2, M = 1) beside ours, and in brackets ours as a share of "
        "M·K/(M+K−1); 20 ms an action, at M = 128 10 ms", header, list(scaling.rows(all_stages, all_micro_batches)))
    if options.quick:
        yield Figure("share_of_bound_k4_m4", scaling.share[4, 4], detail="quick: 2 ms an action")
        return
    detail = "median of 5 steps of 20 ms an action, end-of-step exchange included"
    yield Figure("share_of_bound_k8_m32", scaling.share[8, 32], target=0.98, detail=detail + "; the paper: 0.96")
    yield Figure("share_of_bound_k32_m32", scaling.share[32, 32], target=0.95, detail=detail)
    yield Figure("coordinator_cpu_k32", 100 * scaling.coordinator, "% of a core", target=2, at_least=False,
                 detail=f"the most of any job with K = 32; its 32 workers together took {100 * scaling.workers:.0f} %")
    units = early_recompute(options, 8, [32, 8], 20, 6)
    for name, value, ideal in (("m32", units[0], 149), ("m8", units[1], 53)):
        yield Figure(f"early_recompute_k8_{name}", value / ideal, "× ideal", target=1.01, at_least=False,
                     detail=f"{value:.1f} of {ideal} units of 20 ms; F = R = 1, B = 2, recompute: always")
