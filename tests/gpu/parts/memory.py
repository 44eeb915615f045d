"""What the plan says a stage takes, beside what it took; and what a worker refuses."""
import subprocess
import threading

from harness.measure import BenchError

from parts import jobs
from parts.context import FAILED, MEASURED, Result, judged, tail

KINDS = ("weights", "gradients", "optimizer", "stash", "workspace", "link")
BOUND = 0.02
MIB = 2**20


def used_mib(index):
    """Of the device, by everybody; None where nvidia-smi does not say."""
    try:
        done = subprocess.run(["nvidia-smi", "-i", str(index), "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=10)
        return float(done.stdout.strip().splitlines()[0])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None


class Watcher(threading.Thread):
    """The most that is used of the device while it runs."""

    def __init__(self, index):
        super().__init__(daemon=True)
        self.index, self.over, self.most = index, threading.Event(), used_mib(index)

    def run(self):
        while self.most is not None and not self.over.wait(0.2):
            self.most = max(self.most, used_mib(self.index) or 0)

    def stop(self):
        self.over.set()
        self.join()
        return self.most


def total(memory):
    return sum(int(memory.get(kind, 0)) for kind in KINDS)


def predicted(context):
    """Arena's peak against the plan, stage by stage; and the device's growth, which has each process's context too."""
    for stages in (1, 2):
        job = jobs.gpt2(context, "124M", 3, 8, 4, stages=stages)
        name = f"GPT-2 124M bf16, K={stages}"
        before = used_mib(context.device.index) if context.size != "dry" else None
        with context.cluster([context.worker(share=0.4)] * stages) as cluster:
            watcher = Watcher(context.device.index) if before is not None else None
            if watcher:
                watcher.start()
            try:
                done = cluster.run(job)
            except BenchError as error:
                yield Result(name, FAILED, str(error)[-300:])
                continue
            finally:
                most = watcher.stop() if watcher else None
        plan = [total(stage["memory"]) for stage in done["plan"]["stage"]]
        peaks = [total(peak) for peak in done["peak_memory"]]
        off = max(abs(peak - said) / said for peak, said in zip(peaks, plan, strict=True))
        yield judged(name + ", arena beside plan", off <= BOUND,
                     f"bound {BOUND:.0%}; predicted {', '.join(f'{p / MIB:.1f}' for p in plan)} MiB, "
                     f"peak {', '.join(f'{p / MIB:.1f}' for p in peaks)}", value=100 * off, unit="%")
        if most is not None:
            beyond = most - before - sum(plan) / MIB
            yield Result(name + ", device beyond plan", MEASURED,
                         f"grew by {most - before:.0f} MiB: {stages} CUDA context(s), modules, cuBLASLt",
                         value=beyond / stages, unit="MiB a worker")


# Command-line flags, and a word that the refusal must have.
REFUSALS = [(["--device", "cuda:99"], "99"), (["--device", "cuda:x"], "cuda:x"), (["--device", "gpu"], "cuda:N")]


def errors(context):
    """What cannot work is refused at once, in words, and leaves a worker that others can use."""
    for flags, word in REFUSALS:
        command = [context.options.program("headrace-worker"), "--coordinator", "127.0.0.1:9", "--listen", "127.0.0.1:0",
                   "--data-dir", context.work / "refused", *flags]
        try:
            done = context.run(command, limit=20)
        except subprocess.TimeoutExpired:
            yield Result(" ".join(flags), FAILED, "was not refused within 20 s")
            continue
        yield judged(" ".join(flags), done.returncode not in (0, -6, -11) and word in done.stdout, tail(done.stdout, 1))
    yield from too_large(context)


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
