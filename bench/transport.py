"""Links between stages: shared memory and gRPC against sockets and a naive message, and what sends cost a stage."""
import dataclasses
import json
import subprocess

from harness import BenchError, Figure, interleave, median, spread
from harness.cluster import Cluster, Worker

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"64 KiB": 64 * KIB, "256 KiB": 256 * KIB, "1 MiB": MIB, "4 MiB": 4 * MIB, "64 MiB": 64 * MIB}
KINDS = {"shm": "shared memory, used in place", "unix": "gRPC, Unix socket", "tcp": "gRPC, TCP",
         "socket-unix": "plain Unix socket", "socket-tcp": "plain TCP socket", "naive": "naive `bytes` message, TCP"}
ACTION = "20ms"


def link(options, kind, size, seconds):
    """One run of link_bench: its JSON line."""
    done = subprocess.run([options.program("link_bench"), kind, str(size), str(seconds)],
                          capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise BenchError(f"link_bench {kind} {size}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def speeds(options, sizes, seconds):
    """{(kind, size name): [runs]}, every kind and size in each round."""
    sides = {(kind, name): lambda kind=kind, size=size: link(options, kind, size, seconds)
             for name, size in sizes.items() for kind in KINDS}
    return interleave(sides, options.rounds)


def column(runs, key, of):
    return [run[key] for run in runs[of]]


def ratio(runs, of, to):
    """Medians' ratio, and both sides in words."""
    ours, theirs = column(runs, "gb_per_s", of), column(runs, "gb_per_s", to)
    return median(ours) / median(theirs), f"{KINDS[of[0]]}, GB/s: {spread(ours)}; {KINDS[to[0]]}: {spread(theirs)}"


def speed_figures(runs, sizes):
    def against(name, of, to, target):
        value, detail = ratio(runs, of, to)
        return Figure(name, value, "×", target=target, detail=detail)

    for size in (s for s in ("256 KiB", "4 MiB", "64 MiB") if s in sizes):
        target = 0.45 if size == "256 KiB" else 0.6
        for path in ("unix", "tcp"):
            yield against(f"grpc_{path}_over_socket_{size.replace(' ', '')}", (path, size), (f"socket-{path}", size),
                          target)
    for size in (s for s in ("4 MiB", "64 MiB") if s in sizes):
        cpu = column(runs, "cpu_s_per_gb", ("unix", size))
        yield Figure(f"grpc_unix_cpu_{size.replace(' ', '')}", median(cpu), "CPU s/GB", target=0.5, at_least=False,
                     detail=f"both sides, {spread(cpu)}")
        yield against(f"shm_over_grpc_{size.replace(' ', '')}", ("shm", size), ("unix", size), 1.7)
    largest = list(sizes)[-1]
    figure = against("grpc_over_naive_" + largest.replace(" ", ""), ("tcp", largest), ("naive", largest), 10)
    roof, _ = ratio(runs, ("socket-tcp", largest), ("naive", largest))
    yield dataclasses.replace(figure, detail=f"{figure.detail}; a plain TCP socket is at {roof:.1f} ×")


def speed_table(options, runs, sizes):
    def cell(kind, size):
        speed, cpu = column(runs, "gb_per_s", (kind, size)), column(runs, "cpu_s_per_gb", (kind, size))
        return f"{median(speed):.2f} ({min(speed):.2f}–{max(speed):.2f}), {median(cpu):.2f}"

    return options.table("GB/s between two processes (range), CPU seconds of both a GB", ["", *sizes],
                         [[KINDS[kind], *(cell(kind, size) for size in sizes)] for kind in KINDS])


def beat_figure(options, size, seconds):
    runs = interleave({kind: lambda kind=kind: link(options, kind, size, seconds)
                       for kind in ("beat-idle", "beat-loaded")}, options.rounds)
    idle, loaded = ([run["median_ms"] for run in runs[kind]] for kind in ("beat-idle", "beat-loaded"))
    p90 = median([run["p90_ms"] for run in runs["beat-loaded"]])
    return Figure("beat_behind_64MiB_wait", median(loaded) - median(idle), "ms", target=1, at_least=False,
                  detail=f"round trip of 1 KiB beside 64 MiB tensors, ms: {spread(loaded)}, p90 {p90:.2f}; "
                         f"alone: {spread(idle)}")


def overlap_job(cluster, width, micro_batches, steps, transport):
    length = 1024
    return {"name": f"overlap-{transport}-{width}",
            "model": {"family": "gpt2", "vocab_size": 256, "n_layer": 2, "n_embd": width, "n_head": max(1, width // 64),
                      "n_positions": length, "tie_word_embeddings": False},
            "data": cluster.tokens(50_000, vocabulary=256),
            "training": {"steps": steps, "batch_size": micro_batches, "micro_batches": micro_batches,
                         "sequence_length": length, "optimizer": {"kind": "sgd", "learning_rate": 0.1}},
            "pipeline": {"stages": 2, "schedule": "1f1b", "recompute": "never", "transport": transport}}


def overlap_figures(options):
    micro_batches, steps, large = (4, 2, 256) if options.quick else (16, 4, 4096)
    workers = [Worker(memory="64GiB", device=f"sim:action={ACTION}")] * 2
    with Cluster(options, workers) as cluster:
        def seconds(width, transport):
            job = cluster.run(overlap_job(cluster, width, micro_batches, steps, transport))
            assert {link["transport"] for link in job["links"]} == {transport}, job["links"]
            return median([step["seconds"] for step in job["steps"][1:]])

        runs = interleave({"tiny": lambda: seconds(64, "shm"), "shm": lambda: seconds(large, "shm"),
                           "grpc": lambda: seconds(large, "grpc")}, options.rounds)
    tensor = f"{large * 4 * 1024 / MIB:.0f} MiB each way and micro-batch"
    for transport in ("shm", "grpc"):
        yield Figure(f"overlap_loss_{transport}", median(runs[transport]) / median(runs["tiny"]) - 1, "",
                     target=0.05, at_least=False,
                     detail=f"K = 2, M = {micro_batches}, {ACTION} an action, {tensor}: step s {spread(runs[transport])}; "
                            f"with 0.25 MiB: {spread(runs['tiny'])}")


def run(options):
    sizes = {"64 KiB": 64 * KIB, "4 MiB": 4 * MIB} if options.quick else SIZES
    seconds = 0.02 if options.quick else 0.2
    runs = speeds(options, sizes, seconds)
    yield speed_table(options, runs, sizes)
    yield from speed_figures(runs, sizes)
    yield beat_figure(options, MIB if options.quick else 64 * MIB, 0.05 if options.quick else 0.5)
    yield from overlap_figures(options)
