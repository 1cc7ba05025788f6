"""One row of the table of promises: what was run, wanted and found."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Literal, cast

Verdict = Literal["holds", "does not hold", "not run"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Result for a part of one promise.

    Attributes:
        promise: ``P1`` to ``P20``.
        what: description of the trial.
        wanted: the promised figure.
        found: the measured figure; empty if nothing was measured.
        verdict: ``holds``, ``does not hold`` or ``not run``.
        why: why it was not run, or what went wrong.
        group: group of the row; rows of one group that hold are shown as one row on the page.
    """

    promise: str
    what: str
    wanted: str
    found: str = ""
    verdict: Verdict
    why: str = ""
    group: str = ""


def judged(  # noqa: PLR0913  one argument per field
    promise: str, what: str, wanted: str, found: str, *, good: bool, why: str = "", group: str = ""
) -> Row:
    """Return the row of a trial that was run."""
    verdict: Verdict = "holds" if good else "does not hold"
    return Row(promise=promise, what=what, wanted=wanted, found=found, verdict=verdict, why=why, group=group)


def not_run(promise: str, what: str, wanted: str, why: str) -> Row:
    """Return the row of a trial that could not be run here."""
    return Row(promise=promise, what=what, wanted=wanted, verdict="not run", why=why)


def rows_of(things: Iterable[Any]) -> list[Row]:
    """Read rows of a part: rows, or mappings or dataclasses with the same fields.

    ``holds`` (true, false or null) may replace ``verdict``.

    Raises:
        ValueError: a row lacks a field, or its verdict is unknown.
    """
    return [thing if isinstance(thing, Row) else _row(thing) for thing in things]


def _row(thing: Any) -> Row:
    fields = dict(cast("Mapping[str, Any]", asdict(thing) if is_dataclass(thing) else thing))  # type: ignore[call-overload]  an instance, never a class
    if "holds" in fields:
        fields["verdict"] = {True: "holds", False: "does not hold", None: "not run"}[fields["holds"]]
    missing = {"promise", "what", "wanted", "verdict"} - fields.keys()
    if missing or fields["verdict"] not in ("holds", "does not hold", "not run"):
        raise ValueError(f"expected a row with promise, what, wanted, found, verdict (or holds), why; got {fields}")
    names = ("promise", "what", "wanted", "found", "why", "group")
    known = {name: str(fields[name]) for name in names if name in fields}
    return Row(**known, verdict=fields["verdict"])
