"""A training whose input was read and checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training whose input was read and checked; nothing has been written yet.

    Attributes:
        headline: what trains on what, in one line.
        total: number of steps of the whole training.
        train: ``train(folder, choices)`` trains in a folder, or continues the run found there, and returns an
            `Outcome`. ``choices`` are a `RunChoices`: `run_options` makes the options of `Run` of them.
        device: where it trains: ``cpu``, ``cuda``, ``cuda:1``.
        notes: what was done to the input, and what the user should know.
        progress_tags: what the progress bar displays: tag to text, with ``{}`` for the value.
        references: quality that needs no training, by tag; printed beside the quality that was reached.
    """

    headline: str
    total: int
    train: Callable[..., Any]
    device: str = "cpu"
    notes: Sequence[str] = ()
    progress_tags: Mapping[str, str] = field(default_factory=lambda: {"Loss/total": "loss {}"})
    references: Mapping[str, float] = field(default_factory=dict[str, float])
