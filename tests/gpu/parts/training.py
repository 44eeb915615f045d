"""Whole jobs on real workers: the CPU's losses on the device, and the same bits however a job is split."""
import collections
import math

from harness.measure import BenchError

from parts import jobs
from parts.context import FAILED, SKIPPED, Result, judged, tail

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
    """'edges by cuda_ipc (6), grpc (2)'"""
    counts = collections.Counter(link["transport"] for link in done.get("links", []))
    return "edges by " + ", ".join(f"{name} ({count})" for name, count in sorted(counts.items())) if counts else "no links"


# Stages, transport, what else of the pipeline section.
SPLITS = [(1, "auto", {}), (1, "auto", {"recompute": "never"}), (2, "auto", {}), (2, "grpc", {"schedule": "gpipe"}),
          (4, "auto", {"recompute": "never"}), (4, "grpc", {}), (4, "cuda_ipc", {"schedule": "gpipe"})]
DRY_SPLITS = [(1, "auto", {}), (2, "auto", {}), (2, "grpc", {"schedule": "gpipe"})]
# Over several devices, where the machine has them.
DEVICE_SPLITS = [(2, "auto", {}), (2, "nccl", {}), (2, "cuda_ipc", {"schedule": "gpipe"})]
MAY_BE_MISSING = ("cuda_ipc", "nccl")  # a machine may not let processes share a device's memory, or lack NCCL


def identity(context):
    """Each job split in several ways over workers of one device, then of two: losses and weights to the last bit."""
    dry = context.size == "dry"
    families = ("gpt2",) if dry or context.size == "quick" else ("gpt2", "llama")
    kinds = [(family, precision) for family in families for precision in BOUNDS]
    first = {}
    with context.cluster([context.worker(share=0.08) for _ in range(2 if dry else 4)]) as cluster:
        for kind in kinds:
            for way in DRY_SPLITS if dry else SPLITS:
                yield split(context, cluster, kind, way, first)
        yield replayed(cluster, f"{kinds[0][0]}-{kinds[0][1]}")
    if context.num_devices < 2 or dry:
        return
    with context.cluster([context.worker(share=0.08, device=f"cuda:{i}") for i in range(2)]) as cluster:
        for kind in kinds:
            for way in DEVICE_SPLITS:
                yield split(context, cluster, kind, way, first, "two devices, ")


def split(context, cluster, kind, way, first, words=""):
    """One job. `first` keeps the bits that the first of each kind had, which all others must have."""
    (family, precision), (stages, transport, more) = kind, way
    words += " ".join([f"K={stages}", *([transport] if stages > 1 else []), *more.values()])
    name = f"{family} {precision}, {words}"
    try:
        done = cluster.run(jobs.small(context, family, precision, stages=stages, transport=transport, **more))
    except BenchError as error:
        text = str(error)[-300:]
        return Result(name, SKIPPED if transport in MAY_BE_MISSING and transport in text else FAILED, text)
    bits = (losses(done), done["weights_sha256"])
    want = first.setdefault(kind, bits)
    detail = transports(done) if stages > 1 else f"weights {bits[1][:12]}"
    if bits[0] != want[0]:
        detail += f"; losses differ by {distance(bits[0], want[0]):.1e}"
    elif bits[1] != want[1]:
        detail += f"; weights {bits[1][:12]} instead of {want[1][:12]}"
    return judged(name, bits == want and bool(bits[1]), detail)


def replayed(cluster, name):
    """`headrace verify` of the latest such job."""
    try:
        said = cluster.headrace("verify", name, timeout=60)
    except BenchError as error:
        return Result(f"headrace verify {name}", FAILED, str(error)[-300:])
    return judged(f"headrace verify {name}", True, tail(said, 1))
