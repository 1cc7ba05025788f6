"""Grammar of tensor logs: regular expressions over bytes that accept the variations of different writers."""

import re

from fieldwatch.record.memory.tensor_log import LargeTensor

# A decimal number with optional exponent, or nan or inf with an optional sign.
_NUMBER = rb"([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)"
# The head of a snapshot, possibly torn before the end of its number. 18 digits always fit int64.
HEAD = re.compile(rb"Iteration(?: +(-?\d{1,18}) *\|)?")
SNAPSHOT = re.compile(
    rb"Iteration +(-?\d{1,18}) *\| *([^\r\n]*)\r?\n=+\r?\n"
    rb"Total Tensors: *(\d{1,18})\s+"
    rb"Allocated: *%(n)b MB \| Reserved: *%(n)b MB \| Fragmentation: *%(n)b *%%\s+"
    rb"Tensor Categories:[^\n]*\n((?:  [^\n]*\n)*)\s*"
    rb"Data Types:[^\n]*\n((?:  [^\n]*\n)*)\s*"
    rb"Large Tensors \(> *(\d{1,18}) *MB\): *(\d{1,18})[^\S\n]*\n"
    rb"(?:\s*Top *(\d{1,9}) largest:[^\n]*\n((?:  [^\n]*\n)*))?" % {b"n": _NUMBER}
)
"""One snapshot. Groups: iteration, time, tensors, allocated, reserved, fragmentation, categories, dtypes, threshold,
number of large tensors, number of listed ones, list of the largest tensors."""
SIZE = re.compile(rb"  (\S+) *: *%b MB" % _NUMBER)
# Slower than SIZE, but also matches names with spaces.
SPACED = re.compile(rb"^  (\S[^\n]*?) *: *%b MB" % _NUMBER, re.MULTILINE)
LARGE = re.compile(rb"^ *%b MB \| shape=([^\n]*?) \| dtype=([^\r\n]*)" % _NUMBER, re.MULTILINE)
# Local time without a time zone, as the original profiler writes it.
TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def sizes_of(block: bytes) -> dict[str, float]:
    """Return the sizes in MiB by name, parsed from the lines of a section."""
    return {name.decode(errors="replace"): float(value) for name, value in SPACED.findall(block)}


def largest_of(block: bytes) -> tuple[LargeTensor, ...]:
    """Return the large tensors parsed from the lines of their section."""
    fields = (
        (float(size), shape.decode(errors="replace"), dtype.decode(errors="replace").strip())
        for size, shape, dtype in LARGE.findall(block)
    )
    return tuple(LargeTensor(size=size, shape=shape, dtype=dtype) for size, shape, dtype in fields)
