"""Writer of an imported run: the run folder that the training would have written, as far as its record goes."""

import io
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fieldwatch.base import ExistingPathError, UndecodableError, decoding, whole_folder
from fieldwatch.health import GENERAL, Finding, examine
from fieldwatch.record import Block, EventLog, Journal, Manifest, Series
from fieldwatch.record.config import flattened, plain_values
from fieldwatch.record.sinks import TensorBoard
from fieldwatch.report.account.imported import IMPORTED
from fieldwatch.report.imports.source import SourceRun

_EVENT_FILES = "tensorboard"
_CHUNK = 8192
"""Number of steps that are laid out as a table at a time."""


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """A run that was imported.

    Attributes:
        folder: the new run folder.
        steps: number of steps with a value.
        first: first of these steps.
        last: last of these steps.
        pictures: number of pictures.
        findings: what the health rules found.
        notes: remarks of the source, and pictures that could not be read.
    """

    folder: Path
    steps: int
    first: int
    last: int
    pictures: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def refuse_target(source: Path, target: Path) -> None:
    """Refuse a target that exists, or that lies in the source, which is only read.

    Raises:
        ExistingPathError: the target cannot be used.
    """
    if target.exists() or target.is_symlink():
        raise ExistingPathError(f"{target} exists: expected a new folder for the run; choose another one with -o RUN")
    if source.is_dir() and target.absolute().resolve().is_relative_to(source.absolute().resolve()):
        raise ExistingPathError(
            f"{target} lies in {source}, which is only read: choose a folder outside of it with -o RUN"
        )
    blocking = next((each for each in target.absolute().parents if each.exists() and not each.is_dir()), None)
    if blocking is not None:
        raise ExistingPathError(f"{blocking} is a file, so no run can be written into it: choose another folder")


def write_run(run: SourceRun, names: Mapping[str, str], target: Path) -> ImportedRun:
    """Write a run folder: run.json, journal, events with the rules' findings, TensorBoard files with the pictures.

    Nothing remains if it fails.

    Args:
        run: what the source recorded; it has at least one value.
        names: name in the record for each name of the source.
        target: the new folder.
    """
    series = {names[name]: values for name, values in run.series.items() if len(values)}
    steps = np.unique(np.concatenate([values.steps for values in series.values()]))
    first = int(steps[0])
    last = int(steps[-1])
    facts = _facts(run, names)
    with whole_folder(target) as draft:
        with Journal(draft) as journal:
            curves = _Curves(draft / _EVENT_FILES, run)
            try:
                for block in _blocks(series, steps, run):
                    journal.append(block)
                    curves.add(block)
                count, unread = curves.add_pictures()
            finally:
                curves.close()
            journal.flush(fsync=True)
        notes = (*run.notes, *unread)
        manifest = Manifest(
            config=plain_values(run.config),
            segments=({"step": first, "started": _moment(run.began)},),
            state="finished",
            about={IMPORTED: {**facts, "notes": list(notes)}},
        )
        manifest.write(draft)
        with EventLog(draft) as events:
            events.append({"kind": IMPORTED, "step": first, **facts, "message": _sentence(run)})
            # As a training does: the report reads the findings, and does not look for them.
            findings = examine(draft, GENERAL)
            for finding in findings:
                events.append(finding.as_event())
            events.flush(fsync=True)
    return ImportedRun(
        folder=target,
        steps=len(steps),
        first=first,
        last=last,
        pictures=count,
        findings=tuple(findings),
        notes=notes,
    )


def _facts(run: SourceRun, names: Mapping[str, str]) -> dict[str, Any]:
    # Sentences: a name may hold dots and spaces, by which a view of nested values would take it apart.
    renamed = [f"{name} is recorded as {new}" for name, new in names.items() if name != new]
    return {
        "from": str(run.place.absolute()),
        "tool": run.tool,
        "run": run.name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "names": renamed,
    }


def _sentence(run: SourceRun) -> str:
    return f"imported from the {run.tool} run {run.name} ({run.place.absolute()})"


def _moment(began: float) -> str:
    return datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds") if math.isfinite(began) else ""


def _blocks(series: Mapping[str, Series], steps: NDArray[np.float64], run: SourceRun) -> Iterator[Block]:
    """Yield the rows in order of their steps, each with the names that have a value at its step."""
    names = np.array(list(series), object)
    for start in range(0, len(steps), _CHUNK):
        part = steps[start : start + _CHUNK]
        values = np.zeros((len(part), len(names)))
        has = np.zeros((len(part), len(names)), bool)
        seconds = np.zeros(len(part))
        for column, each in enumerate(series.values()):
            inside = slice(*np.searchsorted(each.steps, (part[0], part[-1] + 1)))
            rows = np.searchsorted(part, each.steps[inside])
            values[rows, column] = each.values[inside]
            has[rows, column] = True
            seconds[rows] = np.maximum(seconds[rows], each.seconds[inside])
        borders = np.flatnonzero((has[1:] != has[:-1]).any(axis=1)) + 1
        for begin, end in zip((0, *borders), (*borders, len(part)), strict=True):
            columns = has[begin]
            whole = part[begin:end].astype(np.int64)
            yield Block(
                axis=run.axis,
                columns=tuple(names[columns]),
                steps=whole,
                seconds=seconds[begin:end],
                positions=whole.copy(),
                values=np.ascontiguousarray(values[begin:end, columns]),
            )


class _Curves:
    """The TensorBoard files of the run, which every run has, and which hold its pictures."""

    def __init__(self, folder: Path, run: SourceRun) -> None:
        self._run = run
        self._began = run.began if math.isfinite(run.began) else time.time()
        self._now = self._began
        self._sink = TensorBoard(folder, clock=lambda: self._now)
        if run.config:
            self._sink.config(flattened(plain_values(run.config)), {})

    def add(self, block: Block) -> None:
        # The sink counts back from the last row of its first block.
        self._now = self._began + float(block.seconds[-1])
        self._sink(block)

    def add_pictures(self) -> tuple[int, tuple[str, ...]]:
        """Write the pictures; return their number, and remarks on those that could not be read."""
        count = 0
        unread: list[str] = []
        for picture in self._run.pictures():
            try:
                png, width, height = _as_png(picture.content)
            except UndecodableError:
                unread.append(f"{picture.name} of step {picture.step}")
                continue
            self._sink.image(picture.name, picture.step, png, width, height)
            count += 1
        if not unread:
            return count, ()
        return count, (f"{len(unread)} pictures are missing or damaged, the first is {unread[0]}",)

    def close(self) -> None:
        self._sink.close()


def _as_png(content: bytes) -> tuple[bytes, int, int]:
    """Return a picture as PNG, with width and height.

    Raises:
        UndecodableError: it is no intact picture.
    """
    with decoding():
        image = Image.open(io.BytesIO(content))
        image.load()
        if image.format == "PNG":
            return content, image.width, image.height
        out = io.BytesIO()
        image.convert("RGB").save(out, "PNG")
    return out.getvalue(), image.width, image.height
