"""Empty panels of imported runs: what the source did not record, instead of calls that its training cannot make."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

from fieldwatch.record import Manifest
from fieldwatch.report.page import Panel

IMPORTED: Final = "imported"
"""Kind of the event with the source of an import, and key of the same facts in ``run.json``."""
_MISSING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "losses": "no series with a usual name of the loss. `fieldwatch import --map NAME=Loss/total` names it",
        "gradients": "no gradient norms and learning rates with the names that fieldwatch gives them",
        "conflicts": "no gradients of single loss terms, which only a run of fieldwatch records",
        "memory": "no memory with the names that fieldwatch gives it",
        "timing": "no times of single steps with the names that fieldwatch gives them",
        "quality": "no pictures and no series of an evaluation. `fieldwatch import --map NAME=Eval/NAME` names one",
        "distributions": "no histograms that an import reads",
        "growth": "no changes of the model's size",
        "checkpoints": "no checkpoints: an import reads values and pictures only",
        "config": "no configuration",
    }
)
"""What an imported run lacks if a panel is empty, by the panel's id."""


def explain_empty(panels: Sequence[Panel], manifest: Manifest) -> list[Panel]:
    """Return the panels of a run; if it was imported, its empty ones stand last and say what the source lacks."""
    facts = manifest.about.get(IMPORTED)
    if not isinstance(facts, Mapping):
        return list(panels)
    filled = [panel for panel in panels if panel["kind"] != "empty"]
    empty = [_explained(panel, cast("Mapping[str, Any]", facts)) for panel in panels if panel["kind"] == "empty"]
    return [*filled, *empty]


def _explained(panel: Panel, facts: Mapping[str, Any]) -> Panel:
    missing = _MISSING.get(str(panel["id"]))
    return panel if missing is None else {**panel, "why": f"The imported {facts.get('tool', '')} run has {missing}."}
