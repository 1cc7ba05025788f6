"""What ``nsys stats`` prints, read back."""

import csv
import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics:
    """One table of ``nsys stats``.

    Attributes:
        report: its name, e.g. ``cuda_gpu_kern_sum``.
        title: what nsys calls it.
        rows: column to value, as nsys printed it (its MB are 10**6 bytes); empty where it had nothing to say.
    """

    report: str
    title: str
    rows: tuple[Mapping[str, str], ...]


def parse_statistics(text: str) -> tuple[Statistics, ...]:
    """Read what ``nsys stats --format=csv`` printed.

    Tables begin with `` ** Title (report_name):``; lines about progress and skipped reports are left out.
    """
    tables: list[tuple[str, list[str]]] = []
    for whole in text.splitlines():
        stripped = whole.strip()
        if stripped.startswith("** ") and stripped.endswith("):"):
            tables.append((stripped[3:-2], []))
        elif tables and not stripped.startswith(("Processing [", "SKIPPED:", "Generating ")):
            tables[-1][1].append(whole)
    return tuple(_table(heading, lines) for heading, lines in tables)


def _table(heading: str, lines: Sequence[str]) -> Statistics:
    title, _, report = heading.rpartition(" (")
    filled = [text for text in lines if "," in text]
    rows = csv.DictReader(filled)
    columns = rows.fieldnames or ()
    whole = [{name: row[name] or "" for name in columns} for row in rows]
    return Statistics(report=report, title=title, rows=tuple(whole))
