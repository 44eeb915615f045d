"""What a worker refuses, and what becomes of a job whose worker is killed."""
import json
import os
import signal
import subprocess
import time

from harness.measure import BenchError

from parts import jobs
from parts.context import FAILED, Result, judged, tail

# Command-line flags, and a word that the refusal must have.
REFUSALS = [(["--device", "cuda:99"], "99"), (["--device", "cuda:x"], "cuda:x"), (["--device", "gpu"], "cuda:N")]
OF_A_DEVICE = [(["--device", "cuda:0", "--memory-limit", "100TiB"], "are free")]


def errors(context):
    """What cannot work is refused at once, in words, and leaves a worker that others can use."""
    for flags, word in REFUSALS + (OF_A_DEVICE if context.kind == "cuda" else []):
        command = [context.options.program("headrace-worker"), "--coordinator", "127.0.0.1:9", "--listen", "127.0.0.1:0",
                   "--data-dir", context.work / "refused", *flags]
        try:
            done = context.run(command, limit=20)
        except subprocess.TimeoutExpired:
            yield Result(" ".join(flags), FAILED, "was not refused within 20 s")
            continue
        yield judged(" ".join(flags), done.returncode not in (0, -6, -11) and word in done.stdout, tail(done.stdout, 1))
    yield from too_large(context)
    yield from killed(context)


def too_large(context):
    """A job that does not fit is refused by the plan, and the next one trains."""
    small = jobs.small(context, "gpt2", "fp32")
    large = jobs.small(context, "gpt2", "fp32")
    large["model"].update(n_embd=16384, n_head=128, n_layer=96)
    with context.cluster([context.worker(share=0.08)]) as cluster:
        try:
            cluster.run(large, timeout=60)
            yield Result("a job that does not fit", FAILED, "was accepted")
        except BenchError as error:
            text = str(error)
            yield judged("a job that does not fit", "fit" in text or "needs" in text, tail(text, 2))
        done = cluster.run(small)
        yield judged("the same worker afterwards", len(done["steps"]) == small["training"]["steps"],
                     f"loss {done['steps'][-1]['loss']:.4f}")


def killed(context):
    """A worker that is killed in a step is named within seconds, and the other one trains on."""
    job = jobs.small(context, "gpt2", "fp32", stages=2)
    job["training"]["steps"] = 1_000_000
    job["recovery"] = {"restart": "off"}  # it would go on with the other worker
    with context.cluster([context.worker(share=0.08)] * 2) as cluster:
        name = json.loads(cluster.headrace("submit", cluster.write_job(job), "-o", "json"))["job_id"]
        while not json.loads(cluster.headrace("describe", name, "-o", "json")).get("step"):
            time.sleep(0.1)
        os.kill(cluster.pid(1), signal.SIGKILL)
        start = time.monotonic()
        try:
            cluster.headrace("watch", name, timeout=30)
            yield Result("a worker killed in a step", FAILED, "its job went on")
        except BenchError as error:
            yield judged("a worker killed in a step", "w1" in str(error), tail(str(error), 1),
                         value=time.monotonic() - start, unit="s")
        done = cluster.run(jobs.small(context, "gpt2", "fp32"))
        yield judged("the other worker afterwards", bool(done["weights_sha256"]), f"loss {done['steps'][-1]['loss']:.4f}")
