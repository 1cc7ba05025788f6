"""What panels are made from, and the few forms they take."""

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
    """Everything that is known about a run.

    Attributes:
        folder: the run's.
        manifest: its run.json.
        history: its rows and events.
        events: all events that stand, in order.
        status: how it stands.
        catalogue: what its metrics mean.
        series: the account's series, by name; panels may add some of their own.
    """

    folder: Path
    manifest: Manifest
    history: History
    events: Sequence[Mapping[str, Any]]
    status: RunStatus
    catalogue: Catalogue
    series: dict[str, dict[str, Any]]

    def named(self, *starts: str, end: str = "") -> list[str]:
        """Return the series whose names start with one of some texts and end with another."""
        return [name for name in matching(self.series, *starts) if name.endswith(end)]

    def of_family(self, family: tags.Family) -> list[str]:
        """Return the series of a family of tags."""
        return list(family.parts(self.series).values())

    def of_kind(self, *kinds: str) -> list[Mapping[str, Any]]:
        """Return the events of some kinds."""
        return [event for event in self.events if event["kind"] in kinds]


def lines(
    title: str, names: Sequence[str], about: str, *, labels: Mapping[str, str] | None = None, log: bool = False
) -> Panel:
    """Return several series on one chart."""
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
    """Return a table; columns are key, title and whether they hold numbers. Columns without any value are left out."""
    told = [dict(row) for row in rows]
    kept = [
        {"key": key, "title": head, "number": is_number}
        for key, head, is_number in columns
        if any(row.get(key) not in (None, "") for row in told) or not told
    ]
    return {"id": slug(title), "title": title, "kind": "table", "about": about, "columns": kept, "rows": told}


def facts(title: str, pairs: Iterable[tuple[str, Any]], about: str) -> Panel:
    """Return names with values; those without a value are left out."""
    told = [{"name": name, "value": value} for name, value in pairs if value not in (None, "")]
    return {"id": slug(title), "title": title, "kind": "facts", "about": about, "facts": told}


def group(identity: str, title: str, about: str, parts: Sequence[Panel], why: str) -> Panel:
    """Return a panel of several parts; where there is none, an empty one that says what it would take."""
    if not parts:
        return {"id": identity, "title": title, "kind": "empty", "about": about, "why": why}
    told = [part | {"id": f"{identity}-{part['id']}"} for part in parts]
    return {"id": identity, "title": title, "kind": "group", "about": about, "parts": told}


def slug(text: str) -> str:
    """Return a text as part of an id: small letters, digits and hyphens."""
    words = "".join(char if char.isalnum() and char.isascii() else " " for char in text.lower()).split()
    return "-".join(words) or "part"
