"""Writing the record of a run as a folder of files for other tools: all of them, or none."""

import os
import shutil
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import orjson

from fieldwatch.base import ExistingPathError, InputError
from fieldwatch.record.damage import Damage, DamageTally
from fieldwatch.record.exports.columns import EVENT_COLUMNS, Columns, event_cells
from fieldwatch.record.exports.csv_files import CsvTable
from fieldwatch.record.exports.event_files import write_event_files
from fieldwatch.record.exports.parquet import ParquetTable
from fieldwatch.record.exports.wide import ExportSource, batches, read_outlines
from fieldwatch.record.manifest import read_manifest
from fieldwatch.record.metric import Axis
from fieldwatch.record.reading import note_damage, read_events

Target = Literal["parquet", "csv", "tensorboard"]
TARGETS: tuple[Target, ...] = get_args(Target)
_NAMES: dict[Axis, str] = {"step": "steps", "epoch": "epochs"}
_EVENT_ROWS = 4096
_TABLES = tuple(f"{name}{kind}" for name in (*_NAMES.values(), "events") for kind in (".parquet", ".csv"))


@dataclass(frozen=True, kw_only=True)
class ExportedRecord:
    """What was written.

    Attributes:
        folder: where.
        files: file name to its size in bytes.
        rows: table ("steps", "epochs", "events") to its number of rows.
        columns: table to its number of metrics.
        damage: what is damaged in the run's record, and left out.
    """

    folder: Path
    files: Mapping[str, int]
    rows: Mapping[str, int]
    columns: Mapping[str, int]
    damage: tuple[Damage, ...] = ()


def export_record(folder: Path | str, to: Target, out: Path | str, *, overwrite: bool = False) -> ExportedRecord:
    """Write the rows of a run that stand, and its events, into a folder of their own.

    Parquet and CSV: ``steps`` (one row per step, one column per metric), ``epochs`` (what is counted by epochs) and
    ``events``, each where there is any. TensorBoard: one event file. The folder appears when it is complete.
    Memory stays flat: the record is read twice, some ten thousand rows at a time.

    Args:
        folder: the run's.
        to: the kind of files.
        out: the folder to write; made, with those above it.
        overwrite: whether a folder that is there may be replaced; only one that an export wrote.

    Raises:
        NotARun: there is no run.
        FileExistsError: the folder is there; the message says what to do.
        InputError: nothing has been recorded yet, or TensorBoard has no place for a step.
        MissingExtra: pyarrow is not installed.
    """
    run = Path(folder)
    target = Path(out)
    manifest = read_manifest(run)
    refuse_existing(target, overwrite=overwrite)
    damage = DamageTally()
    note_damage(run, damage)
    found = read_outlines(run, damage)
    # An export of nothing would be an empty folder that looks like a failure of the tool.
    if not found and (to == "tensorboard" or next(read_events(run), None) is None):
        raise InputError(f"{run} has recorded nothing yet that --to {to} could show: wanted a row; train a step first")
    source = ExportSource(folder=run, manifest=manifest, catalogue=manifest.catalogue(), outlines=found)
    with _whole_folder(target) as draft:
        rows = _write_event_files(source, draft) if to == "tensorboard" else _write_tables(source, draft, to)
        files = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
    columns = {_NAMES[axis]: len(outline.columns) for axis, outline in found.items()}
    # Events are read once more only to count their damage; TensorBoard files hold none.
    deque(read_events(run, damage), maxlen=0)
    return ExportedRecord(folder=target, files=files, rows=rows, columns=columns, damage=damage.entries)


def refuse_existing(target: Path, *, overwrite: bool) -> None:
    """Raise FileExistsError where something is that may not be replaced."""
    if target.suffix in {".parquet", ".csv"}:
        raise ExistingPathError(f"{target} is the name of a file, and an export is a folder of several: name a folder")
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink():
        raise ExistingPathError(f"{target} is there and no folder: name another one for the export")
    # Deleting a folder is allowed only where an export made everything in it.
    strange = [path.name for path in target.iterdir() if path.name not in _TABLES and ".tfevents." not in path.name]
    if strange:
        raise ExistingPathError(f"{target} holds {strange[0]!r}, which no export wrote: name another folder")
    if not overwrite and any(target.iterdir()):
        raise ExistingPathError(f"{target} is there: name another folder, or say --overwrite to replace that export")


@contextmanager
def _whole_folder(target: Path) -> Generator[Path]:
    """Give out a folder to write into; it gets its name when it is complete, and whoever fails leaves none behind."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft, old = (target.with_name(f".{target.name}.{os.getpid()}{end}") for end in ("", ".old"))
    draft.mkdir()
    try:
        yield draft
        # The old export is renamed, not deleted, so that one of the two is there at any moment.
        if target.exists():
            target.replace(old)
        draft.replace(target)
    finally:
        for left in (draft, old):
            if left.exists():
                shutil.rmtree(left)


def _write_event_files(source: ExportSource, draft: Path) -> dict[str, int]:
    return {_NAMES[axis]: rows for axis, rows in write_event_files(source, draft).items()}


def _write_tables(source: ExportSource, draft: Path, to: Literal["parquet", "csv"]) -> dict[str, int]:
    """Write one file per axis, and the events; returns how many rows each has."""
    kind = ParquetTable if to == "parquet" else CsvTable
    config = orjson.dumps(dict(source.manifest.config), default=str).decode()
    about = {"run": source.folder.absolute().name, "config": config}
    columns = {
        axis: Columns.of(axis, outline.columns, names_samples=outline.names_samples)
        for axis, outline in source.outlines.items()
    }
    rows: dict[str, int] = {}
    with ExitStack() as stack:
        tables: dict[str, ParquetTable | CsvTable] = {}
        for axis in source.outlines:
            path = draft / f"{_NAMES[axis]}{kind.suffix}"
            shown = columns[axis]
            tables[axis] = stack.enter_context(kind(path, shown, source.catalogue, about))
        for axis, batch in batches(source):
            tables[axis].write(batch, columns[axis].head_of(batch))
            rows[_NAMES[axis]] = rows.get(_NAMES[axis], 0) + len(batch)
    events = read_events(source.folder)
    event_batch = list(islice(events, _EVENT_ROWS))
    if event_batch:
        path = draft / f"events{kind.suffix}"
        shown = Columns(head=EVENT_COLUMNS, metrics={})
        with kind(path, shown, source.catalogue, about) as table:
            while event_batch:
                table.write_events([event_cells(event) for event in event_batch])
                rows["events"] = rows.get("events", 0) + len(event_batch)
                event_batch = list(islice(events, _EVENT_ROWS))
    return rows
