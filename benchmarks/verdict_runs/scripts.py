"""Plants in whole training scripts: a program with settings, some of which are faults."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cases import Fault, Healthy, Plant, Train, advised_value

Program = Callable[..., float]
"""Trains in a folder with a seed and further settings, and returns its figure of merit."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """What a person changes who follows an advice.

    Attributes:
        words: regular expression that the advice matches.
        settings: settings that the person changes.
        rate: setting that becomes the learning rate that the advice gives; that of ``settings`` if it gives none.
    """

    words: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rate: str = ""

    def changes(self, advice: str) -> dict[str, Any]:
        """Return the settings that an advice changes."""
        changed = dict(self.settings)
        if self.rate:
            advised = advised_value(advice, "lr") or advised_value(advice, "learning rate")
            if advised is not None:
                changed[self.rate] = advised
        return changed


@dataclass(frozen=True, kw_only=True)
class Named:
    """A fault, and the facts that name it.

    Attributes:
        kind: group of the fault in the table.
        cause: regular expression for what names the cause.
        fixes: changes that repair the run, the best one first; an advice is read as the first one that it matches.
        names: texts of which the message has to contain one, such as the wrong sample.
    """

    kind: str
    cause: str
    fixes: Sequence[Fix]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Script:
    """A training script.

    Attributes:
        program: trains.
        good: figure that a sound run reaches.
        settings: settings of every run.
    """

    program: Program
    good: float
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def train(self, **changes: Any) -> Train:
        """Return the training with changed settings."""
        settings = {**self.settings, **changes}

        def train(folder: Path, seed: int) -> float:
            return self.program(folder, seed, **settings)

        return train

    def plant(self, name: str, named: Named, **planted: Any) -> Plant:
        """Plant settings as a fault. A fix without settings of its own leaves the fault out."""

        def repaired(advice: str) -> Train:
            fix = next((one for one in named.fixes if re.search(one.words, advice, re.IGNORECASE)), named.fixes[0])
            changes = fix.changes(advice)
            return self.train(**{**planted, **changes}) if changes else self.train()

        remedy = "|".join(fix.words for fix in named.fixes)
        return Plant(
            name=name,
            fault=Fault(kind=named.kind, cause=named.cause, remedy=remedy),
            broken=self.train(**planted),
            repaired=repaired,
            good=self.good,
            names=named.names,
        )

    def healthy(self, name: str, **changes: Any) -> Healthy:
        """Return the sound run."""
        return Healthy(name=name, train=self.train(**changes), good=self.good)
