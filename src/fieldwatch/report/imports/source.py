"""What a run of another tool recorded, whichever tool it was."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fieldwatch.base import InputError
from fieldwatch.record import Axis, Series

_LARGEST_STEP = 1 << 35
"""TensorBoard files, which every run has, store smaller steps only."""


class BadSource(InputError):  # noqa: N818  named after the finding
    """The given file or folder holds no run that can be imported, several, or a damaged one."""


def _nothing() -> dict[str, Any]:
    return {}


def _no_pictures() -> Iterable["SourcePicture"]:
    return ()


@dataclass(frozen=True, kw_only=True)
class SourcePicture:
    """A picture that was logged during training.

    Attributes:
        name: name under which it was logged.
        step: step at which it was logged.
        content: content of the image file, of any format; empty if the file is missing.
    """

    name: str
    step: int
    content: bytes


@dataclass(frozen=True, kw_only=True)
class SourceRun:
    """A run as another tool recorded it.

    Attributes:
        tool: name of the tool.
        name: name of the run.
        place: its file or folder.
        series: recorded values by name; `seconds` count from `began`.
        axis: unit of the steps.
        config: hyperparameters.
        pictures: returns the logged pictures in order of step; called once, and may read files.
        began: time of the first value in seconds since 1970; NaN if unknown.
        notes: remarks for the reader, such as damage and skipped content.
    """

    tool: str
    name: str
    place: Path
    series: Mapping[str, Series]
    axis: Axis = "step"
    config: Mapping[str, Any] = field(default_factory=_nothing)
    pictures: Callable[[], Iterable[SourcePicture]] = _no_pictures
    began: float = math.nan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImportableRun:
    """A run that was found in a file or folder, and is not read yet.

    Attributes:
        tool: name of the tool.
        name: name by which it is chosen.
        identity: another name by which it may be chosen; unique within the source.
        read: reads it. If the argument is true, a damaged file is read up to the damage; else it is refused.
    """

    tool: str
    name: str
    identity: str
    read: Callable[[bool], SourceRun]


class Values:
    """Collects the values of a run by name; of several values of a step, the last one is kept."""

    def __init__(self) -> None:
        self._values: dict[str, dict[int, tuple[float, float]]] = {}

    def add(self, name: str, step: int, time: float, value: float) -> None:
        """Add a value.

        Args:
            name: name of the series.
            step: step at which it was recorded.
            time: time in seconds, counted from any moment; NaN if unknown.
            value: the value.
        """
        self._values.setdefault(name, {})[step] = (time, value)

    def began(self) -> float:
        """Return the earliest time of a value; NaN if none is known."""
        times = [time for by_step in self._values.values() for time, _ in by_step.values() if math.isfinite(time)]
        return min(times, default=math.nan)

    def series(self) -> dict[str, Series]:
        """Return the series by name, with seconds since the earliest value; 0 if the times are unknown."""
        began = self.began()
        return {name: _series(by_step, began) for name, by_step in self._values.items()}


def _series(by_step: Mapping[int, tuple[float, float]], began: float) -> Series:
    steps = np.array(sorted(by_step), np.float64)
    times, values = np.array([by_step[int(step)] for step in steps], np.float64).T.copy()
    known = np.isfinite(times)
    # A value without a time belongs to the same moment as the one before it.
    seconds = np.maximum.accumulate(np.where(known, times - began, 0.0))
    return Series(steps=steps, seconds=seconds, positions=steps.copy(), values=values.copy())


def refuse_bad_steps(run: SourceRun) -> None:
    """Refuse a run without values, and steps that a record cannot hold.

    Raises:
        BadSource: there is no value, or a step is negative, fractional or too large.
    """
    if not any(len(series) for series in run.series.values()):
        raise BadSource(
            f"{run.place}: this {run.tool} run contains no step with a number, so there is nothing to import: check "
            "that it is the run that you mean"
        )
    for name, series in run.series.items():
        lowest = int(series.steps.min())
        highest = int(series.steps.max())
        if lowest < 0 or highest >= _LARGEST_STEP:
            raise BadSource(
                f"{run.place}: {name!r} has step {lowest if lowest < 0 else highest}: expected steps from 0 to "
                f"{_LARGEST_STEP - 1}"
            )
