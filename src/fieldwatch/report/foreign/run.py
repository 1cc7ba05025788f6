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

_STEP, _SECONDS, _VALUE, _FILE, _RECORD = range(5)
"""Rows of the table of a tag: step, seconds, value, number of the file, number of the record in it."""
_MOST_NOTES = 5
"""Maximum number of notes of a kind: a run that was restarted 200 times needs no 200 lines."""


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
    repeated_steps = set[int]()
    voided = 0
    for tag in dict.fromkeys(tag for file in files for tag in file.steps):
        rows = _rows(files, shifts, tag)
        valid = _is_valid(rows, files)
        voided += int((~valid).sum())
        rows = rows[:, valid]
        # By step, then file, then record: the last value of a step is the one that is kept.
        order = np.lexsort((rows[_RECORD], rows[_FILE], rows[_STEP]))
        steps = rows[_STEP, order]
        last = np.append(steps[1:] != steps[:-1], True) if len(steps) else np.zeros(0, bool)
        repeated += int((~last).sum())
        repeated_steps.update(steps[~last].astype(np.int64).tolist())
        # A restart may have invalidated every value of a tag.
        if last.any():
            series[tag] = _series(rows[:, order[last]])
    restarts = _restarts(files)
    return ForeignRun(
        folder=place,
        files=tuple(files),
        series=series,
        began=next((file.began for file in files if np.isfinite(file.began)), float("nan")),
        config={name: value for file in files for name, value in file.config.items()},
        repeated=repeated,
        repeated_steps=len(repeated_steps),
        restarts=len(restarts),
        voided=voided,
        notes=(*restarts[:_MOST_NOTES], *_notes(files, series, repeated, len(repeated_steps), voided)),
    )


def _age(file: EventFile) -> tuple[float, str]:
    """Return a sort key: by the first record, since file times change when a folder is copied."""
    return (file.began if np.isfinite(file.began) else float("inf"), file.path.name)


def _rows(files: Sequence[EventFile], shifts: Sequence[float], tag: str) -> NDArray[np.float64]:
    """Return ``[5, n]``: step, seconds, value, number of the file, number of the record in it."""
    parts = [
        np.stack(
            (steps, file.wall_times[tag] - shift, file.values[tag], np.full(len(steps), i), file.record_numbers[tag])
        )
        for i, (file, shift) in enumerate(zip(files, shifts, strict=True))
        if (steps := file.steps.get(tag)) is not None
    ]
    return np.concatenate(parts, axis=1)


def _is_valid(rows: NDArray[np.float64], files: Sequence[EventFile]) -> NDArray[np.bool_]:
    """Return for each value whether no later restart mark invalidates it."""
    valid = np.ones(rows.shape[1], bool)
    for number, file in enumerate(files):
        for record_number, step in file.starts:
            before = (rows[_FILE] < number) | ((rows[_FILE] == number) & (rows[_RECORD] < record_number))
            valid &= ~(before & (rows[_STEP] >= step))
    return valid


def _series(rows: NDArray[np.float64]) -> Series:
    return Series(steps=rows[_STEP], seconds=rows[_SECONDS], positions=rows[_STEP].copy(), values=rows[_VALUE])


def _span(file: EventFile) -> tuple[float, float] | None:
    """Return the first and last wall time of a file's scalars; None if it has none."""
    times = [times for times in file.wall_times.values() if len(times)]
    return (min(float(t.min()) for t in times), max(float(t.max()) for t in times)) if times else None


def _shifts(files: Sequence[EventFile]) -> list[float]:
    """Return for each file the number to subtract from its wall times, so that they become seconds of training.

    A file that was begun after all earlier ones had ended continues at the time that they had reached at its first
    step. Files that were written at the same time share one clock.
    """
    shifts = list[float]()
    ended = float("-inf")
    for number, file in enumerate(files):
        span = _span(file)
        if span is None:
            shifts.append(0.0)
            continue
        began = min(file.began, span[0])
        # A file that starts later is a restart: the pause before it is no training time.
        if span[0] > ended > float("-inf"):
            first = min(int(steps.min()) for steps in file.steps.values())
            shifts.append(began - _reached(files[:number], shifts, first))
        else:
            # Programs write several files at once, for example one per group of metrics.
            shifts.append(began if ended == float("-inf") else next(shift for shift in shifts if shift))
        ended = max(ended, span[1])
    return shifts


def _reached(files: Sequence[EventFile], shifts: Sequence[float], step: int) -> float:
    """Return the seconds of training that earlier files had reached before a step."""
    reached = [
        float((file.wall_times[tag][before] - shift).max())
        for file, shift in zip(files, shifts, strict=True)
        for tag, steps in file.steps.items()
        if (before := steps < step).any()
    ]
    return max(reached, default=0.0)


def _restarts(files: Sequence[EventFile]) -> list[str]:
    """Describe each return to an earlier step: by a mark, or by a file that begins before the last step so far."""
    notes = list[str]()
    # By tag: an evaluation that is recorded rarely is not a return.
    lasts = dict[str, int]()
    for file in files:
        marks = [step for _, step in file.starts]
        firsts = {tag: int(steps[0]) for tag, steps in file.steps.items()}
        repeating = [tag for tag, first in firsts.items() if first <= lasts.get(tag, -1)]
        # The first file of a run usually starts with a mark as well.
        if lasts and marks:
            notes.append(
                f"{file.path.name}: the run was restarted from step {min(marks):,}; its earlier values from that step "
                "on are left out"
            )
        elif repeating:
            first = min(firsts[tag] for tag in repeating)
            last = max(lasts[tag] for tag in repeating)
            notes.append(
                f"{file.path.name} returns to step {first:,} after step {last:,}: of a repeated step, the later value "
                "is kept"
            )
        for tag, steps in file.steps.items():
            lasts[tag] = max(lasts.get(tag, -1), int(steps.max()))
    return notes


def _notes(
    files: Sequence[EventFile], series: Mapping[str, Series], repeated: int, steps: int, voided: int
) -> list[str]:
    """Describe damage, replaced values and skipped content, for the reader of a comparison."""
    notes = [f"{file.path.name}: {file.damage}" for file in files if file.damage][:_MOST_NOTES]
    if voided:
        notes.append(f"{voided:,} values were invalidated by restart marks")
    if repeated:
        notes.append(f"{repeated:,} values at {steps:,} steps were repeated: the later value is kept")
    skipped = dict[str, int]()
    for file in files:
        for kind, count in file.skipped.items():
            skipped[kind] = skipped.get(kind, 0) + count
    if skipped:
        notes.append("skipped, not scalars: " + ", ".join(f"{count:,} {kind}" for kind, count in skipped.items()))
    if not series:
        # One record is the version that every file starts with.
        logged = any(file.records > 1 for file in files)
        notes.append("the files contain no scalars" + ("" if logged else ": nothing was logged"))
    return notes
