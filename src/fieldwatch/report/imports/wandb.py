"""Reader for one W&B run, as a source of an import: the file that every run keeps on its machine, offline or not."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from fieldwatch.base import printable
from fieldwatch.report.imports.source import BadSource, SourcePicture, SourceRun, Values
from fieldwatch.report.imports.wandb_log import DamagedLog, LogRecord, log_records

_USUAL_STEPS = ("trainer/global_step", "train/global_step", "global_step")
"""Names under which frameworks log their own step; W&B's step counts the calls of `log`."""
_FILES = "files"
_STEP = "_step"
_TIME = "_timestamp"
_PICTURE = "image-file"
_PICTURES = "images/separated"
_KIND = "_type"
Row = Mapping[str, Any]


def read_wandb(path: Path, *, partial: bool) -> SourceRun:
    """Read a ``run-*.wandb`` file, and find its pictures in the folder ``files`` next to it.

    Args:
        path: file of the run.
        partial: read a damaged file up to the damage.

    Raises:
        BadSource: the file is damaged, and `partial` is not set.
    """
    records, notes = _records(path, partial=partial)
    rows = [record.values for record in records if record.kind == "history"]
    values = Values()
    pictures: list[tuple[str, int, str]] = []
    skipped = Counter[str]()
    for step, row in _with_steps(rows, _step_names(records)):
        time = _number(row.get(_TIME))
        for name, value in _flat(row):
            if isinstance(value, dict):
                found = list(_picture_paths(cast("dict[str, Any]", value)))
                pictures += [(name, step, each) for each in found[:1]]
                skipped[str(cast("dict[str, Any]", value).get(_KIND, "object"))] += not found
            elif (number := _number(value)) is not None:
                values.add(name, step, math.nan if time is None else time, number)
            else:
                skipped[type(value).__name__] += 1
    config, names = _description(records)
    exits = [record.values["code"] for record in records if record.kind == "exit"]
    if not exits:
        notes.append("its end is not recorded: it was killed, or is still running")
    elif exits[-1]:
        notes.append(f"it ended with exit code {exits[-1]}")
    kinds = ", ".join(f"{count:,} {printable(kind)}" for kind, count in sorted(skipped.items()) if count)
    if kinds:
        notes.append(f"skipped, neither numbers nor pictures: {kinds}")
    return SourceRun(
        tool="W&B",
        name=names.get("name") or names.get("id") or path.stem,
        place=path,
        series=values.series(),
        config=config,
        pictures=lambda: _read_pictures(path.parent / _FILES, pictures),
        began=values.began(),
        notes=tuple(notes),
    )


def _records(path: Path, *, partial: bool) -> tuple[list[LogRecord], list[str]]:
    records: list[LogRecord] = []
    try:
        records.extend(log_records(path))
    except DamagedLog as damage:
        if not partial or not records:
            more = "; import what comes before it with --partial, or use an intact copy" if records else ""
            raise BadSource(f"the W&B run {path} cannot be read: {damage}{more}") from damage
        return records, [f"{path.name}: {damage}; the rest was not read"]
    return records, []


def _description(records: Sequence[LogRecord]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return config and names of a run: those of the last record that has them."""
    config: dict[str, Any] = {}
    names: dict[str, str] = {}
    for record in records:
        if record.kind == "run":
            config |= record.values["config"]
            names |= {key: record.values[key] for key in ("id", "name", "project") if record.values[key]}
        elif record.kind == "config":
            config |= record.values
    # W&B's own notes on the machine and its versions.
    return {key: value for key, value in config.items() if key != "_wandb"}, names


def _step_names(records: Sequence[LogRecord]) -> tuple[str, ...]:
    """Return the names of values that may be the step: those declared with `define_metric`, then the usual ones."""
    axes = [(record.values["name"], record.values["axis"]) for record in records if record.kind == "metric"]
    declared = [axis for name, axis in axes if axis and not axis.startswith("_") and not _is_epoch(axis) and name]
    return tuple(dict.fromkeys((*declared, *_USUAL_STEPS)))


def _is_epoch(name: str) -> bool:
    return fnmatchcase(name.rpartition("/")[2].lower(), "epoch*")


def _with_steps(rows: Sequence[Row], names: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Yield each row with its step: of the first name that most rows have, else of W&B's counter."""
    counts = {name: sum(_whole(row.get(name)) is not None for row in rows) for name in names}
    # An axis that is declared for a few values, such as those of an evaluation, is no step of the run.
    name = next((name for name in names if 2 * counts[name] > len(rows)), _STEP)
    step = 0
    for row in rows:
        # A row without the step, such as one of an evaluation, belongs to the step before it.
        own = _whole(row.get(name))
        step = step if own is None else own
        yield step, {key: value for key, value in row.items() if key != name}


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else None


def _flat(row: Row, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values; W&B shows an inner mapping as names with a dot. Its own values are left out."""
    for key, value in row.items():
        if isinstance(value, dict) and _KIND not in value:
            yield from _flat(cast("Row", value), f"{prefix}{key}.")
        elif not key.startswith("_") and value is not None:
            yield f"{prefix}{key}", value


def _number(value: object) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    # Older versions write these as texts.
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else None


def _picture_paths(value: Mapping[str, Any]) -> Iterator[str]:
    if value.get(_KIND) == _PICTURE and isinstance(value.get("path"), str):
        yield value["path"]
    elif value.get(_KIND) == _PICTURES:
        yield from (str(name) for name in value.get("filenames", ()))


def _read_pictures(folder: Path, pictures: Sequence[tuple[str, int, str]]) -> Iterator[SourcePicture]:
    for name, step, relative in pictures:
        path = folder / relative
        # A path in the log may lead anywhere: only files of the run are read.
        inside = path.resolve().is_relative_to(folder.resolve())
        yield SourcePicture(name=name, step=step, content=path.read_bytes() if inside and path.is_file() else b"")
