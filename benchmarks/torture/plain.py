"""The ways of saving that training scripts have: ``torch.save`` over one file, with a rename, or in new files."""

import os
from pathlib import Path

import torch
from methods import State


def _load(path: Path) -> tuple[int, State]:
    stored = torch.load(path, map_location="cpu", weights_only=True)
    return int(stored["step"]), stored["state"]


class OverLatest:
    """One file, written over."""

    name = "torch.save over latest"
    promise = "nothing about interruption (torch.save)"

    def save(self, folder: Path, step: int, state: State) -> None:
        """Write it over the old one."""
        torch.save({"step": step, "state": state}, folder / "latest.pth")

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Load the one there is."""
        del like
        return _load(folder / "latest.pth")


class Replaced(OverLatest):
    """A temporary file beside it, then ``os.replace``."""

    name = "torch.save tmp + os.replace"
    promise = "nothing; the habit makes the name change atomic, and orders nothing on the disk"

    def save(self, folder: Path, step: int, state: State) -> None:
        """Write beside the old one, then take its name."""
        torch.save({"step": step, "state": state}, folder / "latest.tmp")
        os.replace(folder / "latest.tmp", folder / "latest.pth")  # noqa: PTH105  as people write it


class NewThenDelete:
    """A new file, then the older ones are deleted; the highest step is loaded."""

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
    """The same, under a temporary name first."""

    name = "torch.save tmp, rename to new, delete older"
    rename = True


PLAIN = (OverLatest, Replaced, NewThenDelete, RenamedThenDelete)
