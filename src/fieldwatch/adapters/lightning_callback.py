"""`LightningCallback` for Lightning: a run that is recorded, guarded and resumed by one callback."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from fieldwatch import InputError
from fieldwatch.adapters.framework_loop import ForeignState, FrameworkLoop, is_evaluation, refuse_several
from fieldwatch.files import write_file

RESUMED = "lightning-resume.ckpt"
"""File in the run folder to which the Lightning checkpoint of a fieldwatch checkpoint is written for the trainer."""


class LightningCallback(Callback):
    """Records, guards, saves and resumes the training of a Lightning ``Trainer``.

    The checkpoints of the run contain those of Lightning: weights, optimizers, schedules, callbacks, progress, and the
    positions of data loaders that have one.

    Args:
        folder: run folder.
        terms: names under which ``training_step`` logs the loss terms with ``self.log``, and their weights; None
            records the loss alone.
        refuse: whether to refuse updates whose gradients are not finite. On a GPU this waits for it at every update.
        groups: parameter groups to watch by name; None for the whole module.
        **options: options of :class:`fieldwatch.Run`, such as ``saving`` and ``config``.

    Example:
        >>> watch = LightningCallback("runs/mine", terms={"fit": 1.0, "small": 0.1})  # doctest: +SKIP
        >>> trainer = Trainer(callbacks=[watch])  # doctest: +SKIP
        >>> trainer.fit(model, loader, ckpt_path=watch.resume(trainer))  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        terms: Mapping[str, float] | None = None,
        refuse: bool = True,
        groups: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._loop = FrameworkLoop(
            folder, terms=terms or {}, refuse=refuse, restores_random_state=False, options=options
        )
        self._groups = groups
        self._trainer: pl.Trainer | None = None
        self._state = ForeignState(self._save, self._restore)
        self._path: Path | None = None
        # Of the batches that the open step has accumulated.
        self._loss: Tensor | None = None
        self._logged: list[dict[str, Any]] = []
        self._stepping: list[Optimizer] = []

    @property
    def run(self) -> Any:
        """The run: its findings, its exit code, and everything else to record."""
        return self._loop.run

    def resume(self, trainer: pl.Trainer) -> str | None:
        """Enter the run, and return the path of its last checkpoint for ``trainer.fit(..., ckpt_path=...)``.

        Args:
            trainer: trainer that the path is for.

        Returns:
            None if there is no checkpoint, so that the trainer starts at its first step.

        Raises:
            InputError: the trainer starts several processes; nothing is written then.
        """
        # Before the trainer starts them: each would run the script, and find the folder in use.
        refuse_several(max(trainer.world_size, trainer.num_devices * trainer.num_nodes))
        self._loop.start()
        self.run.track(lightning=self._state)
        self.run.resume()
        return None if self._path is None else str(self._path)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin to watch the module and its optimizers."""
        if not self._loop.started:
            self.resume(trainer)
        if self._path is not None and str(trainer.ckpt_path) != str(self._path):
            raise InputError(
                f"{self.run.folder} holds a training, but the trainer starts a new one: write trainer.fit(..., "
                "ckpt_path=watch.resume(trainer)), or choose another folder"
            )
        self._trainer = trainer
        loaders = trainer.train_dataloader
        sources = loaders if isinstance(loaders, list | tuple) else [loaders]
        with_position = [each for each in sources if hasattr(each, "state_dict")]
        schedules = [each.scheduler for each in trainer.lr_scheduler_configs]
        self._state.contains = [pl_module, *trainer.optimizers, *schedules, *with_position]
        for source in sources:
            self.run.batches(source)  # warns of one without a position
        self.run.track(groups=self._groups or {"model": pl_module})
        total = trainer.estimated_stepping_batches
        self._loop.total = int(total) if total != float("inf") else None

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Open a step, unless this batch is accumulated into the open one."""
        self._loop.begin()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Measure the gradients before Lightning clips them, and refuse the update if they are not finite."""
        self._finish_updates()
        inner = getattr(optimizer, "optimizer", optimizer)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._loop.before_update(inner, scaler if isinstance(scaler, GradScaler) else None)
        self._stepping.append(inner)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the loss; close the step if the weights were updated."""
        self._finish_updates()
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            # Lightning has divided it by the number of accumulated batches.
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        # Evaluations are recorded at their end; Lightning keeps their values until the next one.
        logged = {name: value for name, value in trainer.callback_metrics.items() if not is_evaluation(name)}
        self._logged.append({name.removesuffix("_step"): value for name, value in logged.items()})
        if not self._loop.updated:
            return
        self._loop.observe(self._loss, self._logged)
        self._loop.record(self._logged[-1])
        self._loss = None
        self._logged.clear()
        self._loop.end()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record what was logged during the validation."""
        if self._loop.started and not trainer.sanity_checking:
            self._loop.record({k: v for k, v in trainer.callback_metrics.items() if is_evaluation(k)})

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the last state and finish the run."""
        self._loop.finish()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave the run with the error."""
        self._loop.finish(exception)

    def _finish_updates(self) -> None:
        for optimizer in self._stepping:
            self._loop.after_update(optimizer)
        self._stepping.clear()

    def _save(self) -> dict[str, Any]:
        """Return the bytes of a Lightning checkpoint of this moment."""
        if self._trainer is None:
            return {}
        path = self.run.folder / f".lightning-{os.getpid()}.ckpt"
        try:
            self._trainer.save_checkpoint(path)
            return {"checkpoint": torch.from_numpy(np.fromfile(path, dtype=np.uint8))}
        finally:
            path.unlink(missing_ok=True)

    def _restore(self, state: dict[str, Any]) -> None:
        path = self.run.folder / RESUMED
        write_file(path, state["checkpoint"].cpu().numpy().tobytes())
        self._path = path
