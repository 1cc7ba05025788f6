"""`RunPlan`: the resolved arguments of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwatch.run.description import RunDescription
from fieldwatch.run.observer import Observer
from fieldwatch.run.options import Guard, Outputs, Saving
from fieldwatch.run.profile import Profile
from fieldwatch.run.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Resolved arguments of a run, before its folder is locked.

    Attributes:
        folder: folder that this rank writes to.
        root: run folder, shared by all ranks.
        config: resolved configuration as plain values.
        resuming: whether the folder holds a run that should be continued.
        ranks: group of processes that train together.
        saving: when checkpoints are written, and which are kept.
        mirror: URL to which checkpoints are copied; empty for none.
        guard: when the run is stopped, rolled back, or reported as hung.
        description: description of the run for reports, rules and dashboards.
        outputs: health rules and sinks.
        profile: when every byte of tensor memory is attributed; None for never.
        observer: hooks of a replay; they do nothing in a training.
    """

    folder: Path
    root: Path
    config: Mapping[str, Any]
    resuming: bool
    ranks: Ranks
    saving: Saving
    mirror: str
    guard: Guard
    description: RunDescription
    outputs: Outputs
    profile: Profile | None
    observer: Observer
