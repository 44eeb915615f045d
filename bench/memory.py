"""GPipe's Table 1: the largest model that trains, by number of workers of 512 MiB; predicted and measured bytes.

The model is the paper's Transformer an eighth as wide, with all its proportions: MLP 4 d, sequence d/2, vocabulary
16 d, 32 sequences a mini-batch, embedding and head untied, RMSProp (12 bytes a parameter: weight, gradient, mean
square). Each row's depth is the largest `headrace plan` accepts; it then trains one step, on real workers.

    naive-1      the whole mini-batch at once (M = 1), every activation kept
    pipeline-K   32 micro-batches of a sequence, 1F1B, activations recomputed

Measured is what the worker's arena held at its peak, kind by kind, and what the process grew by while it served the
job (VmHWM less what it had when idle; page by page from smaps: the arena, the heap, mapped files).
"""
import json
import pathlib
import threading
import time

from harness import BenchError, Figure
from harness.cluster import Cluster, Worker

WIDTH, BATCH = 256, 32
LIMIT_MIB = 512
KINDS = ("weights", "gradients", "optimizer", "stash", "workspace", "link")
# GPIPE.md, Table 1, Transformer: layers, parameters.
PAPER = {"naive-1": (3, 282.2e6), "pipeline-1": (13, 785.8e6), "pipeline-8": (103, 5.3e9)}
MIB = 2**20


def job(layers, stages, naive, data, width, batch):
    return {
        "name": f"memory-{'naive' if naive else 'pipeline'}-{stages}",
        "model": {"family": "gpt2", "vocab_size": 16 * width, "n_layer": layers, "n_embd": width, "n_head": 8,
                  "n_positions": width // 2, "tie_word_embeddings": False},
        "data": data,
        "training": {"steps": 1, "batch_size": batch, "micro_batches": 1 if naive else batch,
                     "sequence_length": width // 2, "optimizer": {"kind": "rmsprop", "learning_rate": 1e-4}},
        "pipeline": {"stages": stages, "schedule": "1f1b", "recompute": "never" if naive else "always"},
    }


def plan(cluster, spec, stages, limit_mib):
    """The plan, or None where it is refused for want of memory."""
    try:
        return cluster.plan(spec, "--workers", f"{stages}:{limit_mib}MiB")
    except BenchError as error:
        if "does not fit" in str(error) or "needs" in str(error):
            return None
        raise


def deepest(fits, least):
    """The largest n, from `least` on, for which fits(n) is not None, and what it gave."""
    low, high, found = least - 1, least, None
    while (result := fits(high)) is not None:
        low, high, found = high, 2 * high, result
    while high - low > 1:
        middle = (low + high) // 2
        result = fits(middle)
        if result is None:
            high = middle
        else:
            low, found = middle, result
    return low, found


class Watcher(threading.Thread):
    """What processes hold, by sort, where it was most: {pid: {"arena": bytes, "heap": …, "files": …, "total": …}}."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.pids, self.most, self.over = list(pids), {}, threading.Event()
        self.idle = {pid: resident(pid) for pid in self.pids}
        for pid in self.pids:
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")  # VmHWM starts again from here

    def run(self):
        while not self.over.wait(0.1):
            for pid in self.pids:
                try:
                    now = resident(pid)
                except FileNotFoundError:
                    return  # the cluster is gone
                if now["total"] > self.most.get(pid, {"total": -1})["total"]:
                    self.most[pid] = now

    def stop(self):
        self.over.set()
        self.join()


def resident(pid):
    """Bytes in memory. The arena is the mapping that asks for huge pages."""
    sums = {"arena": 0, "heap": 0, "files": 0, "shared": 0, "total": 0}
    name, rss = "", 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            name = fields[5] if len(fields) > 5 else ""
        elif fields[0] == "Rss:":
            rss = 1024 * int(fields[1])
        elif fields[0] == "VmFlags:":
            sort = ("arena" if "hg" in fields else "shared" if "sh" in fields and "wr" in fields
                    else "files" if name.startswith("/") else "heap")
            sums[sort] += rss
            sums["total"] += rss
    return sums


def total(memory):
    return sum(int(memory.get(kind, 0)) for kind in KINDS)


def measure(cluster, stages, spec):
    """Trains; for each stage its plan's bytes, the arena's peak and what its process grew by."""
    pids = [cluster.pid(i) for i in range(len(cluster.workers))]
    watcher = Watcher(pids)
    watcher.start()
    start = time.monotonic()
    done = cluster.run(spec)
    seconds = time.monotonic() - start
    peaks = {pid: cluster.peak_rss(i) for i, pid in enumerate(pids)}
    watcher.stop()
    measured = []
    for k, stage in enumerate(done["plan"]["stage"]):
        pid = pids[int(stage["worker"][1:])]
        idle = watcher.idle[pid]
        most = watcher.most.get(pid, idle)  # a tiny job may end before anybody looks
        measured.append({
            "predicted": total(stage["memory"]), "arena": total(done["peak_memory"][k]),
            "grown": peaks[pid] - idle["total"], "arena_rss": most["arena"] - idle["arena"],
            "heap": most["heap"] - idle["heap"], "files": most["files"] - idle["files"],
            "shared": most["shared"] - idle["shared"], "idle": idle["total"],
            "unplaced": peaks[pid] - most["total"]})
    if not done["steps"]:
        raise BenchError(f"{spec['name']} ended without a step: {done.get('message', '')}")
    return measured, seconds, done


def grown_by(m):
    """What a process grew by beyond the prediction, in words."""
    parts = {"pages of the arena": m["arena_rss"], "links' shared memory": m["shared"],
             "heap (gRPC, oneDNN)": m["heap"], "mapped files (libraries, tokens, the slice being uploaded)": m["files"],
             "between samples": m["unplaced"]}
    return f"{m['predicted'] / MIB:.1f} MiB predicted, grew by {m['grown'] / MIB:.1f}: " + ", ".join(
        f"{what} {size / MIB:.1f}" for what, size in parts.items() if abs(size) > MIB / 10)


def worst(measured, key):
    """The largest share by which `key` departs from the prediction, over the stages."""
    return max((abs(m[key] - m["predicted"]) / m["predicted"] for m in measured), default=0)


def run(options):
    width, batch, limit = (64, 8, 8) if options.quick else (WIDTH, BATCH, LIMIT_MIB)
    rows, parameters = [], {}
    table = []
    for name, stages, naive in [("naive-1", 1, True), ("pipeline-1", 1, False), ("pipeline-2", 2, False),
                                ("pipeline-4", 4, False), ("pipeline-8", 8, False)]:
        if options.quick and stages > 2:
            continue
        with Cluster(options, [Worker(memory=f"{limit}MiB")] * stages) as cluster:
            data = cluster.tokens(20_000, vocabulary=16 * width)

            def fits(layers, naive=naive, stages=stages, cluster=cluster, data=data):
                return plan(cluster, job(layers, stages, naive, data, width, batch), stages, limit)

            layers, accepted = deepest(fits, max(1, stages - 2))
            if accepted is None:
                raise BenchError(f"{name}: not even one layer fits")
            measured, seconds, done = measure(cluster, stages, job(layers, stages, naive, data, width, batch))
            refused = refusal(cluster, job(layers + 1, stages, naive, data, width, batch))
        parameters[name] = int(accepted["parameters"])
        paper = PAPER.get(name)
        table.append([
            name, f"{paper[0]} layers, {paper[1] / 1e6:.0f} M" if paper else "",
            f"{paper[1] / PAPER['naive-1'][1]:.1f} ×" if paper else "", str(layers),
            f"{parameters[name] / 1e6:.1f} M", f"{parameters[name] / parameters['naive-1']:.1f} ×",
            f"{12 * parameters[name] / (stages * limit * MIB):.0%}", f"{seconds:.0f} s"])
        for k, m in enumerate(measured):
            rows.append([name, k, *(f"{m[key] / MIB:.1f}" for key in
                                    ("predicted", "arena", "arena_rss", "shared", "heap", "files", "unplaced", "grown", "idle"))])
        yield Figure(f"{name} arena's peak off the prediction", 100 * worst(measured, "arena"), "%", target=2,
                     at_least=False, detail=f"{layers} layers, largest of {stages} stages; loss "
                                            f"{done['steps'][-1]['loss']:.3f}")
        yield Figure(f"{name} process's growth off the prediction", 100 * worst(measured, "grown"), "%", target=2,
                     at_least=False, detail=grown_by(max(measured, key=lambda m: m["grown"] / m["predicted"])))
        yield Figure(f"{name} refuses one layer more", int(refused), "", target=1, detail=f"{layers + 1} layers")
    yield options.table(
        f"GPipe's Table 1 beside ours (d = {width}, {batch} × {width // 2} tokens a step, {limit} MiB a worker)",
        ["", "GPipe", "of naive-1", "ours: layers", "parameters", "of naive-1", "of memory is 12 B × parameters",
         "job"], table)
    yield options.table("Bytes of each stage, MiB",
                        ["", "stage", "predicted", "arena's peak", "arena's pages", "shared (links)", "heap (gRPC, oneDNN)",
                         "mapped files", "between samples", "process grew", "idle process"], rows)
    last = "pipeline-2" if options.quick else "pipeline-8"
    yield Figure(f"{last} parameters over naive-1", parameters[last] / parameters["naive-1"], "×",
                 target=None if options.quick else 20, detail="GPipe: 18.8 × (Transformer), 22 × (AmoebaNet)")


def refusal(cluster, spec):
    """True if the cluster itself refuses the job for want of memory."""
    try:
        answer = json.loads(cluster.headrace("plan", cluster.write_job(spec), "--workers",
                                             f"{len(cluster.workers)}:{cluster.workers[0].memory}", "-o", "json"))
    except BenchError as error:
        return "does not fit" in str(error) or "needs" in str(error)
    return not answer
