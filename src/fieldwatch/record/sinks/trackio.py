"""Sink that exports the journal to Trackio (requires the extra ``fieldwatch[trackio]``)."""

import contextlib
import io
import os
import sqlite3
import sys
from collections.abc import Generator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fieldwatch.record.metric import visible_columns
from fieldwatch.record.row import Block
from fieldwatch.record.sinks.extras import MissingExtra

_LEVELS = {"note": "INFO", "warning": "WARN", "error": "ERROR"}
"""Level of Trackio's alert for each severity of a finding."""
_VERDICTS = {"failed": "ERROR", "findings": "WARN"}
"""Level of Trackio's alert for a verdict; INFO for the others."""
_LAST = "SELECT MAX(step) FROM (SELECT step, CAST(metrics AS TEXT) AS metrics FROM metrics WHERE run_id = ?) WHERE "
"""Trackio keeps the values of a call as a JSON object, with the step beside it."""


class Trackio:
    """Logs rows, pictures, findings and the verdict to one run of a Trackio project.

    It is a local database, unless Trackio's own variables (``TRACKIO_SPACE_ID``, ``TRACKIO_SERVER_URL``) name a server.

    Trackio cannot delete logged rows. After a resume, the same run is therefore continued, and steps that are in its
    database are skipped. Rows of epochs are logged at their step, with the epoch as a value. Findings and the verdict
    are alerts.

    Trackio has one folder per process: that of the variable ``TRACKIO_DIR`` if it is set, or the one with which trackio
    was imported before, or ``folder``.

    Args:
        folder: folder of Trackio's databases and pictures; created if missing.
        project: name of the project.
        name: name of the run; if None, Trackio generates one.

    Raises:
        MissingExtra: if trackio is not installed.
    """

    def __init__(self, folder: Path | str, *, project: str = "fieldwatch", name: str | None = None) -> None:
        # Trackio reads the variable when it is imported.
        os.environ.setdefault("TRACKIO_DIR", str(Path(folder).absolute()))
        try:
            self._trackio: Any = import_module("trackio")
            storage: Any = import_module("trackio.sqlite_storage").SQLiteStorage
        except ImportError as error:
            raise MissingExtra("trackio") from error
        self._database = Path(storage.get_project_db_path(project))
        self._project = project
        self._wanted = name
        self._name = name
        self._config: dict[str, Any] = {}
        self._run: Any = None
        self._identity: str | None = None
        self._step = 0
        self._skip = {"step": -1, "epoch": -1}

    def __call__(self, block: Block) -> None:
        """Log the rows of a block, except those already logged before a resume."""
        visible = visible_columns(block.columns)
        if not len(block) or not visible:
            return
        run = self._open()
        for row in block.rows():
            if row.step > self._skip[block.axis]:
                axis = {"epoch": row.position} if block.axis == "epoch" else {}
                run.log(axis | {name: row.values[name] for name in visible}, step=row.step)
        self._step = max(self._step, int(block.steps[-1]))

    def config(self, flat_config: Mapping[str, Any], final_metrics: Mapping[str, float]) -> None:
        """Log the configuration (unless the run has one), and the final metrics as ``Final/<name>``."""
        if self._run is None:
            # Trackio stores the configuration together with the first row of a run.
            self._config = {name: value for name, value in flat_config.items() if not name.startswith("_")}
        if final_metrics:
            self._open().log({f"Final/{name}": value for name, value in final_metrics.items()}, step=self._step)

    def image(self, name: str, position: int, png_bytes: bytes, width: int, height: int) -> None:
        """Log an encoded PNG of ``width`` x ``height`` pixels, unless it was already logged before a resume."""
        del width, height  # the PNG holds them
        from PIL import Image  # noqa: PLC0415  at first use

        run = self._open()
        if position > self._last("json_extract(metrics, ?) = 'trackio.image'", f'$."{name}"._type'):
            with Image.open(io.BytesIO(png_bytes)) as picture:
                run.log({name: self._trackio.Image(picture.convert("RGB"))}, step=position)

    def event(self, event: Mapping[str, Any]) -> None:
        """Raise an alert for a finding of a health rule; skip other events."""
        if event["kind"] == "finding":
            text = " ".join(part for part in (event["message"], event.get("remedy", "")) if part)
            self._alert(event["rule"], text, _LEVELS[event["severity"]], int(event["step"]))

    def verdict(self, verdict: Mapping[str, Any]) -> None:
        """Raise an alert ``Verdict`` that names level, state, and the numbers of errors, warnings and notes."""
        text = ", ".join(f"{name}: {value}" for name, value in verdict.items())
        self._alert("Verdict", text, _VERDICTS.get(str(verdict["level"]), "INFO"), self._step)

    def mark(self) -> dict[str, Any]:
        """Return name and ID of the Trackio run."""
        run = self._open()
        return {"name": run.name, "id": run.id}

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Continue the Trackio run of the mark, skipping rows that it already has; with None, start a new run."""
        self.close()
        self._name = str(mark["name"]) if mark else self._wanted
        self._identity = str(mark["id"]) if mark else None
        self._skip = {"step": -1, "epoch": -1}
        if mark:
            self._skip = {
                "step": self._last("json_extract(metrics, '$.epoch') IS NULL AND metrics NOT LIKE '%trackio.image%'"),
                "epoch": self._last("json_extract(metrics, '$.epoch') IS NOT NULL"),
            }

    def close(self) -> None:
        """Finish the Trackio run; waits until its values are in the database."""
        if self._run is not None:
            with _silent():
                self._run.finish()
            current: Any = import_module("trackio.context_vars").current_run
            if current.get() is self._run:
                # Else trackio finishes it again when the process ends, and prints that.
                current.set(None)
            self._run = None

    def _open(self) -> Any:
        if self._run is None:
            with _silent():
                self._run = self._trackio.init(
                    project=self._project,
                    name=self._name,
                    config=self._config,
                    # A new run may not have the name of an old one.
                    resume="never" if self._identity is None else "allow",
                    embed=False,
                    auto_log_cpu=False,
                    auto_log_gpu=False,
                )
            self._name = self._run.name
            # Opened again, it is the same run.
            self._identity = str(self._run.id)
        return self._run

    def _alert(self, title: str, text: str, level: str, step: int) -> None:
        run = self._open()
        with _silent():
            run.alert(title, text, level=self._trackio.AlertLevel[level], step=step)

    def _last(self, condition: str, *values: str) -> int:
        """Return the last step of the run's rows that meet a condition; -1 if there is none."""
        if self._identity is None or not self._database.exists():
            return -1
        with contextlib.closing(sqlite3.connect(self._database)) as database:
            found = database.execute(_LAST + condition, (self._identity, *values)).fetchone()[0]
        return -1 if found is None else int(found)


@contextlib.contextmanager
def _silent() -> Generator[None]:
    """Send what Trackio prints to standard error: standard output belongs to the program."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
