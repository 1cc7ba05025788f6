"""What a case is: a fault, a plant of it, or a healthy run."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Train: TypeAlias = Callable[[Path, int], float]
"""Trains a run in a folder with a seed and returns its figure of merit: the larger, the better the run."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A way in which a run is broken, and the facts that a verdict has to name.

    Attributes:
        kind: group of the fault in the table.
        cause: regular expression for the rule, subject or message of a finding that names the cause.
        remedy: regular expression for a remedy that names the flag, line or data to change.
    """

    kind: str
    cause: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A run with one planted fault.

    Attributes:
        name: name of the plant.
        fault: the fault.
        broken: trains the broken run.
        repaired: takes the text of the remedy and returns the training of the run to which it was applied.
        good: figure that a sound run reaches and the broken one misses.
        names: texts of which the message has to contain one to name the cause, such as the wrong sample.
        ideal: a remedy that repairs the run, for a check of the plant itself.
    """

    name: str
    fault: Fault
    broken: Train
    repaired: Callable[[str], Train]
    good: float
    names: tuple[str, ...] = ()
    ideal: str = ""


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """A run without a fault.

    Attributes:
        name: name of the run.
        train: trains it.
        good: figure that shows that it is sound.
    """

    name: str
    train: Train
    good: float


@dataclass(frozen=True, kw_only=True)
class Order:
    """A run to make.

    Attributes:
        name: name of the case.
        advice: remedy to apply; empty for none.
        repaired: whether to make the repaired run instead of the case itself.
    """

    name: str
    advice: str = ""
    repaired: bool = False


class RefusedError(Exception):
    """A command refused its input, with the text that it printed."""


NUMBER = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"


def advised_value(advice: str, name: str) -> float | None:
    """Return the number that a remedy gives for a flag or an argument, None if it gives none.

    Args:
        advice: text of the remedy.
        name: flag or argument, such as ``--lr`` or ``lr``.
    """
    found = re.search(rf"(?<![\w-]){re.escape(name)}(?:\s*=\s*|\s+(?:to\s+)?){NUMBER}", advice)
    return None if found is None else float(found.group(1))
