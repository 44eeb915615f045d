"""What benches share: figures with targets, sides measured in turn, clusters of real processes."""
from harness.figure import Figure, JsonPrinter, Table, TextPrinter
from harness.measure import BenchError, Options, interleave, machine, median, spread

__all__ = ["BenchError", "Figure", "JsonPrinter", "Options", "Table", "TextPrinter", "interleave", "machine",
           "median", "spread"]
