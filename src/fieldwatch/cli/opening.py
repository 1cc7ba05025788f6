"""Opening what was trained: a run folder at one of its checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import tyro

from fieldwatch.checkpoint import CheckpointError, Which
from fieldwatch.cli.ending import BadInput, reading_input
from fieldwatch.run import Device

Stored = TypeVar("Stored")


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What every command has that opens a run."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    checkpoint: str = "best"
    """best (by held-out PSNR, or by the mean angular error), last, or a step."""
    device: Device = "auto"
    """Where to draw."""
    json: bool = False
    """Print what was found as JSON, and nothing else on standard output."""


def which_checkpoint(text: str) -> Which:
    """Read ``best``, ``last`` or a step.

    Raises:
        BadInput: it is none of them.
    """
    if text == "best" or text == "last":  # noqa: PLR1714  the type checker narrows this one
        return text
    if text.isdecimal():
        return int(text)
    raise BadInput(f"--checkpoint {text!r} is not known: give best, last, or the number of a stored step")


def open_stored(open_run: Callable[[Path, Which], Stored], folder: Path, checkpoint: str) -> Stored:
    """Open a run for looking at it, by its pipeline's own function.

    Raises:
        BadInput: there is no such run or checkpoint, or its data cannot be read; the message says what there is.
    """
    which = which_checkpoint(checkpoint)
    try:
        with reading_input():
            return open_run(folder, which)
    except CheckpointError as error:
        unranked = which == "best" and "metric" in str(error)
        message = f"{error}; no evaluation has ranked them: use --checkpoint last" if unranked else str(error)
        raise BadInput(message) from error


def refuse_set(chosen: Any, names: Sequence[str], why: str) -> None:
    """Refuse flags that are set and mean nothing here.

    Args:
        chosen: the command's arguments; a dataclass.
        names: of fields that have to stand at their default.
        why: they mean nothing.

    Raises:
        BadInput: names the first flag that is set.
    """
    usual = {each.name: each.default for each in fields(chosen)}
    for name in names:
        if getattr(chosen, name) != usual[name]:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(chosen, name)}: {why}; leave the flag out")
