"""Where rows go when nothing else is said."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from fieldwatch.base import output_path
from fieldwatch.record import Sink

Sinks: TypeAlias = Sequence[Sink] | Callable[[Path], Sequence[Sink]]
"""The sinks, or a function from the run folder to them: called once the folder belongs to this process."""


def default_sinks(folder: Path) -> tuple[Sink, ...]:
    """TensorBoard event files and ``log.txt``, in the run folder."""
    from fieldwatch.record.sinks import Log, TensorBoard  # noqa: PLC0415  at first use

    return (TensorBoard(output_path(folder, "tensorboard")), Log(output_path(folder, "log.txt")))


def rank_log(folder: Path) -> tuple[Sink, ...]:
    """``log.txt`` alone, for a rank after the first: of its last start, since its record is not rewound."""
    from fieldwatch.record.sinks import Log  # noqa: PLC0415  at first use

    return (Log(output_path(folder, "log.txt")),)
