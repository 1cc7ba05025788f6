"""Where rows go when nothing else is said."""

from pathlib import Path

from fieldwatch.record import Sink
from fieldwatch.record.sinks import Log, TensorBoard


def default_sinks(folder: Path) -> tuple[Sink, ...]:
    """TensorBoard event files and ``log.txt``, in the run folder."""
    return (TensorBoard(folder / "tensorboard"), Log(folder / "log.txt"))
