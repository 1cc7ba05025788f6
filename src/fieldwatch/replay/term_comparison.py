"""Gradient of every loss term for every parameter group: norms, and cosines between terms."""

from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from fieldwatch.measure import ParameterGroups, Terms, term_gradients
from fieldwatch.replay.operation import number_of


class TermComparison:
    """Collects the gradients of the terms of a step, over all of its micro-batches."""

    def __init__(self) -> None:
        self._gradients: dict[str, dict[str, Tensor]] = {}
        self._values: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def add(self, terms: Terms, fraction: float, watched: ParameterGroups) -> None:
        """Add the terms of one micro-batch, while their graph exists.

        Args:
            terms: loss terms.
            fraction: fraction of the batch that they cover.
            watched: parameter groups.
        """
        for name, (weight, value) in terms.items():
            self._values[name] = self._values.get(name, 0.0) + fraction * float(value.detach())
            self._weights[name] = float(weight)
        found = term_gradients(terms, watched)
        for group, by_term in found.items():
            sums = self._gradients.setdefault(group, {})
            for term, gradient in by_term.items():
                part = gradient * fraction
                sums[term] = part if term not in sums else sums[term] + part

    def plain(self) -> dict[str, Any]:
        """Return the comparison as plain values; numbers that are not finite by their names."""
        return {
            "terms": [
                {
                    "term": name,
                    "weight": number_of(self._weights[name]),
                    "value": number_of(value),
                    "weighted": number_of(self._weights[name] * value),
                }
                for name, value in self._values.items()
            ],
            # No term of the step may reach a group, such as a head that is trained in other phases.
            "groups": [_compared(group, by_term) for group, by_term in self._gradients.items() if by_term],
        }


def _compared(group: str, by_term: dict[str, Tensor]) -> dict[str, Any]:
    total = torch.stack([*by_term.values()]).sum(dim=0)
    norms = {term: torch.linalg.vector_norm(gradient) for term, gradient in by_term.items()}
    rows = [
        {
            "term": term,
            "norm": number_of(norm),
            "not_finite": int((~torch.isfinite(by_term[term])).sum()),
            "cosine_to_total": _cosine(by_term[term], total),
        }
        for term, norm in norms.items()
    ]
    pairs = [
        {"terms": [one, other], "cosine": _cosine(by_term[one], by_term[other])}
        for one, other in combinations(norms, 2)
    ]
    return {"group": group, "norm": number_of(torch.linalg.vector_norm(total)), "terms": rows, "pairs": pairs}


def _cosine(one: Tensor, other: Tensor) -> float | str | None:
    """Return the cosine of two gradients; None if one of them is zero."""
    length = torch.linalg.vector_norm(one) * torch.linalg.vector_norm(other)
    return None if float(length) == 0 else number_of(torch.dot(one, other) / length)
