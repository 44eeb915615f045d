"""A figure, its target, and how both are printed."""
import dataclasses
import json


@dataclasses.dataclass
class Figure:
    name: str
    value: float | None  # None: could not be measured; detail says why
    unit: str = ""
    target: float | None = None
    at_least: bool = True  # False: the target is a maximum
    detail: str = ""

    @property
    def met(self):
        if self.target is None or self.value is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def columns(self):
        target = "" if self.target is None else f"{'≥' if self.at_least else '≤'} {number(self.target)}"
        verdict = {True: "met", False: "MISSED", None: "" if self.target is None else "not measured"}[self.met]
        value = "—" if self.value is None else f"{number(self.value)} {self.unit}".rstrip()
        return [self.name, value, target, verdict, self.detail]


@dataclasses.dataclass
class Table:
    title: str
    header: list
    rows: list

    def __str__(self):
        return f"\n{self.title}\n" + markdown(self.header, self.rows)


def number(value):
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def markdown(header, rows):
    lines = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths)) + " |" for line in lines)


class TextPrinter:
    """For people: each figure as it comes, and a table of all at the end."""

    def __init__(self):
        self.rows = []
        self.bench = ""

    def begin(self, bench):
        self.bench = bench
        print(f"\n## {bench}", flush=True)

    def show(self, item):
        if isinstance(item, Figure):
            self.rows.append([self.bench, *item.columns()])
            print("  " + " · ".join(filter(None, item.columns())), flush=True)
        else:
            print(item, flush=True)

    def summary(self):
        print("\n" + markdown(["bench", "figure", "value", "target", "verdict", "detail"], self.rows))


class JsonPrinter:
    """For programs: a JSON line a figure or table."""

    def begin(self, bench):
        self.bench = bench

    def show(self, item):
        line = {"bench": self.bench, **dataclasses.asdict(item)}
        if isinstance(item, Figure):
            line["met"] = item.met
        print(json.dumps(line, ensure_ascii=False), flush=True)
