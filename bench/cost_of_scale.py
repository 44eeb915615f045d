"""What size costs: planning 10,000 layers over 1,000 workers, simulating a schedule, 1,000 workers' heartbeats."""
import json
import subprocess
import time

from harness import BenchError, Figure
from harness.cluster import Cluster


def plan_figures(options):
    arguments = (["--layers", "200", "--workers", "20", "--micro-batches", "16", "--simulated-stages", "20",
                  "--simulated-micro-batches", "100", "--rounds", "1"] if options.quick else [])
    done = subprocess.run([options.program("plan_scale"), *arguments], capture_output=True, text=True, timeout=200)
    if done.returncode != 0:
        raise BenchError(f"plan_scale ended with {done.returncode}: {done.stderr[-2000:]}")
    seconds = json.loads(done.stdout)
    detail = "10,000 layers, 1,000 workers, K = 1,000 (auto: any), M = 128, 1F1B, recompute: always; processor time"
    if options.quick:
        detail = "quick: 200 layers, 20 workers"
    for name, workers in (("equal", "equal workers"), ("two_kinds", "two kinds of workers"),
                          ("unequal", "no two workers alike"),
                          ("measured", "no two workers alike, their layers measured")):
        yield Figure(f"plan_{name}", seconds[f"{name}_s"], "s", target=None if options.quick else 1, at_least=False,
                     detail=f"{workers}: {detail}")
    for name, workers in (("auto", "equal workers"), ("auto_unequal", "no two workers alike")):
        yield Figure(f"plan_{name}", seconds[f"{name}_s"], "s", detail=f"stages: auto, {workers}; {detail}")
    yield Figure("simulate", seconds["simulate_s"], "s", target=None if options.quick else 5, at_least=False,
                 detail="K = 1,000, M = 4,000, 1F1B: 8 million actions" if not options.quick else "quick: K = 20")


def heartbeats(options, workers, channels, seconds):
    """The coordinator's share of a core while so many registered workers beat, and what the load says."""
    with Cluster(options, []) as cluster:
        load = subprocess.Popen(
            [options.program("heartbeat_load"), "--coordinator", cluster.address, "--workers", str(workers),
             "--channels", str(channels), "--seconds", str(seconds + 3)], stdout=subprocess.PIPE, text=True)
        try:
            if load.stdout.readline().strip() != "ready":
                raise BenchError("heartbeat_load could not register its workers")
            before, start = cluster.cpu_seconds("coordinator"), time.monotonic()
            time.sleep(seconds - 0.5)
            share = (cluster.cpu_seconds("coordinator") - before) / (time.monotonic() - start)
            said = json.loads(load.stdout.readline())
        finally:
            load.kill()
            load.wait()
    if said["failed"]:
        raise BenchError(f"{said['failed']} heartbeats failed")
    return share, said


def run(options):
    yield from plan_figures(options)
    for channels in ([4] if options.quick else [16, 1000]):
        workers = 50 if options.quick else 1000
        share, said = heartbeats(options, workers, channels, 2 if options.quick else 21)
        yield Figure(f"heartbeats_{workers}_workers_{channels}_connections", 100 * share, "% of a core",
                     target=10 if channels == 16 else None, at_least=False,
                     detail=f"idle ones: {said['beats_per_second']:.0f} a second, answered in {said['median_ms']:.2f} ms "
                            f"(99 %: {said['p99_ms']:.2f})")
