"""Export the record of a run to a folder of files for other tools. The folder is created atomically."""

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import orjson

from fieldwatch.base import ExistingPathError, InputError, whole_folder
from fieldwatch.record.damage import Damage, DamageTally
from fieldwatch.record.exports.columns import EVENT_COLUMNS, Columns, event_cells
from fieldwatch.record.exports.csv_files import CsvTable
from fieldwatch.record.exports.event_files import write_event_files
from fieldwatch.record.exports.parquet import ParquetTable
from fieldwatch.record.exports.wide import ExportSource, batches, read_outlines
from fieldwatch.record.manifest import read_manifest
from fieldwatch.record.metric import Axis
from fieldwatch.record.reading import note_damage, read_events
from fieldwatch.record.sinks.verdict import finding_counts

Target = Literal["parquet", "csv", "tensorboard"]
TARGETS: tuple[Target, ...] = get_args(Target)
_NAMES: dict[Axis, str] = {"step": "steps", "epoch": "epochs"}
_EVENT_ROWS = 4096
_TABLES = tuple(f"{name}{kind}" for name in (*_NAMES.values(), "events") for kind in (".parquet", ".csv"))


@dataclass(frozen=True, kw_only=True)
class ExportedRecord:
    """Result of an export.

    Attributes:
        folder: folder of the exported files.
        files: size of each file in bytes, by file name.
        rows: number of rows of each table ("steps", "epochs", "events").
        columns: number of metrics of each table.
        damage: damaged parts of the run's record, which were skipped.
    """

    folder: Path
    files: Mapping[str, int]
    rows: Mapping[str, int]
    columns: Mapping[str, int]
    damage: tuple[Damage, ...] = ()


def export_record(folder: Path | str, to: Target, out: Path | str, *, overwrite: bool = False) -> ExportedRecord:
    """Export the valid rows and the events of a run to a new folder.

    Parquet and CSV exports contain the tables ``steps`` (one row per step, one column per metric), ``epochs`` (metrics
    on the epoch axis) and ``events``, except empty ones. A TensorBoard export is a single event file. The folder
    appears only once it is complete. Memory use is constant: the record is read twice, in batches of about ten thousand
    rows.

    Args:
        folder: the run folder.
        to: format of the export.
        out: folder to create, including missing parents.
        overwrite: whether to replace an existing folder, provided that an earlier export wrote it.

    Raises:
        NotARun: if the folder holds no run.
        FileExistsError: if ``out`` exists and may not be replaced; the message says what to do.
        InputError: if nothing has been recorded yet, or a step exceeds TensorBoard's limit.
        MissingExtra: if pyarrow is not installed.
    """
    run = Path(folder)
    target = Path(out)
    manifest = read_manifest(run)
    refuse_existing(target, overwrite=overwrite)
    damage = DamageTally()
    note_damage(run, damage)
    outlines = read_outlines(run, damage)
    # Refuse to export an empty record: an empty folder would look like a bug of the exporter.
    if not outlines and (to == "tensorboard" or next(read_events(run), None) is None):
        raise InputError(f"{run} has no recorded rows to export with --to {to}: train at least one step first")
    source = ExportSource(folder=run, manifest=manifest, catalogue=manifest.catalogue(), outlines=outlines)
    with whole_folder(target, replace=True) as draft:
        rows = _write_event_files(source, draft) if to == "tensorboard" else _write_tables(source, draft, to)
        files = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
    columns = {_NAMES[axis]: len(outline.columns) for axis, outline in outlines.items()}
    # Read the events once more to count their damage; a TensorBoard export has not read them at all.
    deque(read_events(run, damage), maxlen=0)
    return ExportedRecord(folder=target, files=files, rows=rows, columns=columns, damage=damage.entries)


def refuse_existing(target: Path, *, overwrite: bool) -> None:
    """Raise FileExistsError if the target exists and may not be replaced, or if its name is that of a file."""
    if target.suffix in {".parquet", ".csv"}:
        raise ExistingPathError(f"{target} is a file name, but an export is a folder of several files: give a folder")
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink():
        raise ExistingPathError(f"{target} exists and is not a folder: choose another folder for the export")
    # Replace a folder only if all of its files come from an export.
    foreign = [path.name for path in target.iterdir() if path.name not in _TABLES and ".tfevents." not in path.name]
    if foreign:
        raise ExistingPathError(f"{target} contains {foreign[0]!r}, which no export wrote: choose another folder")
    if not overwrite and any(target.iterdir()):
        raise ExistingPathError(f"{target} already exists: choose another folder, or replace it with --overwrite")


def _write_event_files(source: ExportSource, draft: Path) -> dict[str, int]:
    return {_NAMES[axis]: rows for axis, rows in write_event_files(source, draft).items()}


def _write_tables(source: ExportSource, draft: Path, to: Literal["parquet", "csv"]) -> dict[str, int]:
    """Write one file per axis, and the events; returns how many rows each has."""
    kind = ParquetTable if to == "parquet" else CsvTable
    config = orjson.dumps(dict(source.manifest.config), default=str).decode()
    found = (str(event.get("severity")) for event in read_events(source.folder) if event["kind"] == "finding")
    findings = orjson.dumps(finding_counts(found)).decode()
    about = {"run": source.folder.absolute().name, "config": config, "findings": findings}
    columns = {
        axis: Columns.of(axis, outline.columns, names_samples=outline.names_samples)
        for axis, outline in source.outlines.items()
    }
    rows: dict[str, int] = {}
    with ExitStack() as stack:
        tables: dict[str, ParquetTable | CsvTable] = {}
        for axis in source.outlines:
            path = draft / f"{_NAMES[axis]}{kind.suffix}"
            tables[axis] = stack.enter_context(kind(path, columns[axis], source.catalogue, about))
        for axis, batch in batches(source):
            tables[axis].write(batch, columns[axis].head_of(batch))
            rows[_NAMES[axis]] = rows.get(_NAMES[axis], 0) + len(batch)
    # In batches, since a long run may have millions of events.
    events = read_events(source.folder)
    event_batch = list(islice(events, _EVENT_ROWS))
    if event_batch:
        path = draft / f"events{kind.suffix}"
        event_columns = Columns(head=EVENT_COLUMNS, metrics={})
        with kind(path, event_columns, source.catalogue, about) as table:
            while event_batch:
                table.write_events([event_cells(event) for event in event_batch])
                rows["events"] = rows.get("events", 0) + len(event_batch)
                event_batch = list(islice(events, _EVENT_ROWS))
    return rows
