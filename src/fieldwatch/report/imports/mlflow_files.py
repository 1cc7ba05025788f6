"""Reader for one run of MLflow's file store (``mlruns/EXPERIMENT/RUN``), as a source of an import."""

import re
from pathlib import Path

from fieldwatch.report.imports.mlflow_names import ending_note, logged_pictures, parameter
from fieldwatch.report.imports.source import BadSource, SourceRun, Values

META = "meta.yaml"
METRICS = "metrics"
_STATES = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}
_STATUS = re.compile(r"^status: *['\"]?(\w+)", re.MULTILINE)


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder is that of a run in MLflow's file store."""
    return (folder / META).is_file() and (folder / METRICS).is_dir()


def name_of_run(folder: Path) -> str:
    """Return the name of a run; empty if it has none."""
    path = folder / "tags" / "mlflow.runName"
    return path.read_text(errors="replace").strip() if path.is_file() else ""


def read_mlflow_files(folder: Path, *, partial: bool) -> SourceRun:
    """Read the metrics, parameters and pictures of a run.

    Args:
        folder: folder of the run.
        partial: leave out the lines that cannot be read.

    Raises:
        BadSource: a line of a metric is damaged, and `partial` is not set.
    """
    values = Values()
    notes: list[str] = []
    # A name with a slash is a file in a folder of that name.
    for path in sorted(each for each in (folder / METRICS).rglob("*") if each.is_file()):
        name = path.relative_to(folder / METRICS).as_posix()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            try:
                milliseconds, value, *rest = line.split()
                values.add(name, int(rest[0]) if rest else 0, int(milliseconds) / 1000, float(value))
            except ValueError as error:
                message = f"line {number} of {path} is damaged: expected a time, a value and a step, got {line[:80]!r}"
                if not partial:
                    raise BadSource(f"{message}; leave it out with --partial, or use an intact copy") from error
                notes.append(message)
    entry = _STATUS.search((folder / META).read_text(errors="replace"))
    status = entry[1] if entry is not None else ""
    return SourceRun(
        tool="MLflow",
        name=name_of_run(folder) or folder.name,
        place=folder,
        series=values.series(),
        config=_params(folder / "params"),
        pictures=lambda: logged_pictures(folder / "artifacts"),
        began=values.began(),
        notes=(*notes, *ending_note(_STATES.get(status) or status)),
    )


def _params(folder: Path) -> dict[str, int | float | bool | str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return {path.relative_to(folder).as_posix(): parameter(path.read_text(errors="replace")) for path in paths}
