"""Parser for the output of ``nsys stats``."""

import csv
import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics:
    """One table of ``nsys stats``.

    Attributes:
        report: name of the report, such as ``cuda_gpu_kern_sum``.
        title: title printed by nsys.
        rows: rows as values by column, as printed by nsys (MB are 10**6 bytes); may be empty.
    """

    report: str
    title: str
    rows: tuple[Mapping[str, str], ...]


def parse_statistics(text: str) -> tuple[Statistics, ...]:
    """Parse the output of ``nsys stats --format=csv``.

    Tables begin with `` ** Title (report_name):``; lines about progress and skipped reports are ignored.
    """
    tables: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("** ") and stripped.endswith("):"):
            tables.append((stripped[3:-2], []))
        elif tables and not stripped.startswith(("Processing [", "SKIPPED:", "Generating ")):
            tables[-1][1].append(line)
    return tuple(_table(heading, lines) for heading, lines in tables)


def _table(heading: str, lines: Sequence[str]) -> Statistics:
    title, _, report = heading.rpartition(" (")
    # Lines without a comma are messages, not rows.
    filled = [text for text in lines if "," in text]
    reader = csv.DictReader(filled)
    columns = reader.fieldnames or ()
    # Rows that are cut short have None in the missing columns.
    rows = [{name: row[name] or "" for name in columns} for row in reader]
    return Statistics(report=report, title=title, rows=tuple(rows))
