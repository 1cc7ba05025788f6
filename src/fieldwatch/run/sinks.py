"""Default sinks of a run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from fieldwatch.base import output_path
from fieldwatch.record import Sink

Sinks: TypeAlias = Sequence[Sink] | Callable[[Path], Sequence[Sink]]
"""Sinks, or a function that creates them from the run folder, called once the folder is locked."""


def default_sinks(folder: Path) -> tuple[Sink, ...]:
    """Return sinks for TensorBoard event files and ``log.txt`` in the run folder."""
    from fieldwatch.record.sinks import Log, TensorBoard  # noqa: PLC0415  at first use

    return (TensorBoard(output_path(folder, "tensorboard")), Log(output_path(folder, "log.txt")))


def rank_log(folder: Path) -> tuple[Sink, ...]:
    """Return a sink for ``log.txt``, for all ranks but the first; it starts anew, as their record is not rewound."""
    from fieldwatch.record.sinks import Log  # noqa: PLC0415  at first use

    return (Log(output_path(folder, "log.txt")),)
