"""Checkpoint libraries, each used as in its documentation."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from methods import State
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


class Distributed:
    """Use ``torch.distributed.checkpoint`` with one folder per step; load the newest with a ``.metadata``; keep two."""

    name = "torch DCP, step folders, 2 kept"
    promise = (
        '"File creation is atomic", files are synced; `.metadata` comes last, so a folder that has it is complete; '
        "nothing about damage"
    )

    def save(self, folder: Path, step: int, state: State) -> None:
        """Save into a new folder and delete all but the last two."""
        save(dict(state), checkpoint_id=folder / f"step-{step:09d}")
        for older in sorted(folder.glob("step-*"))[:-2]:
            shutil.rmtree(older)

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Load the newest complete one."""
        newest = max(path for path in folder.glob("step-*") if (path / ".metadata").exists())
        state: dict[str, Any] = {name: torch.zeros_like(value) for name, value in like.items()}
        load(state, checkpoint_id=newest)
        return int(newest.name.split("-")[1]), state


class Lightning:
    """Use ``lightning.fabric.Fabric.save`` over one file, as ``ModelCheckpoint(save_last=True)`` does."""

    name = "Lightning"
    promise = (
        '`_atomic_save`: "Saves a checkpoint atomically, avoiding the creation of incomplete checkpoints"; what it '
        "writes first lies in the system's temporary folder, here on the same disk"
    )
    temporary: str | None = None

    def __init__(self) -> None:
        self._fabric: Any = None

    def _start(self, folder: Path) -> Any:
        from lightning.fabric import Fabric  # noqa: PLC0415  not installed in the project's environment

        tempfile.tempdir = self.temporary or str(folder.parent)
        self._fabric = self._fabric or Fabric(accelerator="cpu", devices=1)
        return self._fabric

    def save(self, folder: Path, step: int, state: State) -> None:
        """Overwrite the last save."""
        self._start(folder).save(folder / "last.ckpt", {"step": step, "state": state})

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Load the save."""
        del like
        stored = self._start(folder).load(folder / "last.ckpt")
        return int(stored["step"]), stored["state"]


class LightningElsewhere(Lightning):
    """The same, with the temporary folder on another disk."""

    name = "Lightning, temporary folder on another disk"
    promise = "the same; here that folder is on another disk"
    temporary = "/dev/shm"  # noqa: S108  the library creates files with random names there


class Box(nn.Module):
    """A module that holds a state, since accelerate requires one."""

    def __init__(self, state: State) -> None:
        super().__init__()
        for name, value in state.items():
            self.register_buffer(name.replace(".", "_"), value.clone())


class Accelerate:
    """Use ``Accelerator.save_state`` with automatic names, keeping two; ``load_state()`` chooses."""

    name = "accelerate, total_limit=2"
    promise = '`save_state`: "Saves the current states"; nothing about interruption or damage'

    def __init__(self) -> None:
        self._accelerator: Any = None

    def _start(self, folder: Path) -> Any:
        from accelerate import Accelerator  # noqa: PLC0415  not installed in the project's environment
        from accelerate.utils import ProjectConfiguration  # noqa: PLC0415  the same

        if self._accelerator is None:
            found = [int(path.name.split("_")[1]) for path in (folder / "checkpoints").glob("checkpoint_*")]
            choice = ProjectConfiguration(
                project_dir=str(folder),
                automatic_checkpoint_naming=True,
                total_limit=2,
                iteration=max(found, default=-1) + 1,
            )
            self._accelerator = Accelerator(cpu=True, project_config=choice)
        return self._accelerator

    def save(self, folder: Path, step: int, state: State) -> None:
        """Save a module that holds the state and the step."""
        accelerator = self._start(folder)
        accelerator._models.clear()  # noqa: SLF001  a state of another size represents the same model
        accelerator.prepare(Box({**state, "step": torch.tensor(step)}))
        accelerator.save_state()

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Load the save that the library chooses."""
        accelerator = self._start(folder)
        box = Box({**like, "step": torch.tensor(0)})
        accelerator.prepare(box)
        accelerator.load_state()
        stored = dict(box.named_buffers())
        return int(stored["step"]), {name: stored[name.replace(".", "_")] for name in like}
