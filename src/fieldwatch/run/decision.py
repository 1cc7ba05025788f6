"""Possible actions of a run at the end of a step."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Continue:
    """Continue with the next step."""


@dataclass(frozen=True)
class Save:
    """Save a checkpoint, and continue."""


@dataclass(frozen=True)
class Stop:
    """Save a checkpoint, and end the run.

    Attributes:
        signal: number of the signal that requested the stop, received by this process or another rank.
    """

    signal: int


@dataclass(frozen=True)
class GoBack:
    """Roll back to a checkpoint, and skip the updates of some of the repeated steps.

    Attributes:
        to: steps of the candidate checkpoints, best first.
        skip: first and last step whose updates are skipped; none if the last precedes the first.
    """

    to: tuple[int, ...]
    skip: tuple[int, int]


Decision: TypeAlias = Continue | Save | Stop | GoBack
