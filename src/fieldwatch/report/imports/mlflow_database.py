"""Reader for the runs of an MLflow database (``mlflow.db``), read without the mlflow package."""

import math
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fieldwatch.report.imports.mlflow_names import ending_note, logged_pictures, parameter, stored_value
from fieldwatch.report.imports.source import SourceRun, Values
from fieldwatch.report.imports.sqlite import opened

TABLES = {"experiments", "runs", "metrics", "params"}
"""Tables by which a database of MLflow is known."""


def runs_of(path: Path) -> list[tuple[str, str]]:
    """Return ID and name of each run that is not deleted, oldest first.

    Raises:
        BadSource: the database is damaged.
    """
    query = "SELECT run_uuid, name FROM runs WHERE lifecycle_stage IS NOT 'deleted' ORDER BY start_time, run_uuid"
    with opened(path) as database:
        return [(str(identity), str(name or "")) for identity, name in database.execute(query)]


def read_mlflow_database(path: Path, identity: str) -> SourceRun:
    """Read the metrics, parameters and pictures of a run.

    Args:
        path: the database.
        identity: ID of the run.

    Raises:
        BadSource: the database is damaged.
    """
    values = Values()
    with opened(path) as database:
        name, status, artifacts = database.execute(
            "SELECT name, status, artifact_uri FROM runs WHERE run_uuid = ?", (identity,)
        ).fetchone()
        rows = database.execute(
            "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp", (identity,)
        )
        for key, step, milliseconds, value, is_nan in rows:
            values.add(str(key), int(step), milliseconds / 1000, math.nan if is_nan else stored_value(value))
        params = database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (identity,))
        config = {key: parameter(value) for key, value in params}
    # Artifacts elsewhere, such as in a bucket, are not fetched.
    address = urlsplit(str(artifacts or ""))
    folder = Path(unquote(address.path)) if address.scheme in ("", "file") and address.path else None
    return SourceRun(
        tool="MLflow",
        name=str(name or identity),
        place=path,
        series=values.series(),
        config=config,
        pictures=lambda: logged_pictures(folder) if folder is not None else (),
        began=values.began(),
        notes=ending_note(str(status or "")),
    )
