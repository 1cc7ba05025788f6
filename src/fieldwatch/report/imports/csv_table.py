"""Reader for a table of metrics (``metrics.csv`` and the like) with a column of steps or epochs."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldwatch.base import printable
from fieldwatch.record import Axis
from fieldwatch.report.imports.source import BadSource, SourceRun, Values

_STEPS = (
    "step",
    "global_step",
    "trainer/global_step",
    "train/global_step",
    "_step",
    "iteration",
    "iter",
    "total_timesteps",
    "time/total_timesteps",
)
_EPOCHS = ("epoch",)
_TIMES = ("timestamp", "_timestamp", "wall_time", "time", "seconds", "_runtime", "time/time_elapsed")
"""Names of columns in lower case, the most certain ones first."""
_SEPARATORS = ",;\t"
_HPARAMS = "hparams.yaml"
_MOST_HEAD = 1 << 20
"""Maximum length of the line with the names of the columns, so that no large binary file is taken for one line."""


def axis_of(names: Sequence[str]) -> tuple[int, Axis] | None:
    """Return the index of the column of steps, else of epochs; None without one."""
    lower = [name.strip().lower() for name in names]
    step = next((lower.index(name) for name in _STEPS if name in lower), None)
    if step is not None:
        return step, "step"
    epoch = next((lower.index(name) for name in _EPOCHS if name in lower), None)
    return None if epoch is None else (epoch, "epoch")


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a table; empty if the first line names none."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        line = file.readline(_MOST_HEAD)
    try:
        rows = list(csv.reader([line], delimiter=_separator(line)))
    # A file that is no table has lines of any length.
    except csv.Error:
        return []
    return rows[0] if rows else []


def read_csv(path: Path, name: str, *, partial: bool) -> SourceRun:
    """Read the columns of numbers; an empty cell is no value.

    Args:
        path: the table.
        name: name of the run.
        partial: read a table with a damaged line up to that line.

    Raises:
        BadSource: there is no column of steps or epochs, or a line is damaged and `partial` is not set.
    """
    names = column_names(path)
    found = axis_of(names)
    if found is None:
        raise BadSource(
            f"{path}: expected a table with a column step or epoch, got {_listed(names)}: rename the column that "
            "counts the steps"
        )
    at, axis = found
    rows, notes = _rows(path, len(names), partial=partial)
    numbers = _number_columns(names, rows, at)
    lower = [each.strip().lower() for each in names]
    clock = next((lower.index(each) for each in _TIMES if each in lower and lower.index(each) in numbers), None)
    values = Values()
    for number, row in rows:
        step = _step(row[at])
        if step is None:
            raise BadSource(f"line {number} of {path}: expected a whole number as {names[at]}, got {row[at][:40]!r}")
        time = _number(row[clock]) if clock is not None else None
        for column in numbers:
            value = _number(row[column])
            if row[column].strip() and value is None:
                raise BadSource(
                    f"line {number} of {path}: expected a number as {names[column]}, got {row[column][:40]!r}: mend "
                    "the line, or leave the cell empty"
                )
            if value is not None and column != clock:
                values.add(names[column].strip(), step, math.nan if time is None else time, value)
    texts = [names[i].strip() for i in range(len(names)) if i not in (at, clock) and i not in numbers]
    if texts:
        notes.append(f"skipped, columns without numbers: {printable(', '.join(texts))}")
    config, problem = _hyperparameters(path.with_name(_HPARAMS))
    # A column such as Unix time says when the run began, seconds since its start do not.
    began = values.began()
    return SourceRun(
        tool="CSV",
        name=name,
        place=path,
        series=values.series(),
        # An epoch counts as one step: a table by epoch does not say how many steps it has.
        axis=axis,
        config=config,
        began=began if began > 1e9 else math.nan,
        notes=(*notes, *problem),
    )


def _rows(path: Path, width: int, *, partial: bool) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """Return line number and cells of each row that is not empty, and remarks on damage."""
    rows: list[tuple[int, list[str]]] = []
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file, delimiter=_separator(file.readline(_MOST_HEAD)))
        damage = ""
        try:
            for row in reader:
                if len(row) != width and any(cell.strip() for cell in row):
                    damage = f"it has {len(row)} cells, the table has {width} columns"
                    break
                if len(row) == width:
                    rows.append((reader.line_num + 1, row))
        except csv.Error as error:
            damage = str(error)
    if not damage:
        return rows, []
    damage = f"line {reader.line_num + 1} of {path} is damaged: {damage}"
    if not partial:
        raise BadSource(f"{damage}; import what comes before it with --partial, or mend the line")
    return rows, [f"{damage}; the rest was not read"]


def _number_columns(names: Sequence[str], rows: Sequence[tuple[int, list[str]]], at: int) -> list[int]:
    """Return the indices of the columns with at least one number."""
    return [i for i in range(len(names)) if i != at and any(_number(row[i]) is not None for _, row in rows)]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _step(cell: str) -> int | None:
    number = _number(cell)
    return int(number) if number is not None and math.isfinite(number) and number == int(number) else None


def _separator(line: str) -> str:
    return max(_SEPARATORS, key=line.count)


def _listed(names: Sequence[str]) -> str:
    return printable(", ".join(names))[:200] or "an empty file"


def _hyperparameters(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the entries of a flat YAML file, as Lightning writes it; a nested one is left out, with a remark."""
    if not path.is_file():
        return {}, ()
    config: dict[str, Any] = {}
    for line in path.read_text(errors="replace").splitlines():
        key, colon, value = line.partition(":")
        if not line.strip() or line.startswith("#") or line.strip() == "{}":
            continue
        if not colon or line[0] in " -" or not value.strip():
            return {}, (f"{path.name} was not read: it has nested values",)
        config[key.strip()] = _scalar(value.strip())
    return config, ()


def _scalar(text: str) -> Any:
    words = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    number = _number(text)
    if number is None or not math.isfinite(number):
        return text.strip("'\"")
    return int(text) if text.lstrip("+-").isdecimal() else number
