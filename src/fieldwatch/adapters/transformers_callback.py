"""`TransformersCallback` for the Hugging Face Trainer: a run that is recorded and guarded by one callback."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from fieldwatch import InputError
from fieldwatch.adapters.framework_loop import ForeignState, FrameworkLoop, refuse_several, without_own_checkpoints
from fieldwatch.files import output_path, write_file

MARKER = "fieldwatch.json"
"""File that is added to a checkpoint of the Trainer once it is complete: its files, with their CRC32."""
_PREFIX = "checkpoint-"


class TransformersCallback(TrainerCallback):
    """Records and guards the training of a ``transformers.Trainer``, and stops it in order on a signal.

    Checkpoints are those of the Trainer. The callback marks each complete one, so that :meth:`resume` returns the last
    one that was written to its end and is undamaged; the record of the run goes on at its step.

    Args:
        folder: run folder.
        terms: names under which a ``compute_loss`` of yours logs the loss terms with ``self.log``, and their weights;
            None records the loss alone.
        refuse: whether to refuse updates whose gradients are not finite. On a GPU this waits for it at every update.
        groups: parameter groups to watch by name; None for the whole model.
        **options: options of :class:`fieldwatch.Run`, except ``saving``.

    Example:
        >>> watch = TransformersCallback("runs/mine")  # doctest: +SKIP
        >>> trainer = Trainer(model, arguments, train_dataset=data, callbacks=[watch])  # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=watch.resume(arguments.output_dir))  # doctest: +SKIP
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
        own = without_own_checkpoints(options)
        self._loop = FrameworkLoop(folder, terms=terms or {}, refuse=refuse, restores_random_state=True, options=own)
        self._groups = groups
        self._state = ForeignState(lambda: {"saved_by": "transformers.Trainer"}, lambda _: None)
        # Of the batches of the open step.
        self._losses: list[Tensor] = []
        self._logged: list[dict[str, Any]] = []
        self._hook: RemovableHandle | None = None

    @property
    def run(self) -> Any:
        """The run: its findings, its exit code, and everything else to record."""
        return self._loop.run

    @staticmethod
    def resume(output_dir: str | Path) -> str | None:
        """Return the last complete checkpoint of the Trainer for ``trainer.train(resume_from_checkpoint=...)``.

        Args:
            output_dir: folder of the Trainer's checkpoints, as in its arguments.

        Returns:
            None if there is none, so that the training starts at its first step.
        """
        found = [path for path in Path(output_dir).glob(f"{_PREFIX}*") if path.name[len(_PREFIX) :].isdigit()]
        newest_first = sorted(found, key=lambda path: -int(path.name[len(_PREFIX) :]))
        return next((str(path) for path in newest_first if _is_complete(path)), None)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Enter the run, and begin to watch the model and its optimizer."""
        refuse_several(args.world_size)
        model = kwargs["model"]
        inner = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        self._loop.start()
        # The Trainer's checkpoints contain all of these.
        self._state.contains = [model, inner, kwargs.get("lr_scheduler"), kwargs.get("train_dataloader")]
        self.run.track(trainer=self._state)
        if state.global_step:
            self.run.resume(step=state.global_step)
        elif self.run.checkpoints.steps():
            # The Trainer tells no callback that it fails: until the process ends, the run would handle its signals.
            self._loop.finish()
            raise InputError(
                f"{self.run.folder} holds a training, but the Trainer starts a new one: write "
                "trainer.train(resume_from_checkpoint=watch.resume(arguments.output_dir)), or choose another folder"
            )
        self.run.track(groups=self._groups or {"model": model})
        self._loop.total = state.max_steps
        self._loop.hook([inner])
        self._hook = model.register_forward_hook(self._after_forward)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the last step, with everything that was logged after it, and open the next one."""
        self._close_step()
        self._loop.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note an update that the scaler has skipped; after a signal, ask for a checkpoint and for the end."""
        if not self._loop.updated:
            self._loop.skip_update()
        if self.run.stop_signal:
            control.should_save = True
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep what belongs to the open step, and record all other values."""
        values = dict(logs or {})
        if not self._loop.started or "train_runtime" in values:
            return
        if self._loop.terms and self._loop.terms.keys() <= values.keys():
            self._logged.append(values)
        # Logged at every step, it is the loss of the step; else it is a mean over many.
        if "loss" in values and args.logging_steps == 1:
            self._losses = [torch.as_tensor(values["loss"])]
        self._loop.record(values)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Mark the Trainer's checkpoint as complete, and save where the record is."""
        _mark(Path(str(args.output_dir)) / f"{_PREFIX}{state.global_step}")
        # After a signal, this ends the process.
        self._close_step()
        self.run.save()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Finish the run."""
        self._close_step()
        if self._hook is not None:
            self._hook.remove()
        self._loop.finish()

    def _close_step(self) -> None:
        if not self._loop.updated:
            return
        # The losses of accumulated batches are sums or means, which only the Trainer knows.
        loss = self._losses[0] if len(self._losses) == 1 else None
        self._loop.observe(loss, self._logged)
        self._losses.clear()
        self._logged.clear()
        self._loop.end()

    def _after_forward(self, module: nn.Module, _arguments: Any, output: Any) -> None:
        """Keep the loss that models of the library return."""
        loss = output.get("loss") if isinstance(output, Mapping) else None
        if module.training and isinstance(loss, Tensor):
            self._losses.append(loss.detach())


def _mark(checkpoint: Path) -> None:
    files = {path.relative_to(checkpoint).as_posix(): _crc(path) for path in checkpoint.rglob("*") if path.is_file()}
    write_file(output_path(checkpoint, MARKER), orjson.dumps({"files": files}), durable=True)


def _is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint was written to its end, and all its files are as they were then."""
    try:
        marker: object = orjson.loads((checkpoint / MARKER).read_bytes())
        files = cast("dict[str, Any]", marker).get("files") if isinstance(marker, dict) else None
        return isinstance(files, dict) and all(_crc(checkpoint / name) == crc for name, crc in files.items())
    # A file is missing, or the marker is no JSON.
    except (OSError, ValueError):
        return False


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while part := file.read(1 << 22):
            crc = zlib.crc32(part, crc)
    return crc
