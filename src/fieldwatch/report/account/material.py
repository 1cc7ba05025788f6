"""Data that panels are built from, and constructors of the kinds of panels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwatch.record import Catalogue, History, Manifest, tags
from fieldwatch.report.account.run_status import RunStatus
from fieldwatch.report.account.series import matching

Panel = dict[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Material:
    """All data about a run.

    Attributes:
        folder: run folder.
        manifest: content of run.json.
        history: rows and events.
        events: all valid events, in order.
        status: state and progress of the run.
        catalogue: meanings of the metrics.
        series: series of the account, by name; panels may add derived ones.
    """

    folder: Path
    manifest: Manifest
    history: History
    events: Sequence[Mapping[str, Any]]
    status: RunStatus
    catalogue: Catalogue
    series: dict[str, dict[str, Any]]

    def named(self, *starts: str, end: str = "") -> list[str]:
        """Return the names of the series that start with any of ``starts`` and end with ``end``."""
        return [name for name in matching(self.series, *starts) if name.endswith(end)]

    def of_family(self, family: tags.Family) -> list[str]:
        """Return the names of the series of a family of tags."""
        return list(family.parts(self.series).values())

    def of_kind(self, *kinds: str) -> list[Mapping[str, Any]]:
        """Return the events of the given kinds."""
        return [event for event in self.events if event["kind"] in kinds]


def lines(
    title: str, names: Sequence[str], about: str, *, labels: Mapping[str, str] | None = None, log: bool = False
) -> Panel:
    """Return a panel with several series on one chart."""
    return {
        "id": slug(title),
        "title": title,
        "kind": "lines",
        "about": about,
        "series": list(names),
        "log": log,
        "labels": dict(labels or {}),
    }


def table(title: str, columns: Iterable[tuple[str, str, bool]], rows: Iterable[Row], about: str) -> Panel:
    """Return a table panel; a column is (key, title, whether it is numeric). Columns without values are dropped."""
    told = [dict(row) for row in rows]
    kept = [
        {"key": key, "title": head, "number": is_number}
        for key, head, is_number in columns
        if any(row.get(key) not in (None, "") for row in told) or not told
    ]
    return {"id": slug(title), "title": title, "kind": "table", "about": about, "columns": kept, "rows": told}


def facts(title: str, pairs: Iterable[tuple[str, Any]], about: str) -> Panel:
    """Return a panel of names and values; pairs without a value are dropped."""
    told = [{"name": name, "value": value} for name, value in pairs if value not in (None, "")]
    return {"id": slug(title), "title": title, "kind": "facts", "about": about, "facts": told}


def group(identity: str, title: str, about: str, parts: Sequence[Panel], why: str) -> Panel:
    """Return a panel of several parts; without parts, an empty panel with the reason ``why``."""
    if not parts:
        return {"id": identity, "title": title, "kind": "empty", "about": about, "why": why}
    told = [part | {"id": f"{identity}-{part['id']}"} for part in parts]
    return {"id": identity, "title": title, "kind": "group", "about": about, "parts": told}


def slug(text: str) -> str:
    """Return a text as part of an id: lowercase letters, digits and hyphens."""
    words = "".join(char if char.isalnum() and char.isascii() else " " for char in text.lower()).split()
    return "-".join(words) or "part"
