"""Sink that exports the journal to Weights & Biases (requires the extra ``fieldwatch[wandb]``)."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson

from fieldwatch.base import write_file
from fieldwatch.record.metric import visible_columns
from fieldwatch.record.row import Block
from fieldwatch.record.sinks.extras import MissingExtra
from fieldwatch.record.sinks.finding_text import finding_text

STATE = "fieldwatch-wandb.json"


class Wandb:
    """Logs rows, pictures, findings and the verdict to one wandb run. ``wandb sync`` uploads an offline one later.

    The axes ``step`` and ``epoch`` are logged as values and declared with ``define_metric``, because wandb drops rows
    whose built-in step decreases. wandb cannot delete logged rows. After a resume, the same run ID is therefore
    continued and rows that were already logged are skipped. The last logged positions are stored in
    ``fieldwatch-wandb.json`` in the folder.

    Args:
        folder: folder for wandb's files; created if missing.
        project: name of the wandb project.
        name: name of the run; if None, wandb generates one.
        mode: ``"offline"``, ``"online"``, or None to use wandb's settings.

    Raises:
        MissingExtra: if wandb is not installed.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        project: str = "fieldwatch",
        name: str | None = None,
        mode: Literal["offline", "online"] | None = None,
    ) -> None:
        try:
            import wandb  # noqa: PLC0415  optional
        except ImportError as error:
            raise MissingExtra("wandb") from error
        self._wandb = wandb
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._options: dict[str, Any] = {"project": project, "name": name, "mode": mode, "dir": str(self._folder)}
        self._run: Any = None
        self._id: str | None = None
        self._logged: dict[str, int] = {"step": -1, "epoch": -1}
        self._skip: dict[str, int] = dict(self._logged)
        self._pictures: dict[str, int] = {}
        self._on_epochs: set[str] = set()

    def __call__(self, block: Block) -> None:
        """Log the rows of a block, except those already logged before a resume."""
        visible = visible_columns(block.columns)
        if not len(block) or not visible:
            return
        run = self._open()
        self._declare_axis(block.axis, visible)
        for row in block.rows():
            # wandb cannot delete rows, so skip those that it already has from before the resume.
            if row.position > self._skip[block.axis]:
                run.log({block.axis: row.position} | {name: row.values[name] for name in visible})
        self._logged[block.axis] = max(self._logged[block.axis], int(block.positions[-1]))
        self._save()

    def config(self, flat_config: Mapping[str, Any], final_metrics: Mapping[str, float]) -> None:
        """Log the configuration, and the final metrics in the run's summary."""
        run = self._open()
        # A resumed run may differ in settings such as the device, which wandb otherwise rejects.
        run.config.update(dict(flat_config), allow_val_change=True)
        run.summary.update({f"Final/{name}": value for name, value in final_metrics.items()})

    def image(self, name: str, position: int, png_bytes: bytes, width: int, height: int) -> None:
        """Log an encoded PNG of ``width`` x ``height`` pixels, unless it was already logged before a resume."""
        del width, height  # the PNG holds them
        from PIL import Image  # noqa: PLC0415  at first use

        run = self._open()
        if position <= self._pictures.get(name, -1):
            return
        with Image.open(io.BytesIO(png_bytes)) as picture:
            run.log({"step": position, name: self._wandb.Image(picture)})
        self._pictures[name] = position
        self._save()

    def event(self, event: Mapping[str, Any]) -> None:
        """Write a finding of a health rule in the run's summary, as ``Findings/<rule>``; skip other events."""
        if event["kind"] == "finding":
            self._open().summary.update({f"Findings/{event['rule']}": finding_text(event)})

    def verdict(self, verdict: Mapping[str, Any]) -> None:
        """Write the verdict in the run's summary, as ``Verdict/level``, ``Verdict/state``, ``Verdict/errors``, ...."""
        self._open().summary.update({f"Verdict/{name}": value for name, value in verdict.items()})

    def mark(self) -> dict[str, Any]:
        """Return the ID of the wandb run."""
        return {"id": self._open().id}

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Continue the wandb run of the mark, skipping rows that it already has; with None, start a new run.

        A run that is open in this process stays open: wandb names its folder after run ID and second, so a run that is
        finished and reopened within a second would overwrite its own file.
        """
        if not mark or mark["id"] != self._id:
            self.close()
        self._id = str(mark["id"]) if mark else None
        state = self._folder / STATE
        stored: dict[str, Any] = orjson.loads(state.read_bytes()) if mark and state.exists() else {}
        self._skip = {"step": -1, "epoch": -1}
        self._pictures = {}
        if mark and stored.get("id") == self._id:
            self._skip |= stored["logged"]
            self._pictures |= stored.get("pictures", {})
        self._logged = dict(self._skip)

    def close(self) -> None:
        """Finish the wandb run."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _open(self) -> Any:
        if self._run is None:
            # resume="allow" continues the run if its ID exists, else it creates the run.
            settings = self._wandb.Settings(console="off", silent=True)
            self._run = self._wandb.init(**self._options, id=self._id, resume="allow", settings=settings)
            self._id = self._run.id
            # A new wandb process does not know the axes yet.
            self._on_epochs.clear()
            self._run.define_metric("*", step_metric="step")
        return self._run

    def _declare_axis(self, axis: str, names: tuple[str, ...]) -> None:
        for name in names:
            if axis == "epoch" and name not in self._on_epochs:
                self._on_epochs.add(name)
                self._run.define_metric(name, step_metric="epoch")

    def _save(self) -> None:
        path = self._folder / STATE
        write_file(path, orjson.dumps({"id": self._id, "logged": self._logged, "pictures": self._pictures}))
