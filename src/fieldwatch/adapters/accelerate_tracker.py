"""`AccelerateTracker` for Accelerate: a run that is recorded, guarded and resumed by one tracker."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.tracking import GeneralTracker
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch import InputError, Run
from fieldwatch.adapters.framework_loop import ForeignState, FrameworkLoop, mean_logged, refuse_several
from fieldwatch.files import output_path, write_file

RESUMED = "accelerate-resume"
"""Folder in the run folder to which the state of a checkpoint is written for ``accelerator.load_state``."""


class AccelerateTracker(GeneralTracker):
    """Records, guards, saves and resumes a loop with an ``Accelerator``.

    A step of the run ends with ``accelerator.log(...)``: call it once for every batch, after the optimizer and the
    schedule. Checkpoints contain what ``accelerator.save_state`` saves: everything that was prepared, or registered
    with ``accelerator.register_for_checkpointing``, such as a :class:`fieldwatch.ResumableLoader`.

    Args:
        folder: run folder.
        terms: names under which the loop logs the loss terms, and their weights; None records ``loss`` alone.
        refuse: whether to refuse updates whose gradients are not finite. On a GPU this waits for it at every update.
        **options: options of :class:`fieldwatch.Run`; ``config`` is that of ``accelerator.init_trackers``.

    Example:
        >>> watch = AccelerateTracker("runs/mine")  # doctest: +SKIP
        >>> accelerator = Accelerator(log_with=watch)  # doctest: +SKIP
        >>> model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)  # doctest: +SKIP
        >>> accelerator.init_trackers("mine")  # doctest: +SKIP
        >>> done = watch.resume(accelerator, optimizer, schedule, loader, model=model)  # doctest: +SKIP
    """

    name = "fieldwatch"
    requires_logging_directory = False

    def __init__(
        self, folder: str | Path, *, terms: Mapping[str, float] | None = None, refuse: bool = True, **options: Any
    ) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._terms = terms or {}
        self._refuse = refuse
        self._options = options
        self._loop: FrameworkLoop | None = None
        self._accelerator: Accelerator | None = None
        self._state = ForeignState(self._save, self._restore)
        # Of the batches of the open step.
        self._logged: list[Mapping[str, Any]] = []

    @property
    def tracker(self) -> Run:
        """The run: its findings, its exit code, and everything else to record."""
        return self._started.run

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Take the configuration of the run; a resumed run must have the same."""
        self._options.setdefault("config", values)

    def resume(self, accelerator: Accelerator, *others: Any, total: int | None = None, **models: nn.Module) -> int:
        """Enter the run, restore its last checkpoint, and watch the models and their optimizers.

        Call it after ``prepare``, ``register_for_checkpointing`` and ``init_trackers``, and before the loop.

        Args:
            accelerator: accelerator of the loop.
            *others: all other objects that were prepared or registered: optimizers, schedules, loaders.
            total: planned number of updates, for forecasts; None if unknown.
            **models: prepared models; each is a parameter group of its name.

        Returns:
            The number of updates that are done; 0 in a new run.
        """
        refuse_several(accelerator.num_processes)
        self._loop = loop = FrameworkLoop(
            self._folder, terms=self._terms, refuse=self._refuse, restores_random_state=True, options=self._options
        )
        self._accelerator = accelerator
        loop.total = total
        loop.start()
        self._state.contains = [*models.values(), *map(_unwrapped, others)]
        loop.run.track(accelerate=self._state)
        done = loop.run.resume() or 0
        loop.run.track(groups={name: accelerator.unwrap_model(model) for name, model in models.items()})
        loop.hook([_unwrapped(each) for each in others if isinstance(each, Optimizer)])
        for model in models.values():
            loop.begin_with(model)
        return done

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record what was logged; end the step, if the weights were updated."""
        loop = self._started
        accelerator = self._accelerator
        is_step = loop.terms.keys() <= values.keys() if loop.terms else "loss" in values
        if not is_step:
            loop.record(values)
            return
        loop.begin()
        self._logged.append(values)
        if accelerator is not None and accelerator.sync_gradients and accelerator.optimizer_step_was_skipped:
            loop.skip_update()
        if not loop.updated:
            return
        with_loss = [each for each in self._logged if "loss" in each]
        loop.observe(mean_logged("loss", with_loss) if with_loss else None, self._logged)
        self._logged.clear()
        loop.record({name: value for name, value in values.items() if name != "loss"})
        loop.end()

    def finish(self) -> None:
        """Save the last state and finish the run; ``accelerator.end_training()`` calls it."""
        if self._loop is not None:
            self._loop.finish()

    @property
    def _started(self) -> FrameworkLoop:
        if self._loop is None:
            raise InputError("the run has not begun: call watch.resume(accelerator, optimizer, model=model) first")
        return self._loop

    def _save(self) -> dict[str, Any]:
        """Return the files that the accelerator saves."""
        if self._accelerator is None:
            return {}
        folder = self._folder / f".accelerate-{os.getpid()}"
        try:
            self._accelerator.save_state(str(folder))
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            names = [path.relative_to(folder).as_posix() for path in files]
            contents: list[Tensor] = [torch.from_numpy(np.fromfile(path, dtype=np.uint8)) for path in files]
            return {"names": names, "contents": contents}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _restore(self, state: dict[str, Any]) -> None:
        folder = self._folder / RESUMED
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in zip(state["names"], state["contents"], strict=True):
            # A checkpoint of a stranger may name any path.
            path = output_path(folder, *PurePosixPath(name).parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content.cpu().numpy().tobytes())
        if self._accelerator is not None:
            self._accelerator.load_state(str(folder))


def _unwrapped(prepared: Any) -> Any:
    """Return the optimizer or schedule that the accelerator has wrapped."""
    wrapped = "optimizer" if isinstance(prepared, AcceleratedOptimizer) else "scheduler"
    return getattr(prepared, wrapped, prepared)
