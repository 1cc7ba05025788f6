"""What the commands need to know of a pipeline, and nothing else of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from rich.table import Table

from fieldwatch.record import config_of_run, preset_of_run
from fieldwatch.run import Outcome, RunChoices


@runtime_checkable
class Settings(Protocol):
    """What the config of every pipeline has."""

    @property
    def name(self) -> str:
        """What the data is called in logs."""
        ...

    @property
    def threads(self) -> int:
        """CPU threads; 0 leaves torch's own choice."""
        ...


Config = TypeVar("Config", bound=Settings)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training whose input is read and found good.

    Attributes:
        headline: what will be trained on what.
        notes: what was done to the input on the way, and what a user should know.
        device: where it trains.
        total: number of the step after the last one.
        shown: what the progress bar shows: tag to text, ``{}`` for the value.
        references: what needs no training, by tag; shown beside the quality.
        train: trains in a folder, or goes on with the run found there.
    """

    headline: str
    notes: Sequence[str]
    device: torch.device
    total: int
    shown: Mapping[str, str]
    references: Mapping[str, float] = field(default_factory=dict)
    train: Callable[[Path, RunChoices], Outcome[Any]]


def _any_machine(folder: Path, config: Any) -> None:
    """A run needs nothing but its input, and that is read when it goes on."""


@dataclass(frozen=True, kw_only=True)
class Front(Generic[Config]):
    """A pipeline as the commands see it.

    Attributes:
        name: as run.json names it.
        config: the class of its configs.
        prepare: reads and checks the input; ValueError, OSError, LookupError or ImportError say what is wrong with it.
        quality: a table of metrics.
        measured: how the tags in that table begin.
        longer: the flag that lengthens a training.
        check_resumable: refuses to go on where the machine lacks what the run began with; most runs need only their
            input, and that is read again.
    """

    name: str
    config: type[Any]  # type[Config] cannot be checked when it runs: Settings has no methods
    prepare: Callable[[Config], Job]
    quality: Callable[[Mapping[str, float]], Table]
    measured: tuple[str, ...]
    longer: str
    check_resumable: Callable[[Path, Config], None] = _any_machine

    def stored_config(self, folder: Path) -> Config:
        """The config a run was started with.

        Raises:
            NotARun: the folder holds no run, one of another pipeline, or its run.json was damaged.
        """
        return config_of_run(folder, self.name, self.config)

    def stored_preset(self, folder: Path) -> Config:
        """The preset that config was derived from.

        Raises:
            NotARun: as in :meth:`stored_config`.
        """
        return preset_of_run(folder, self.name, self.config)
