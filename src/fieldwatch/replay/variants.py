"""Interventions: what would have happened with another learning rate, without a term, or in another precision."""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.base import InputError
from fieldwatch.measure import WeightChange

DType = Literal["float32", "float64"]
CLIP: Final = "clip"
WEIGHT: Final = "weight."
"""Prefix of the weight of a loss term: ``weight.eikonal``."""
_CHANGE = re.compile(r"\s*([A-Za-z_][\w./-]*?)\s*(\*=|/=|\+=|-=|=)\s*([-+0-9.eE]+)\s*")
_OPERATIONS: Mapping[str, Callable[[Any, float], Any]] = {
    "=": lambda _, number: number,
    "*=": lambda value, number: value * number,
    "/=": lambda value, number: value / number,
    "+=": lambda value, number: value + number,
    "-=": lambda value, number: value - number,
}


@dataclass(frozen=True)
class Change:
    """Change of one number, such as ``lr*=0.1``.

    Attributes:
        target: ``clip``, ``weight.TERM``, or a setting of the optimizers, such as ``lr`` or ``weight_decay``.
        operation: one of ``=``, ``*=``, ``/=``, ``+=``, ``-=``.
        number: right-hand side.
    """

    target: str
    operation: str
    number: float

    @classmethod
    def parse(cls, text: str) -> "Change":
        """Read a change.

        Raises:
            InputError: the text is none.
        """
        match = _CHANGE.fullmatch(text)
        try:
            if match is not None:
                return cls(match[1], match[2], float(match[3]))
        except ValueError:
            pass
        raise InputError(
            f"--do {text!r}: expected NAME=NUMBER, or *=, /=, +=, -= in place of =; NAME is a setting of the optimizer "
            "(lr, weight_decay), clip, or weight.TERM"
        )

    def apply(self, value: Any) -> Any:
        """Return the changed value."""
        return _OPERATIONS[self.operation](value, self.number)


@dataclass(frozen=True)
class Variant:
    """Intervention in a step.

    Attributes:
        name: the flags that asked for it.
        changes: changes of numbers.
        without: loss terms that are left out.
        dtype: floating point type of forward and backward; None for that of the loop.
    """

    name: str
    changes: tuple[Change, ...] = ()
    without: tuple[str, ...] = ()
    dtype: DType | None = None

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """Floating point type of torch; None for that of the loop."""
        return None if self.dtype is None else getattr(torch, self.dtype)

    def weights(self) -> dict[str, WeightChange]:
        """Return the changes of the weights of loss terms, by term."""
        changed: dict[str, WeightChange] = {
            change.target.removeprefix(WEIGHT): change.apply
            for change in self.changes
            if change.target.startswith(WEIGHT)
        }
        return changed | dict.fromkeys(self.without)

    def clip(self, limit: Any) -> Any:
        """Return the limit for the gradient norm."""
        for change in self.changes:
            if change.target == CLIP:
                if change.operation != "=" and not isinstance(limit, int | float):
                    raise InputError(
                        f"--do {self.name!r}: the loop clips with {limit!r}, which cannot be changed by "
                        f"{change.operation}: expected clip=NUMBER"
                    )
                limit = change.apply(limit)
        return limit

    @contextmanager
    def settings(self, optimizers: Sequence[Optimizer]) -> Generator[None]:
        """Change settings of the optimizers inside this context."""
        before: list[tuple[dict[str, Any], str, Any]] = []
        for change in self._of_optimizers():
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    if isinstance(group.get(change.target), int | float | Tensor):
                        before.append((group, change.target, group[change.target]))
                        group[change.target] = change.apply(group[change.target])
        try:
            yield
        finally:
            # In reverse order: several changes may concern the same setting.
            for group, key, value in reversed(before):
                group[key] = value

    def check(self, terms: Iterable[str], settings: Iterable[str]) -> None:
        """Refuse names that the step does not have.

        Args:
            terms: loss terms of the step.
            settings: settings of its optimizers.

        Raises:
            InputError: a name is unknown; the message lists those that exist.
        """
        known_terms = sorted(terms)
        for term in self.weights():
            if term not in known_terms:
                flag = "--without" if term in self.without else "--do weight."
                raise InputError(
                    f"{flag} {term}: the step has no such loss term, expected one of {', '.join(known_terms) or 'none'}"
                )
        known_settings = sorted(settings)
        for change in self._of_optimizers():
            if change.target not in known_settings:
                raise InputError(
                    f"--do {self.name!r}: no optimizer of this step has a setting {change.target!r}, expected one of "
                    f"{', '.join((*known_settings, CLIP))}, or weight.TERM"
                )

    def _of_optimizers(self) -> list[Change]:
        return [c for c in self.changes if c.target != CLIP and not c.target.startswith(WEIGHT)]


def settings_of(optimizers: Sequence[Optimizer]) -> set[str]:
    """Return the names of the settings of optimizers that are numbers."""
    return {
        key
        for optimizer in optimizers
        for group in optimizer.param_groups
        for key, value in group.items()
        if key != "params" and isinstance(value, int | float | Tensor) and not isinstance(value, bool)
    }


def variants_of(do: Sequence[str], without: Sequence[str], dtypes: Sequence[DType]) -> list[Variant]:
    """Return one intervention for each flag; commas combine several changes, or several terms, in one.

    Raises:
        InputError: a flag cannot be read.
    """
    found = [Variant(text, changes=tuple(map(Change.parse, text.split(",")))) for text in do]
    for text in without:
        terms = tuple(term.strip() for term in text.split(",") if term.strip())
        if not terms:
            raise InputError(f"--without {text!r}: expected the name of a loss term, or several with commas")
        found.append(Variant(f"without {text}", without=terms))
    return found + [Variant(dtype, dtype=dtype) for dtype in dtypes]
