"""Loss terms by name: each with its weight, each seen on its own, summed once."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """The steps during which something is active: ``first <= step <= last``.

    Args:
        first: first active step, 0-based.
        last: last active step, inclusive; None for "to the end".

    Raises:
        ValueError: ``first`` is negative or ``last`` is before ``first``.
    """

    first: int
    last: int | None = None

    def __post_init__(self) -> None:
        """Refuse windows that hold no step."""
        if self.first < 0 or (self.last is not None and self.last < self.first):
            raise ValueError(f"window {self.first}..{self.last} holds no step: wanted 0 <= first <= last")

    def __contains__(self, step: int) -> bool:
        """Whether the step lies in the window."""
        return step >= self.first and (self.last is None or step <= self.last)


@dataclass(frozen=True)
class Phase:
    """A named stretch of training, e.g. ``Phase("warm-up", Window(0, 499))``."""

    name: str
    window: Window


class Term(NamedTuple):
    """One weighted error: ``weight * value`` enters the total."""

    weight: float | Tensor
    value: Tensor


class Terms:
    """The weighted loss terms of one step. A term that is not active is left out, not given as zero.

    Args:
        **terms: name to ``(weight, value)``; the value a scalar tensor, the weight a number or a scalar tensor.

    Raises:
        TypeError: a term is not a ``(weight, tensor)`` pair.
        ValueError: a value is not a scalar.

    Example:
        >>> terms = Terms(color=(1.0, torch.tensor(0.5)), eikonal=(0.1, torch.tensor(2.0)))
        >>> float(terms.total)
        0.699999988079071
    """

    __slots__ = ("_terms", "_total")

    def __init__(self, **terms: tuple[float | Tensor, Tensor]) -> None:
        self._terms = {name: _checked_term(name, pair) for name, pair in terms.items()}
        self._total: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """The sum of ``weight * value``, in the order the terms were given.

        Raises:
            ValueError: there is no term.
        """
        if self._total is None:
            self._total = _weighted_sum(self._terms.values())
        return self._total

    def detach(self) -> "Terms":
        """Return the same terms without their graph."""
        detached = Terms()
        detached._terms = {
            name: Term(weight.detach() if isinstance(weight, Tensor) else weight, value.detach())
            for name, (weight, value) in self._terms.items()
        }
        return detached

    @classmethod
    def merged(cls, micro_batches: Sequence[tuple[float, "Terms"]]) -> "Terms":
        """Return the terms of a batch from those of its pieces; without a graph.

        A term that has one weight in all pieces keeps it, and its value is the mean by shares. Else its weight is the
        sum of its weights in the pieces, each times the piece's share; its value is the mean of its values under these
        weights, or by shares where its weight is 0 everywhere. So the total is the sum of the totals, each times its
        share. A term that a piece lacks counts as 0 there.

        Args:
            micro_batches: the share of each micro-batch in the batch, and its terms; shares add up to 1.
        """
        if len(micro_batches) == 1:
            return micro_batches[0][1].detach()
        found: dict[str, list[tuple[float, Term]]] = {}
        for share, terms in micro_batches:
            for name, term in terms.detach().items():
                found.setdefault(name, []).append((share, term))
        return cls(**{name: _merged_term(rows) for name, rows in found.items()})

    def __or__(self, other: "Terms") -> "Terms":
        """Join two sets of terms; a name in both is an error, since one would hide the other."""
        duplicates = self._terms.keys() & other._terms.keys()
        if duplicates:
            raise ValueError(
                f"term {min(duplicates)!r} is given twice: name the second one differently, or add them up"
            )
        joined = Terms()
        joined._terms = {**self._terms, **other._terms}
        return joined

    def __getitem__(self, name: str) -> Term:
        """Look up one term."""
        return self._terms[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._terms)

    def __len__(self) -> int:
        """Count the terms."""
        return len(self._terms)

    def items(self) -> Iterable[tuple[str, Term]]:
        """Names with their weighted values."""
        return self._terms.items()


def _checked_term(name: str, pair: tuple[float | Tensor, Tensor]) -> Term:
    match pair:
        case (weight, Tensor() as value):
            if value.ndim != 0:
                shape = tuple(value.shape)
                advice = "reduce it (.mean() or .sum()) first"
                raise ValueError(f"term {name!r} must be a scalar, got shape {shape}: {advice}")
            return Term(weight, value)
        case _:
            given = type(pair).__name__
            raise TypeError(f"term {name!r} must be (weight, scalar tensor), got {given}: write {name}=(1.0, error)")


def _merged_term(rows: Sequence[tuple[float, Term]]) -> Term:
    """Join one term of several pieces, given with the share of each piece."""
    shared = _shared_weight(rows)
    if shared is not None:
        # Divided, not multiplied: a share of one third has been rounded already, three has not.
        parts = [term.value / (1 / share) for share, term in rows]
        return Term(shared, sum(parts[1:], start=parts[0]))
    weights = [share * term.weight for share, term in rows]
    weight: float | Tensor = sum(weights[1:], start=weights[0])
    weighted = torch.stack(
        [part_weight * term.value for part_weight, (_, term) in zip(weights, rows, strict=True)]
    ).sum()
    if isinstance(weight, float | int):
        if weight:
            return Term(weight, weighted / weight)
        return Term(weight, _mean_value(rows))
    # A weight on the device is compared there: reading it would wait for the device.
    return Term(weight, torch.where(weight == 0, _mean_value(rows), weighted / weight))


def _shared_weight(rows: Sequence[tuple[float, Term]]) -> float | None:
    """Return the weight of a term that has the same one, known on the host, in all pieces of a batch; else None."""
    _, (weight, _) = rows[0]
    if isinstance(weight, Tensor) or not math.isclose(sum(share for share, _ in rows), 1):
        return None
    is_shared = all(
        share > 0 and not isinstance(other_weight, Tensor) and other_weight == weight
        for share, (other_weight, _) in rows
    )
    return weight if is_shared else None


def _mean_value(rows: Sequence[tuple[float, Term]]) -> Tensor:
    """Return the mean of a term's values by the shares of their pieces."""
    return torch.stack([share * term.value for share, term in rows]).sum() / sum(share for share, _ in rows)


def _weighted_sum(terms: Iterable[Term]) -> Tensor:
    total: Tensor | None = None
    for weight, value in terms:
        # Multiplying by 1 would add a node to the graph and change nothing.
        weighted = value if isinstance(weight, float | int) and weight == 1 else weight * value
        total = weighted if total is None else total + weighted
    if total is None:
        raise ValueError("no loss term is active at this step: give at least one, or end the training before it")
    return total
