"""Whole jobs on real workers: the CPU's losses on the device, and the same bits however a job is split."""
import math

from harness.measure import BenchError

from parts import jobs
from parts.context import FAILED, SKIPPED, Result, judged

BOUNDS = {"fp32": 1e-5, "bf16": 1e-3}  # of each step's loss, relative


def losses(done):
    return [step["loss"] for step in done["steps"]]


def distance(ours, theirs):
    """The largest relative difference of two runs' losses; infinite where one has not finished or is no number."""
    if not ours or len(ours) != len(theirs) or not all(map(math.isfinite, [*ours, *theirs])):
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


def on_cpu(job):
    """The same job where no processor multiplies bf16 by itself."""
    emulated = {**job["training"], "bf16_emulate": True}
    return {**job, "training": emulated} if job["training"]["precision"] == "bf16" else job


def parity(context):
    """A CPU worker and a CUDA worker train the same job; then one pipeline of both does."""
    cpu_worker = context.worker(device="cpu", threads=1 if context.size == "dry" else 4)
    with context.cluster([cpu_worker]) as cpu, context.cluster([context.worker()]) as cuda:
        for family in ("gpt2", "llama"):
            for precision in BOUNDS:
                job = jobs.small(context, family, precision)
                want = losses(cpu.run(on_cpu(job)))
                yield beside(f"{family} {precision}, CUDA beside CPU", precision, want, cuda, job)
                if (family, precision) == ("gpt2", "fp32"):
                    wanted_of_mixed = want
    job = jobs.small(context, "gpt2", "fp32", stages=2)
    with context.cluster([cpu_worker, context.worker()]) as both:
        yield beside("gpt2 fp32, a CPU stage and a CUDA stage", "fp32", wanted_of_mixed, both, job)


def beside(name, precision, want, cluster, job):
    """`job` on `cluster`, its losses held to `want`."""
    try:
        done = cluster.run(job)
    except BenchError as error:
        return Result(name, FAILED, str(error)[-300:])
    off, bound = distance(losses(done), want), BOUNDS[precision]
    detail = f"bound {bound:.0e}; {len(want)} steps, loss {want[0]:.4f} → {want[-1]:.4f}"
    if len(done["plan"]["stage"]) > 1:
        detail += "; " + transports(done)
    return judged(name, off <= bound, detail, value=off, unit="relative")


def transports(done):
    """'0→1 cuda_ipc, 1→0 cuda_ipc'"""
    return ", ".join(f"{link.get('from_stage', 0)}→{link.get('to_stage', 0)} {link['transport']}"
                     for link in done.get("links", [])) or "no links"


# Stages, transport, what else of the pipeline section.
SPLITS = [(1, "auto", {}), (1, "auto", {"recompute": "never"}), (2, "auto", {}), (2, "grpc", {"schedule": "gpipe"}),
          (4, "auto", {"recompute": "never"}), (4, "grpc", {}), (4, "cuda_ipc", {"schedule": "gpipe"})]
DRY_SPLITS = [(1, "auto", {}), (2, "auto", {}), (2, "grpc", {"schedule": "gpipe"})]


def identity(context):
    """Each job split in several ways over workers of one device: losses and weights to the last bit."""
    dry = context.size == "dry"
    workers = 2 if dry else 4
    families = ("gpt2",) if dry or context.size == "quick" else ("gpt2", "llama")
    with context.cluster([context.worker(share=0.08) for _ in range(workers)]) as cluster:
        for family in families:
            for precision in ("fp32", "bf16"):
                yield from split(context, cluster, family, precision, DRY_SPLITS if dry else SPLITS)


def split(context, cluster, family, precision, splits):
    first = None
    for stages, transport, more in splits:
        words = " ".join([f"K={stages}", transport if stages > 1 else "", *more.values()])
        name = f"{family} {precision}, {' '.join(words.split())}"
        job = jobs.small(context, family, precision, stages=stages, transport=transport, **more)
        try:
            done = cluster.run(job)
        except BenchError as error:
            text = str(error)[-300:]
            # A machine may not let processes share device memory; the plan says so and refuses.
            yield Result(name, SKIPPED if transport == "cuda_ipc" and "cuda_ipc" in text else FAILED, text)
            continue
        bits = (losses(done), done["weights_sha256"])
        if first is None:
            first = bits
        same = bits == first and bool(bits[1])
        detail = transports(done) if stages > 1 else f"weights {bits[1][:12]}"
        if bits[0] != first[0]:
            detail += f"; losses differ by {distance(bits[0], first[0]):.1e}"
        elif not same:
            detail += f"; weights {bits[1][:12]} instead of {first[1][:12]}"
        yield judged(name, same, detail)
