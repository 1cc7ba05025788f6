"""One row of the table of promises: what was run, what was wanted, what was found."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Literal, cast

Verdict = Literal["holds", "does not hold", "not run"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of a part of one promise.

    Attributes:
        promise: ``P1`` to ``P20``.
        what: what was run.
        wanted: the figure that was promised.
        found: the figure that was measured; empty where nothing was.
        verdict: ``not run`` is never ``holds``.
        why: why it was not run, or what went wrong.
        group: rows of one group that hold are counted on the page, instead of shown one by one.
    """

    promise: str
    what: str
    wanted: str
    found: str = ""
    verdict: Verdict
    why: str = ""
    group: str = ""


def judged(  # noqa: PLR0913  a row is made with every value it has
    promise: str, what: str, wanted: str, found: str, *, good: bool, why: str = "", group: str = ""
) -> Row:
    """A row of something that was run."""
    verdict: Verdict = "holds" if good else "does not hold"
    return Row(promise=promise, what=what, wanted=wanted, found=found, verdict=verdict, why=why, group=group)


def not_run(promise: str, what: str, wanted: str, why: str) -> Row:
    """A row of something that could not be run here."""
    return Row(promise=promise, what=what, wanted=wanted, verdict="not run", why=why)


def rows_of(things: Iterable[Any]) -> list[Row]:
    """Read rows that another part handed back: ours, or mappings or dataclasses with the same fields.

    ``holds`` (true, false or null) may stand for ``verdict``.

    Raises:
        ValueError: a row lacks a field, or its verdict is none of the three.
    """
    return [thing if isinstance(thing, Row) else _row(thing) for thing in things]


def _row(thing: Any) -> Row:
    fields = dict(cast("Mapping[str, Any]", asdict(thing) if is_dataclass(thing) else thing))  # type: ignore[call-overload]  an instance, never a class
    if "holds" in fields:
        fields["verdict"] = {True: "holds", False: "does not hold", None: "not run"}[fields["holds"]]
    missing = {"promise", "what", "wanted", "verdict"} - fields.keys()
    if missing or fields["verdict"] not in ("holds", "does not hold", "not run"):
        raise ValueError(f"a row has promise, what, wanted, found, verdict (or holds), why; got {fields}")
    names = ("promise", "what", "wanted", "found", "why", "group")
    known = {name: str(fields[name]) for name in names if name in fields}
    return Row(**known, verdict=fields["verdict"])
