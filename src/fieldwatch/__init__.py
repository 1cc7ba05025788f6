"""fieldwatch: train neural reconstructions in plain sight, and do not lose the run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldwatch.checkpoint import Checkpoints, Retention, Shuffled, preserve_random_state
    from fieldwatch.guard import Diverged, Verdict
    from fieldwatch.health import Finding, Rule, examine
    from fieldwatch.measure import Phase, Terms, Window
    from fieldwatch.record import Block, Catalogue, ConfigMismatch, History, Metric, Row, Sink, read_history
    from fieldwatch.run import Interrupted, Profile, Run, Step, profile_tensors

_ROOM_OF = {
    "Block": "record",
    "Catalogue": "record",
    "Checkpoints": "checkpoint",
    "ConfigMismatch": "record",
    "Diverged": "guard",
    "Finding": "health",
    "History": "record",
    "Interrupted": "run",
    "Metric": "record",
    "Phase": "measure",
    "Profile": "run",
    "Retention": "checkpoint",
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
    "Block",
    "Catalogue",
    "Checkpoints",
    "ConfigMismatch",
    "Diverged",
    "Finding",
    "History",
    "Interrupted",
    "Metric",
    "Phase",
    "Profile",
    "Retention",
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
