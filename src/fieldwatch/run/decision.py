"""What a run does at the end of a step."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Continue:
    """Go on with the next step."""


@dataclass(frozen=True)
class Save:
    """Save a checkpoint, and go on."""


@dataclass(frozen=True)
class Stop:
    """Save a checkpoint, and end the run.

    Attributes:
        signal: number of the signal that asked for it, of this process or of another rank.
    """

    signal: int


@dataclass(frozen=True)
class GoBack:
    """Return to a checkpoint, and skip updates when their steps come again.

    Attributes:
        to: steps of the checkpoints that may be returned to, the best one first.
        skip: first and last step whose updates are skipped; nothing where the last is before the first.
    """

    to: tuple[int, ...]
    skip: tuple[int, int]


Decision: TypeAlias = Continue | Save | Stop | GoBack
