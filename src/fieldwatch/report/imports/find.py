"""Search for the runs of other tools in a file or folder."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fieldwatch.base import MissingPathError, printable
from fieldwatch.record import holds_run
from fieldwatch.report.imports.csv_table import axis_of, column_names, read_csv
from fieldwatch.report.imports.mlflow_database import TABLES as MLFLOW_TABLES
from fieldwatch.report.imports.mlflow_database import read_mlflow_database, runs_of
from fieldwatch.report.imports.mlflow_files import is_run_folder, name_of_run, read_mlflow_files
from fieldwatch.report.imports.source import BadSource, ImportableRun, SourceRun
from fieldwatch.report.imports.sqlite import is_database, tables_of
from fieldwatch.report.imports.trackio import TABLES as TRACKIO_TABLES
from fieldwatch.report.imports.trackio import read_trackio, trackio_runs
from fieldwatch.report.imports.wandb import read_wandb

KNOWN = (
    "TensorBoard event files (*tfevents*), a W&B run (run-*.wandb), MLflow (mlruns/ or mlflow.db), a Trackio "
    "project (PROJECT.db), or a CSV file with a column step or epoch"
)
_TABLES = (".csv", ".tsv")
_DATABASES = (".db", ".sqlite", ".sqlite3")
_EVENTS = "tfevents"
_MOST_LISTED = 20


def find_runs(source: Path) -> list[ImportableRun]:
    """Return the runs of other tools in a file, or at or below a folder; links are not followed.

    Raises:
        MissingPathError: the path does not exist.
        BadSource: it holds no run of a known tool, or is a run of this toolkit.
    """
    if not source.exists():
        raise MissingPathError(f"there is no {source}: expected {KNOWN}")
    if source.is_dir() and holds_run(source):
        raise BadSource(f"{source} is a fieldwatch run already: expected {KNOWN}")
    found = list(_in_folders(source) if source.is_dir() else _in_file(source, source.name))
    if not found:
        what = "no run of a tool that is known" if source.is_dir() else "no file of a tool that is known"
        raise BadSource(f"{source}: {what}: expected {KNOWN}")
    return found


def choose_run(found: Sequence[ImportableRun], source: Path, name: str | None) -> ImportableRun:
    """Return the only run, or the one with a name or identity.

    Raises:
        BadSource: there are several, and no name or a name of none or several of them; the message lists them.
    """
    chosen = [each for each in found if name is None or name in (each.name, each.identity)]
    if len(chosen) == 1:
        return chosen[0]
    listed = chosen or found
    names = [each.name for each in listed]
    # Runs with the same name are listed by their identities.
    shown = [each.identity if names.count(each.name) > 1 else each.name for each in listed]
    lines = "\n".join(
        f"  {printable(each)} ({run.tool})" for each, run in zip(shown, listed, strict=True) if each
    ).splitlines()
    more = [f"  and {len(lines) - _MOST_LISTED} more"] if len(lines) > _MOST_LISTED else []
    problem = "" if name is None else f"--run {name}: "
    raise BadSource(
        "\n".join(
            (
                f"{problem}expected one run, got {len(chosen)} in {source}: choose one with --run NAME, of these:",
                *lines[:_MOST_LISTED],
                *more,
            )
        )
    )


def _in_folders(source: Path) -> Iterator[ImportableRun]:
    for place, inner, names in os.walk(source):
        inner.sort()
        folder = Path(place)
        relative = folder.relative_to(source).as_posix()
        label = source.absolute().name if relative == "." else relative
        # A run folder of ours holds event files of its own, which are no other run.
        if holds_run(folder):
            inner.clear()
        elif is_run_folder(folder):
            inner.clear()
            yield _mlflow_folder(folder)
        else:
            yield from _in_folder(folder, label, sorted(names))
            if any(each.endswith(".wandb") for each in names):
                inner.clear()


def _in_folder(folder: Path, label: str, names: Sequence[str]) -> Iterator[ImportableRun]:
    # All event files of a folder are one run.
    if any(_EVENTS in each and not each.startswith(".") for each in names):
        yield from _event_files(folder, label)
    for each in names:
        if _EVENTS not in each:
            yield from _in_file(folder / each, label if each.endswith(".wandb") else f"{label}/{each}")


def _in_file(path: Path, label: str) -> Iterator[ImportableRun]:
    if _EVENTS in path.name:
        yield from _event_files(path, label)
    elif path.suffix == ".wandb":
        identity = path.stem.removeprefix("run-")
        yield ImportableRun(tool="W&B", name=label, identity=identity, read=lambda part: read_wandb(path, partial=part))
    elif path.suffix.lower() in _TABLES and axis_of(column_names(path)) is not None:
        yield ImportableRun(
            tool="CSV", name=label, identity=str(path), read=lambda part: read_csv(path, path.stem, partial=part)
        )
    elif path.suffix.lower() in _DATABASES and is_database(path):
        yield from _in_database(path)


def _in_database(path: Path) -> Iterator[ImportableRun]:
    # A database cannot be read in part: it is damaged as a whole.
    tables = tables_of(path)
    if tables >= MLFLOW_TABLES:
        for identity, name in runs_of(path):
            read = partial(_of_mlflow, path, identity)
            yield ImportableRun(tool="MLflow", name=name or identity, identity=identity, read=read)
    elif tables >= TRACKIO_TABLES:
        for identity, name in trackio_runs(path):
            read = partial(_of_trackio, path, identity, name)
            yield ImportableRun(tool="Trackio", name=name, identity=identity, read=read)


def _of_mlflow(path: Path, identity: str, _: object) -> SourceRun:
    return read_mlflow_database(path, identity)


def _of_trackio(path: Path, identity: str, name: str, _: object) -> SourceRun:
    return read_trackio(path, identity, name)


def _mlflow_folder(folder: Path) -> ImportableRun:
    return ImportableRun(
        tool="MLflow",
        name=name_of_run(folder) or folder.name,
        identity=folder.name,
        read=lambda part: read_mlflow_files(folder, partial=part),
    )


def _event_files(place: Path, label: str) -> Iterator[ImportableRun]:
    # Imported here: TensorBoard is an extra, and no other tool needs it.
    from fieldwatch.report.imports.tensorboard import is_session, read_tensorboard  # noqa: PLC0415  optional

    if not is_session(place):
        yield ImportableRun(
            tool="TensorBoard",
            name=label,
            identity=str(place),
            read=lambda part: read_tensorboard(place, label, partial=part),
        )
