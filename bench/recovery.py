"""From a killed worker to the first new step: detection, re-plan, load, replay; and what a checkpoint costs a step."""
import json
import os
import signal
import statistics
import time

from harness import BenchError, Figure
from harness.cluster import Cluster, Worker

# GPT-2 small: 124 M parameters.
SMALL = {"family": "gpt2", "vocab_size": 50257, "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024}
TINY = {"family": "gpt2", "vocab_size": 256, "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 64}
EVERY = 20
PARTS = [("detection", "failed_unix_s", "detected_unix_s"), ("re-plan", "detected_unix_s", "planned_unix_s"),
         ("load", "planned_unix_s", "loaded_unix_s"), ("replay", "loaded_unix_s", "replayed_unix_s")]
PATIENCE_S = 300


def job(cluster, options, steps, checkpoint, stages=2):
    model = TINY if options.quick else SMALL
    return {
        "name": "recovery", "model": model, "data": cluster.tokens(200_000, vocabulary=model["vocab_size"]),
        "training": {"steps": steps, "batch_size": 4, "micro_batches": 4, "sequence_length": 64,
                     "optimizer": {"kind": "adamw", "learning_rate": 1e-4}},
        "pipeline": {"stages": stages, "schedule": "1f1b", "recompute": "never"},
        "checkpoint": {"every_minutes": 0, **checkpoint},
    }


def workers(count):
    return [Worker(memory="6GiB", threads=1) for _ in range(count)]


def await_job(cluster, name, condition):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = json.loads(cluster.headrace("describe", name, "-o", "json"))
        if condition(found):
            return found
        if found["state"] in ("failed", "cancelled", "done") or time.monotonic() > deadline:
            raise BenchError(f"the job is {found['state']} at step {found.get('step')}: {found.get('message')}")
        time.sleep(0.05)


def kill_and_recover(options, spares):
    """The recovery, as the job tells it, from a snapshot a few steps back; the killed worker comes not back."""
    checkpoint = {"every_steps": 0, "replicate": "neighbour", "replicate_every": 2}
    with Cluster(options, workers(2 + spares)) as cluster:
        name = json.loads(cluster.headrace("submit", cluster.write_job(job(cluster, options, 100_000, checkpoint)), "-o",
                                           "json", timeout=120))["job_id"]
        found = await_job(cluster, name, lambda j: j.get("step", 0) >= 7)
        victim = found["placement"][-1]["worker"]
        killed_at = time.time()
        os.kill(cluster.pid(int(victim.removeprefix("w"))), signal.SIGKILL)
        found = await_job(cluster, name, lambda j: j.get("recoveries") and j["recoveries"][-1].get("replayed_unix_s"))
        recovery = found["recoveries"][-1]
        cluster.headrace("cancel", name)
        return {**recovery, "failed_unix_s": killed_at}


def recovery_figures(options, spares, where):
    rounds = [kill_and_recover(options, spares) for _ in range(options.rounds)]
    totals = [each["replayed_unix_s"] - each["failed_unix_s"] for each in rounds]
    replays = [each["replayed_unix_s"] - each["loaded_unix_s"] for each in rounds]
    detail = (f"{where}; {rounds[0].get('source')}, {statistics.median(e['lost_step'] - e['from_step'] for e in rounds):.0f} "
              "steps replayed")
    name = "spare" if spares else "fewer"
    yield Figure(f"recovery_{name}_without_replay",
                 statistics.median(total - replay for total, replay in zip(totals, replays)), "s",
                 target=None if options.quick else 5, at_least=False, detail=f"kill to all stages ready; {detail}")
    for part, since, until in PARTS:
        yield Figure(f"recovery_{name}_{part}", statistics.median(each[until] - each[since] for each in rounds), "s")
    yield Figure(f"recovery_{name}_total", statistics.median(totals), "s", detail="kill to the first step not done before")


def step_seconds(cluster, options, checkpoint):
    done = cluster.run(job(cluster, options, 2 * EVERY + 1, checkpoint), timeout=900)
    return statistics.mean(step["seconds"] for step in done["steps"][1:])


def run(options):
    yield from recovery_figures(options, 0, "two workers of one machine, then one" if not options.quick else "quick")
    yield from recovery_figures(options, 1, "two workers and a spare one of one machine" if not options.quick else "quick")
    plain, kept = [], []
    with Cluster(options, workers(2)) as cluster:
        for _ in range(options.rounds):
            plain.append(step_seconds(cluster, options, {"replicate": "off"}))
            kept.append(step_seconds(cluster, options, {"every_steps": EVERY, "replicate": "off"}))
    yield Figure("checkpoint_cost", 100 * (statistics.median(kept) / statistics.median(plain) - 1), "% of a step",
                 target=None if options.quick else 5, at_least=False,
                 detail=f"one checkpoint every {EVERY} steps, mean of {2 * EVERY} steps; without: "
                        f"{statistics.median(plain):.3g} s a step")
