"""Opening a run folder at one of its checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fieldwatch.checkpoint import CheckpointSelector, StoredStateError
from fieldwatch.cli.output import BadInput, reading_input

Stored = TypeVar("Stored")


def which_checkpoint(text: str) -> CheckpointSelector:
    """Parse ``best``, ``last`` or a step.

    Raises:
        BadInput: the text is none of them.
    """
    if text == "best" or text == "last":  # noqa: PLR1714  the type checker narrows this one
        return text
    if text.isdecimal():
        return int(text)
    raise BadInput(f"--checkpoint {text!r} is not known: expected best, last, or the number of a stored step")


def open_stored(open_run: Callable[[Path, CheckpointSelector], Stored], folder: Path, checkpoint: str) -> Stored:
    """Open a run for looking at it, by its pipeline's own function.

    Raises:
        BadInput: there is no such run or checkpoint, or its data cannot be read; the message says what there is.
    """
    which = which_checkpoint(checkpoint)
    try:
        with reading_input():
            return open_run(folder, which)
    except StoredStateError as error:
        # Before the first evaluation there is no metric by which a checkpoint could be the best.
        unranked = which == "best" and "metric" in str(error)
        message = f"{error}; no evaluation has ranked them: use --checkpoint last" if unranked else str(error)
        raise BadInput(message) from error
