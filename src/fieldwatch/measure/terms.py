"""Named, weighted loss terms and their sum, and the windows in which they are active."""

import math
from array import array
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_float as _float32
from dataclasses import dataclass
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """A range of active steps: ``first <= step <= last``.

    Args:
        first: first active step, 0-based.
        last: last active step, inclusive; None for the end of training.

    Raises:
        ValueError: if ``first`` is negative or ``last`` is less than ``first``.
    """

    first: int
    last: int | None = None

    def __post_init__(self) -> None:
        """Reject empty windows."""
        if self.first < 0 or (self.last is not None and self.last < self.first):
            raise ValueError(f"a window requires 0 <= first <= last, got {self.first}..{self.last}")

    def __contains__(self, step: int) -> bool:
        """Whether the window contains the step."""
        return step >= self.first and (self.last is None or step <= self.last)


@dataclass(frozen=True)
class Phase:
    """A named phase of training, such as ``Phase("warm-up", Window(0, 499))``."""

    name: str
    window: Window


class Term(NamedTuple):
    """One weighted loss term, which contributes ``weight * value`` to the total."""

    weight: float | Tensor
    value: Tensor


_new_term: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  a tuple of anything
"""The constructor behind `Term(...)`, which takes a third of its time; every step makes a few terms."""

WeightChange = Callable[[float | Tensor], float | Tensor] | None
"""Function of a term's weight that returns another one; None leaves the term out of the total."""
_changes: dict[str, WeightChange] = {}


@contextmanager
def changed_weights(changes: Mapping[str, WeightChange]) -> Generator[None]:
    """Change the weights with which terms enter :attr:`Terms.total`, for a replay; the terms themselves stay the same.

    Args:
        changes: changes by name of the term.
    """
    _changes.update(changes)
    try:
        yield
    finally:
        for name in changes:
            del _changes[name]


_listeners: list[Callable[["Terms"], None]] = []


@contextmanager
def listening_to_totals(listener: Callable[["Terms"], None]) -> Generator[None]:
    """Call a function with the terms of every total that is computed inside this context, for a replay.

    At that moment the graph of the terms exists, whoever runs the backward pass.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Terms:
    """The weighted loss terms of one step. Omit inactive terms instead of passing zeros.

    Args:
        **terms: pairs ``(weight, value)`` by name; the weight is a number or scalar tensor, the value a scalar tensor.

    Raises:
        TypeError: if a term is not a ``(weight, tensor)`` pair.
        ValueError: if a value is not a scalar.

    Example:
        >>> terms = Terms(color=(1.0, torch.tensor(0.5)), eikonal=(0.1, torch.tensor(2.0)))
        >>> float(terms.total)
        0.699999988079071
    """

    __slots__ = ("_terms", "_total")

    def __init__(self, **terms: tuple[float | Tensor, Tensor]) -> None:
        checked: dict[str, Term] = {}
        for name, pair in terms.items():
            given: Any = pair
            # The usual case, without the general matching of `_checked_term`.
            if given.__class__ is tuple and len(given) == 2 and isinstance(given[1], Tensor) and not given[1].dim():
                checked[name] = _new_term(Term, given)
            else:
                checked[name] = _checked_term(name, pair)
        self._terms = checked
        self._total: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """Sum of ``weight * value`` over all terms, accumulated in the given order.

        Raises:
            ValueError: if there are no terms.
        """
        if self._total is None:
            self._total = _weighted_sum(_with_changes(self._terms) if _changes else self._terms.values())
            for listener in _listeners:
                listener(self)
        return self._total

    def add_up_on_host(self) -> None:
        """Compute the total by reading the terms, if they are numbers and float32 on a CPU without a graph.

        The recorder reads them anyway, and torch takes ten times as long for the same sum, to the bit. Other terms,
        and those that a replay changes or listens to, are left alone.
        """
        if self._total is None and not _changes and not _listeners:
            self._total = _sum_by_reading(self._terms.values())

    def detach(self) -> "Terms":
        """Return the terms detached from the autograd graph."""
        detached = Terms()
        detached._terms = {
            name: Term(weight.detach() if isinstance(weight, Tensor) else weight, value.detach())
            for name, (weight, value) in self._terms.items()
        }
        # A replay changes weights or listens: it must see a total that is computed again.
        if self._total is not None and not _changes and not _listeners:
            detached._total = self._total.detach()
        return detached

    @classmethod
    def merged(cls, micro_batches: Sequence[tuple[float, "Terms"]]) -> "Terms":
        """Combine the terms of micro-batches into those of the batch, detached from the autograd graph.

        A term with the same weight in all micro-batches keeps it, and its value is the mean over the micro-batches,
        weighted by their shares of the batch. Otherwise, its weight is the share-weighted sum of its weights, and its
        value is the mean weighted by share times weight (by share alone, if all weights are 0). In both cases the total
        is the share-weighted sum of the totals. A term that is missing in a micro-batch counts as 0 there.

        Args:
            micro_batches: share of each micro-batch in the batch, and its terms; the shares add up to 1.
        """
        if len(micro_batches) == 1:
            return micro_batches[0][1].detach()
        by_name: dict[str, list[tuple[float, Term]]] = {}
        for share, terms in micro_batches:
            for name, term in terms.detach().items():
                by_name.setdefault(name, []).append((share, term))
        return cls(**{name: _merged_term(rows) for name, rows in by_name.items()})

    def __or__(self, other: "Terms") -> "Terms":
        """Join two sets of terms; a name that occurs in both is an error, since one would hide the other."""
        duplicates = self._terms.keys() & other._terms.keys()
        if duplicates:
            raise ValueError(f"term {min(duplicates)!r} is given twice: rename one of them, or add them up")
        joined = Terms()
        joined._terms = {**self._terms, **other._terms}
        return joined

    def __getitem__(self, name: str) -> Term:
        """Return a term by name."""
        return self._terms[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the terms."""
        return iter(self._terms)

    def __len__(self) -> int:
        """Return the number of terms."""
        return len(self._terms)

    def items(self) -> Iterable[tuple[str, Term]]:
        """Return pairs of name and term."""
        return self._terms.items()


def _checked_term(name: str, pair: tuple[float | Tensor, Tensor]) -> Term:
    match pair:
        case (weight, Tensor() as value):
            # Shape (1,) is rejected as well: the recorder stacks 0-dimensional tensors.
            if value.ndim != 0:
                shape = tuple(value.shape)
                advice = "reduce it (.mean() or .sum()) first"
                raise ValueError(f"term {name!r} must be a scalar, got shape {shape}: {advice}")
            return Term(weight, value)
        case _:
            given = type(pair).__name__
            raise TypeError(f"term {name!r} must be (weight, scalar tensor), got {given}: write {name}=(1.0, error)")


def _merged_term(rows: Sequence[tuple[float, Term]]) -> Term:
    """Combine one term of several micro-batches, given as pairs of share and term."""
    shared = _shared_weight(rows)
    if shared is not None:
        # Divide by the count instead of multiplying by the share: 1 / 3 is rounded in floating point, 3 is exact.
        parts = [term.value / (1 / share) for share, term in rows]
        return Term(shared, sum(parts[1:], start=parts[0]))
    # Different weights: choose weight and value such that weight * value is the share-weighted sum of the products.
    weights = [share * term.weight for share, term in rows]
    weight: float | Tensor = sum(weights[1:], start=weights[0])
    weighted = torch.stack(
        [part_weight * term.value for part_weight, (_, term) in zip(weights, rows, strict=True)]
    ).sum()
    if isinstance(weight, float | int):
        if weight:
            return Term(weight, weighted / weight)
        return Term(weight, _mean_value(rows))
    # Compare a device weight on the device: reading it would synchronize.
    return Term(weight, torch.where(weight == 0, _mean_value(rows), weighted / weight))


def _shared_weight(rows: Sequence[tuple[float, Term]]) -> float | None:
    """Return the weight of a term if it is the same host number in all micro-batches of the batch, else None."""
    _, (weight, _) = rows[0]
    if isinstance(weight, Tensor) or not math.isclose(sum(share for share, _ in rows), 1):
        return None
    is_shared = all(
        share > 0 and not isinstance(other_weight, Tensor) and other_weight == weight
        for share, (other_weight, _) in rows
    )
    return weight if is_shared else None


def _mean_value(rows: Sequence[tuple[float, Term]]) -> Tensor:
    """Return the mean of a term's values, weighted by the shares of their micro-batches."""
    return torch.stack([share * term.value for share, term in rows]).sum() / sum(share for share, _ in rows)


def _with_changes(terms: Mapping[str, Term]) -> list[Term]:
    changed: list[Term] = []
    for name, (weight, value) in terms.items():
        change = _changes.get(name, _unchanged)
        # Left out, not multiplied by 0: 0 times infinity is NaN.
        if change is not None:
            changed.append(Term(change(weight), value))
    return changed


def _unchanged(weight: float | Tensor) -> float | Tensor:
    return weight


def _sum_by_reading(terms: Collection[Term]) -> Tensor | None:
    """Return what `_weighted_sum` does, to the bit, for float32 on a CPU without a graph; None for other terms."""
    weights: list[float] = []
    values: list[float] = []
    for weight, value in terms:
        number: Any = weight
        kind = number.__class__
        if (kind is not float and kind is not int) or value.__class__ is not Tensor:
            return None
        if value.dtype is not torch.float32 or value.requires_grad or not value.is_cpu:
            return None
        weights.append(number)
        # As item(), which would give the interpreter's lock to the writer thread in between.
        scalar: Any = value
        values.append(scalar.tolist())
    if not values:
        return None
    # Products and sums of two float32 in double precision, rounded to float32, are those of float32 arithmetic.
    total, *others = array("f", map(mul, array("f", weights), values))
    for product in others:
        total = _float32(total + product).value
    return torch.scalar_tensor(total, dtype=torch.float32, device="cpu")


def _weighted_sum(terms: Iterable[Term]) -> Tensor:
    total: Tensor | None = None
    for weight, value in terms:
        number = isinstance(weight, float | int)
        if total is not None and number and value.is_cuda:
            total = total.add(value, alpha=float(weight))  # one launch instead of two
            continue
        # Skip a multiplication by 1, which would only add a node to the graph.
        weighted = value if number and weight == 1 else weight * value
        total = weighted if total is None else total + weighted
    if total is None:
        raise ValueError("no loss term is active at this step: pass at least one, or end the training earlier")
    return total
