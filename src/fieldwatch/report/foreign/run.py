"""Reader for one run of a TensorBoard folder: merges its files, resolves restarts, and keeps each step once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Series
from fieldwatch.report.foreign.events import event_files
from fieldwatch.report.foreign.files import EventFile, read_event_file

_HELD = ("step", "wall", "value", "file", "place")
_STEP, _WALL, _VALUE, _FILE, _PLACE = range(len(_HELD))
_MOST_TOLD = 5


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """Content of a TensorBoard run.

    Attributes:
        folder: folder of its files, or its only file.
        files: content of each file, in order of creation.
        series: series by tag; `positions` are the steps, `seconds` count from the first record without pauses between
            files.
        began: time of the first record in seconds since 1970; NaN without records.
        config: hyperparameters recorded in the files.
        repeated: number of values that a later one of the same tag and step replaced.
        repeated_steps: number of distinct steps of these values.
        restarts: number of times that a restart mark or a later file returned to an earlier step.
        voided: number of values that a restart mark invalidated.
        notes: remarks for the reader: restarts, duplicates, damage, skipped content.
    """

    folder: Path
    files: tuple[EventFile, ...]
    series: Mapping[str, Series]
    began: float
    config: Mapping[str, Any]
    repeated: int
    repeated_steps: int
    restarts: int
    voided: int
    notes: tuple[str, ...]


def read_foreign_run(place: Path) -> ForeignRun:
    """Read every scalar of the event files directly in a folder, or of one file.

    If a tag has several values at a step, the latest one is kept, as in our own record. A restart mark
    (`SessionLog.START`) invalidates all earlier values from its step on.

    Args:
        place: folder with event files, or one such file.

    Raises:
        NoEventFiles: if there is no event file.
        OSError: if a file cannot be read.
    """
    files = sorted((read_event_file(path) for path in event_files(place)), key=_age)
    shifts = _shifts(files)
    series = dict[str, Series]()
    repeated = 0
    again = set[int]()
    voided = 0
    for tag in dict.fromkeys(tag for file in files for tag in file.steps):
        rows = _rows(files, shifts, tag)
        stands = _stands(rows, files)
        voided += int((~stands).sum())
        rows = rows[:, stands]
        # By step, then file, then record: the last of equal steps is the value that stands.
        order = np.lexsort((rows[_PLACE], rows[_FILE], rows[_STEP]))
        steps = rows[_STEP, order]
        last = np.append(steps[1:] != steps[:-1], True) if len(steps) else np.zeros(0, bool)
        repeated += int((~last).sum())
        again.update(steps[~last].astype(np.int64).tolist())
        if last.any():
            series[tag] = _series(rows[:, order[last]])
    restarts = _restarts(files)
    return ForeignRun(
        folder=place,
        files=tuple(files),
        series=series,
        began=next((file.begun for file in files if np.isfinite(file.begun)), float("nan")),
        config={name: value for file in files for name, value in file.config.items()},
        repeated=repeated,
        repeated_steps=len(again),
        restarts=len(restarts),
        voided=voided,
        notes=(*restarts[:_MOST_TOLD], *_notes(files, series, repeated, len(again), voided)),
    )


def _age(file: EventFile) -> tuple[float, str]:
    return (file.begun if np.isfinite(file.begun) else float("inf"), file.path.name)


def _rows(files: Sequence[EventFile], shifts: Sequence[float], tag: str) -> NDArray[np.float64]:
    """Return `[5, n]`: step, seconds, value, number of the file, number of the record in it."""
    parts = [
        np.stack((file.steps[tag], file.walls[tag] - shift, file.values[tag], np.full(len(file.steps[tag]), i), places))
        for i, (file, shift) in enumerate(zip(files, shifts, strict=True))
        if (places := file.places.get(tag)) is not None
    ]
    return np.concatenate(parts, axis=1)


def _stands(rows: NDArray[np.float64], files: Sequence[EventFile]) -> NDArray[np.bool_]:
    """Return which values no later mark of a restart takes back."""
    stands = np.ones(rows.shape[1], bool)
    for number, file in enumerate(files):
        for place, step in file.starts:
            before = (rows[_FILE] < number) | ((rows[_FILE] == number) & (rows[_PLACE] < place))
            stands &= ~(before & (rows[_STEP] >= step))
    return stands


def _series(rows: NDArray[np.float64]) -> Series:
    return Series(steps=rows[_STEP], seconds=rows[_WALL], positions=rows[_STEP].copy(), values=rows[_VALUE])


def _span(file: EventFile) -> tuple[float, float] | None:
    """Return the first and last wall time of a file's scalars."""
    walls = [wall for wall in file.walls.values() if len(wall)]
    return (min(float(w.min()) for w in walls), max(float(w.max()) for w in walls)) if walls else None


def _shifts(files: Sequence[EventFile]) -> list[float]:
    """Return what to take from each file's wall times to have seconds of training.

    A file begun after all earlier ones had ended goes on where they had been at its first step; files that were written
    at the same time share one clock.
    """
    shifts = list[float]()
    ended = float("-inf")
    for number, file in enumerate(files):
        span = _span(file)
        if span is None:
            shifts.append(0.0)
            continue
        begun = min(file.begun, span[0])
        # A later file is a restart: its clock goes on where the earlier ones stood at its first step.
        if span[0] > ended > float("-inf"):
            first = min(int(steps.min()) for steps in file.steps.values())
            shifts.append(begun - _reached(files[:number], shifts, first))
        else:
            shifts.append(begun if ended == float("-inf") else next(s for s in shifts if s))
        ended = max(ended, span[1])
    return shifts


def _reached(files: Sequence[EventFile], shifts: Sequence[float], step: int) -> float:
    """Return the seconds of training that earlier files had reached before a step."""
    reached = [
        float((file.walls[tag][before] - shift).max())
        for file, shift in zip(files, shifts, strict=True)
        for tag, steps in file.steps.items()
        if (before := steps < step).any()
    ]
    return max(reached, default=0.0)


def _restarts(files: Sequence[EventFile]) -> list[str]:
    """Say each return to an earlier step: by a mark, or by a file that begins before an earlier one has ended."""
    told = list[str]()
    lasts = dict[str, int]()
    for file in files:
        marks = [step for _, step in file.starts]
        firsts = {tag: int(steps[0]) for tag, steps in file.steps.items()}
        back = [tag for tag, first in firsts.items() if first <= lasts.get(tag, -1)]
        if lasts and marks:
            told.append(f"{file.path.name}: the run went on from step {min(marks):,}: what stood there was taken back")
        elif back:
            first = min(firsts[tag] for tag in back)
            last = max(lasts[tag] for tag in back)
            told.append(
                f"{file.path.name} goes back to step {first:,} after step {last:,}: of a step that comes twice the "
                "later value stands"
            )
        for tag, steps in file.steps.items():
            lasts[tag] = max(lasts.get(tag, -1), int(steps.max()))
    return told


def _notes(
    files: Sequence[EventFile], series: Mapping[str, Series], repeated: int, steps: int, voided: int
) -> list[str]:
    told = [f"{file.path.name}: {file.damage}" for file in files if file.damage][:_MOST_TOLD]
    if voided:
        told.append(f"{voided:,} values were taken back by the marks of a restart")
    if repeated:
        told.append(f"{repeated:,} values at {steps:,} steps came again: the later one stands")
    others = dict[str, int]()
    for file in files:
        for kind, count in file.others.items():
            others[kind] = others.get(kind, 0) + count
    if others:
        told.append("not scalars, left out: " + ", ".join(f"{count:,} {kind}" for kind, count in others.items()))
    if not series:
        told.append("it holds no scalars" + ("" if any(file.records > 1 for file in files) else ": nothing was logged"))
    return told
