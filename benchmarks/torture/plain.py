"""Common ways to save in training scripts: ``torch.save`` over one file, with a rename, or to new files."""

import os
from pathlib import Path

import torch
from methods import State


def _load(path: Path) -> tuple[int, State]:
    stored = torch.load(path, map_location="cpu", weights_only=True)
    return int(stored["step"]), stored["state"]


class OverLatest:
    """Overwrite one file."""

    name = "torch.save over latest"
    promise = "nothing about interruption (torch.save)"

    def save(self, folder: Path, step: int, state: State) -> None:
        """Overwrite the old file."""
        torch.save({"step": step, "state": state}, folder / "latest.pth")

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Load the file."""
        del like
        return _load(folder / "latest.pth")


class Replaced(OverLatest):
    """Write a temporary file next to it, then call ``os.replace``."""

    name = "torch.save tmp + os.replace"
    promise = "nothing; the habit makes the name change atomic, and orders nothing on the disk"

    def save(self, folder: Path, step: int, state: State) -> None:
        """Write a temporary file, then rename it."""
        torch.save({"step": step, "state": state}, folder / "latest.tmp")
        os.replace(folder / "latest.tmp", folder / "latest.pth")  # noqa: PTH105  as in common scripts


class NewThenDelete:
    """Write a new file, then delete the older ones; load the highest step."""

    name = "torch.save new file, delete older"
    promise = "nothing about interruption"
    rename = False

    def save(self, folder: Path, step: int, state: State) -> None:
        """Write the new file and delete the others."""
        path = folder / f"step-{step:09d}.ckpt"
        torch.save({"step": step, "state": state}, path.with_suffix(".tmp") if self.rename else path)
        if self.rename:
            path.with_suffix(".tmp").rename(path)
        for older in folder.glob("step-*.ckpt"):
            if older != path:
                older.unlink()

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Load the highest step."""
        del like
        return _load(max(folder.glob("step-*.ckpt")))


class RenamedThenDelete(NewThenDelete):
    """Write under a temporary name, then rename."""

    name = "torch.save tmp, rename to new, delete older"
    rename = True


PLAIN = (OverLatest, Replaced, NewThenDelete, RenamedThenDelete)
