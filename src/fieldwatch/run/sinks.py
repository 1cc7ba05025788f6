"""Default sinks of a run, and the interval of its log."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from fieldwatch.base import output_path
from fieldwatch.record import Sink, read_manifest

Sinks: TypeAlias = Sequence[Sink] | Callable[[Path], Sequence[Sink]]
"""Sinks, or a function that creates them from the run folder, called once the folder is locked."""


LOG_EVERY: Final = 100
"""Default number of steps between two summary lines of ``log.txt``."""
_KEY: Final = "log_every"
"""Key of the number of steps in ``run.json``."""


def default_sinks(folder: Path, *, log_every: int = LOG_EVERY) -> tuple[Sink, ...]:
    """Return sinks for TensorBoard event files and ``log.txt`` in the run folder.

    Args:
        folder: run folder.
        log_every: number of steps between two summary lines of ``log.txt``.
    """
    from fieldwatch.record.sinks import TensorBoard  # noqa: PLC0415  at first use

    return (TensorBoard(output_path(folder, "tensorboard")), *rank_log(folder, log_every=log_every))


def rank_log(folder: Path, *, log_every: int = LOG_EVERY) -> tuple[Sink, ...]:
    """Return a sink for ``log.txt``; for all ranks but the first it starts empty, since their record is not rewound."""
    from fieldwatch.record.sinks import Log  # noqa: PLC0415  at first use

    return (Log(output_path(folder, "log.txt"), every=log_every),)


def add_log_interval(about: Mapping[str, Any], log_every: int) -> Mapping[str, Any]:
    """Return the entries for ``run.json``, extended by the interval of the log unless it is the default."""
    return about if log_every == LOG_EVERY else {**about, _KEY: log_every}


def stored_log_interval(folder: Path) -> int:
    """Return the interval of the log that a run was started with.

    Raises:
        NotARun: the folder holds no run, or its run.json is damaged.
    """
    stored = read_manifest(folder).about.get(_KEY, LOG_EVERY)
    # `type` instead of `isinstance`, because a damaged file may hold true.
    return stored if type(stored) is int and stored > 0 else LOG_EVERY
