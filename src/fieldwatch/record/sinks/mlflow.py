"""Sink that exports the journal to MLflow (requires the extra ``fieldwatch[mlflow]``)."""

import io
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from fieldwatch.record.metric import visible_columns
from fieldwatch.record.row import Block
from fieldwatch.record.sinks.extras import MissingExtra
from fieldwatch.record.sinks.finding_text import finding_text

LOGGED = "fieldwatch.logged"
"""Tag of the MLflow run that stores the last logged position of each axis."""
PICTURES = "fieldwatch.pictures"
"""Tag of the MLflow run that stores the last logged position of each picture."""
# Characters that MLflow rejects in names: all but word characters, ``-``, ``.``, ``:``, ``/`` and spaces.
_REFUSED = re.compile(r"[^\w\-. :/]")
_BATCH = 1000
"""Maximum number of metrics that MLflow accepts per call."""


class MLflow:
    """Logs rows, pictures, findings and the verdict to one run of an MLflow store; rows in calls of up to 1000 values.

    MLflow cannot delete logged values. After a resume, the same MLflow run is therefore continued and positions that it
    already has are skipped. The last logged position is stored in the tag ``fieldwatch.logged``, written together with
    the rows. Characters that MLflow rejects in names are replaced by ``_``. MLflow itself stores infinity as the
    largest float64.

    Args:
        store: tracking URI, such as ``sqlite:///runs/mlflow.db``; the folder of a local file is created if missing, and
            gets a folder ``mlruns`` with the pictures of new experiments.
        experiment: name of the experiment; created if missing.
        name: name of the run; if None, MLflow generates one.
        clock: returns seconds since 1970.

    Raises:
        MissingExtra: if mlflow is not installed.
    """

    def __init__(
        self,
        store: str,
        *,
        experiment: str = "fieldwatch",
        name: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            import mlflow  # noqa: PLC0415  optional
            from mlflow import entities  # noqa: PLC0415  optional
        except ImportError as error:
            raise MissingExtra("mlflow") from error
        self._artifacts: str | None = None
        if store.startswith("sqlite:///"):
            folder = Path(store.removeprefix("sqlite:///")).parent
            folder.mkdir(parents=True, exist_ok=True)
            # MLflow's default for pictures and other files is the current folder.
            self._artifacts = (folder.absolute() / "mlruns").as_uri()
        self._client: Any = mlflow.MlflowClient(store)
        self._entities: Any = entities
        self._experiment = experiment
        self._name = name
        self._clock = clock
        self._start: float | None = None
        self._run: str | None = None
        self._logged = {"step": -1, "epoch": -1}
        self._skip = dict(self._logged)
        self._pictures: dict[str, int] = {}

    def __call__(self, block: Block) -> None:
        """Log the rows of a block, except those already logged before a resume."""
        visible = visible_columns(block.columns)
        if not len(block) or not visible:
            return
        if self._start is None:
            # Anchor the training time at the wall clock: MLflow needs time stamps in milliseconds since 1970.
            self._start = self._clock() - float(block.seconds[-1])
        make = self._entities.Metric
        start = self._start
        metrics = [
            make(_REFUSED.sub("_", name), row.values[name], int(1000 * (start + row.seconds)), row.position)
            for row in block.rows()
            if row.position > self._skip[block.axis]
            for name in visible
        ]
        self._logged[block.axis] = max(self._logged[block.axis], int(block.positions[-1]))
        self._log(metrics)

    def config(self, flat_config: Mapping[str, Any], final_metrics: Mapping[str, float]) -> None:
        """Log the configuration as parameters (unless already logged) and the final metrics as ``Final/<name>``."""
        run = self._open()
        entities = self._entities
        # MLflow parameters are immutable: logging one again with another value is an error.
        known = self._client.get_run(run).data.params
        names = {name: _REFUSED.sub("_", name) for name in flat_config}
        params = [
            entities.Param(names[name], str(value)) for name, value in flat_config.items() if names[name] not in known
        ]
        now = int(1000 * self._clock())
        step = max(0, self._logged["step"])
        metrics = [
            entities.Metric(_REFUSED.sub("_", f"Final/{name}"), value, now, step)
            for name, value in final_metrics.items()
        ]
        self._client.log_batch(run, metrics=metrics, params=params)

    def image(self, name: str, position: int, png_bytes: bytes, width: int, height: int) -> None:
        """Log an encoded PNG of ``width`` x ``height`` pixels, unless it was already logged before a resume."""
        del width, height  # the PNG holds them
        from PIL import Image  # noqa: PLC0415  at first use

        run = self._open()
        if position <= self._pictures.get(name, -1):
            return
        with Image.open(io.BytesIO(png_bytes)) as picture:
            self._client.log_image(run, picture, key=_REFUSED.sub("_", name), step=position)
        self._pictures[name] = position
        self._client.set_tag(run, PICTURES, orjson.dumps(self._pictures).decode())

    def event(self, event: Mapping[str, Any]) -> None:
        """Write a finding of a health rule as the tag ``finding.<rule>`` of the run; skip other events."""
        if event["kind"] == "finding":
            self._client.set_tag(self._open(), _REFUSED.sub("_", f"finding.{event['rule']}"), finding_text(event))

    def verdict(self, verdict: Mapping[str, Any]) -> None:
        """Write the verdict as the tags ``verdict.level``, ``verdict.state``, ``verdict.errors``, ... of the run."""
        run = self._open()
        for name, value in verdict.items():
            self._client.set_tag(run, f"verdict.{name}", str(value))

    def mark(self) -> dict[str, Any]:
        """Return the ID of the MLflow run."""
        return {"run": self._open()}

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Continue the MLflow run of the mark, skipping rows that it already has; with None, start a new run."""
        self._run = str(mark["run"]) if mark else None
        self._skip = {"step": -1, "epoch": -1}
        self._pictures = {}
        if self._run is not None:
            tags = self._client.get_run(self._run).data.tags
            self._skip |= orjson.loads(tags.get(LOGGED, "{}"))
            self._pictures |= orjson.loads(tags.get(PICTURES, "{}"))
            self._client.update_run(self._run, status="RUNNING")
        self._logged = dict(self._skip)
        self._start = None

    def close(self) -> None:
        """Mark the MLflow run as finished."""
        if self._run is not None:
            self._client.set_terminated(self._run)

    def _open(self) -> str:
        if self._run is None:
            known = self._client.get_experiment_by_name(self._experiment)
            experiment = (
                known.experiment_id
                if known
                else self._client.create_experiment(self._experiment, artifact_location=self._artifacts)
            )
            self._run = str(self._client.create_run(experiment, run_name=self._name).info.run_id)
        return self._run

    def _log(self, metrics: list[Any]) -> None:
        tag = self._entities.RunTag(LOGGED, orjson.dumps(self._logged).decode())
        for start in range(0, len(metrics), _BATCH):
            # Send the tag with the last batch only: a crash in between repeats rows after the resume but loses none.
            last = start + _BATCH >= len(metrics)
            self._client.log_batch(self._open(), metrics=metrics[start : start + _BATCH], tags=[tag] if last else [])
