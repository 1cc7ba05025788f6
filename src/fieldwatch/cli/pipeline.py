"""Which pipeline a run belongs to, and the rules it trains under; no torch is needed for that."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from fieldwatch.cli.ending import BadInput, reading_input
from fieldwatch.health import GENERAL, NORMALS, SPLATS, VIDEO, HealthRule
from fieldwatch.record import read_manifest

Thing = TypeVar("Thing")

RULES: dict[str, tuple[HealthRule, ...]] = {"video": VIDEO, "splats": SPLATS, "refined": SPLATS, "normals": NORMALS}
"""The rules each pipeline trains under."""


def pipeline_of(folder: Path) -> str | None:
    """The pipeline that a run was trained by; None for a loop of somebody's own.

    Raises:
        NotARun: the folder holds no run.
    """
    about = read_manifest(folder).about
    name = about.get("pipeline") if isinstance(about, Mapping) else None
    return name if isinstance(name, str) else None


def rules_of(pipeline: str | None) -> tuple[HealthRule, ...]:
    """The rules that a pipeline trains under; the general ones for a loop of somebody's own."""
    return RULES.get(pipeline or "", GENERAL)


def by_pipeline(folder: Path, things: Mapping[str, Thing]) -> Thing:
    """The one, of some things per pipeline, that is for this run.

    Raises:
        BadInput: the folder holds no run, or one of another pipeline.
    """
    with reading_input():
        name = pipeline_of(folder)
    if name is not None and name in things:
        return things[name]
    known = " and ".join(filter(None, (", ".join(list(things)[:-1]), list(things)[-1])))
    raise BadInput(f"{folder} holds a run of {name or 'a loop of your own'}: this command opens {known} runs")
