"""Everything that is known about a run before its folder is taken."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwatch.run.description import RunDescription
from fieldwatch.run.options import Guard, Outputs, Saving
from fieldwatch.run.profile import Profile
from fieldwatch.run.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything that is known about a run before its folder is taken.

    Attributes:
        folder: where this rank writes.
        root: the run folder, which all ranks share.
        config: the resolved configuration, as plain values.
        resuming: whether the folder holds a run that is to be continued.
        ranks: the processes that train together.
        saving: when it is saved.
        mirror: where checkpoints are copied; empty for nowhere.
        guard: when it stops or goes back.
        description: what it says about itself.
        outputs: who reads its rows.
        profile: when every byte of tensor memory is accounted for; None for never.
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
