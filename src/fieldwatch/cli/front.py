"""What the commands need to know of a pipeline, and nothing else of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from rich.table import Table

from fieldwatch import Finding
from fieldwatch.run import RunChoices


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
class Ended:
    """What a training leaves behind.

    Attributes:
        folder: the run folder.
        metrics: of the last evaluation, by tag; empty without one.
        findings: what the rules said.
        exit_code: 0, or 1 with findings above a note.
        products: files that were made at the end, by what they are.
    """

    folder: Path
    metrics: Mapping[str, float]
    findings: Sequence[Finding]
    exit_code: int
    products: Mapping[str, Path] = field(default_factory=dict)


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
    train: Callable[[Path, RunChoices], Ended]


@dataclass(frozen=True, kw_only=True)
class Front(Generic[Config]):
    """A pipeline as the commands see it.

    Attributes:
        name: as run.json names it.
        prepare: reads and checks the input; ValueError, OSError, LookupError or ImportError say what is wrong with it.
        quality: a table of metrics.
        measured: how the tags in that table begin.
        longer: the flag that lengthens a training.
        stored_config: the config a run was started with.
        stored_preset: the preset that config was derived from.
        check_resumable: refuses to go on where the machine lacks what the run began with.
    """

    name: str
    prepare: Callable[[Config], Job]
    quality: Callable[[Mapping[str, float]], Table]
    measured: tuple[str, ...]
    longer: str
    stored_config: Callable[[Path], Config]
    stored_preset: Callable[[Path], Config]
    check_resumable: Callable[[Path, Config], None]
