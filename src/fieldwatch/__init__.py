"""fieldwatch: train neural reconstructions in plain sight, and do not lose the run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldwatch.checkpoint import Autosave, Checkpoints, Retention, Shuffled, preserve_random_state
    from fieldwatch.guard import Diverged, Rollback, Verdict
    from fieldwatch.health import Finding, Rule, examine
    from fieldwatch.measure import Phase, Terms, Window
    from fieldwatch.record import Block, Catalogue, ConfigMismatch, History, Metric, Row, Sink, read_history
    from fieldwatch.run import Interrupted, Parts, Profile, Run, Step, profile_tensors

_ROOM_OF = {
    "Autosave": "checkpoint",
    "Block": "record",
    "Catalogue": "record",
    "Checkpoints": "checkpoint",
    "ConfigMismatch": "record",
    "Diverged": "guard",
    "Finding": "health",
    "History": "record",
    "Interrupted": "run",
    "Metric": "record",
    "Parts": "run",
    "Phase": "measure",
    "Profile": "run",
    "Retention": "checkpoint",
    "Rollback": "guard",
    "Row": "record",
    "Rule": "health",
    "Run": "run",
    "Shuffled": "checkpoint",
    "Sink": "record",
    "Step": "run",
    "Terms": "measure",
    "Verdict": "guard",
    "Window": "measure",
    "examine": "health",
    "preserve_random_state": "checkpoint",
    "profile_tensors": "run",
    "read_history": "record",
}

__all__ = [
    "Autosave",
    "Block",
    "Catalogue",
    "Checkpoints",
    "ConfigMismatch",
    "Diverged",
    "Finding",
    "History",
    "Interrupted",
    "Metric",
    "Parts",
    "Phase",
    "Profile",
    "Retention",
    "Rollback",
    "Row",
    "Rule",
    "Run",
    "Shuffled",
    "Sink",
    "Step",
    "Terms",
    "Verdict",
    "Window",
    "examine",
    "preserve_random_state",
    "profile_tensors",
    "read_history",
]


def __getattr__(name: str) -> Any:
    """Import a public name's room when it is first asked for, so that reading a record needs no torch."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'fieldwatch' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(f"fieldwatch.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
