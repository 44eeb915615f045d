"""What the plan says a stage takes, beside what it took."""
import subprocess
import threading

from harness.measure import BenchError

from parts import jobs
from parts.context import FAILED, MEASURED, Result, judged

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
