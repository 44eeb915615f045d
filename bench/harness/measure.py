"""Sides in turn, medians, and what machine this is."""
import dataclasses
import os
import pathlib
import statistics
import time


class BenchError(Exception):
    """Why a bench cannot run, and what to do: printed as it is."""


@dataclasses.dataclass
class Options:
    build: pathlib.Path  # folder with bin/ and bench/
    rounds: int = 5
    quick: bool = False

    def table(self, title, header, rows):
        from harness.figure import Table
        return Table(title, header, rows)

    def program(self, name):
        """A program of ours: from bin/ or bench/ of the build."""
        for folder in ("bin", "bench"):
            path = self.build / folder / name
            if path.exists():
                return str(path)
        raise BenchError(f"{name} is not built: cmake --preset release -DHEADRACE_BUILD_BENCH=ON && "
                         "cmake --build --preset release")


def interleave(sides, rounds):
    """Calls each side once a round, in turn and each round from another one on: {name: [values]}."""
    names = list(sides)
    values = {name: [] for name in names}
    for i in range(rounds):
        for name in names[i % len(names):] + names[:i % len(names)]:
            values[name].append(sides[name]())
    return values


def median(values):
    return statistics.median(values)


def spread(values):
    """'median 1.31 (1.28–1.35, n = 5)'"""
    return f"median {median(values):.3g} ({min(values):.3g}–{max(values):.3g}, n = {len(values)})"


def timed(call, *arguments):
    start = time.monotonic()
    call(*arguments)
    return time.monotonic() - start


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "CPU")
    flags = next((line.split() for line in info.splitlines() if line.startswith("flags")), [])
    isa = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} × {model} ({', '.join(isa)}), {gib:.0f} GiB, Linux {os.uname().release}"
