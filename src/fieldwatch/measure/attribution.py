"""Attribute gradients to loss terms: magnitude per term and parameter group, and conflicts between terms."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations
from typing import cast

import torch
from torch import Tensor

from fieldwatch.measure.norms import norm
from fieldwatch.measure.parameter_groups import ParameterGroups
from fieldwatch.measure.terms import Terms
from fieldwatch.record import tags


def attribute_terms(
    terms: Terms, watched: ParameterGroups, span: Callable[[str], AbstractContextManager[None]] = nullcontext
) -> dict[str, Tensor]:
    """Compute the gradient of each weighted loss term separately and compare them per parameter group.

    Call it before ``backward``. The graph is retained and no ``.grad`` is modified, so training continues bitwise
    unchanged. The cost is one backward pass per term, so call it only every N steps.

    Args:
        terms: loss terms of the step.
        watched: parameter groups.
        span: context manager that measures time and peak memory of each term's backward pass, as ``backward_<term>``.

    Returns:
        Device scalars by tag: ``Gradients/share_<group>_<term>``, the norm of the term's gradient divided by the sum of
        these norms over all terms, from 0 to 1; and ``Gradients/cosine_<group>_<a>_<b>``, the cosine similarity of two
        terms' gradients. Terms that do not depend on a group have no entry for it.
    """
    values: dict[str, Tensor] = {}
    for group, by_term in term_gradients(terms, watched, span).items():
        values |= _compare(group, by_term)
    return values


def term_gradients(
    terms: Terms, watched: ParameterGroups, span: Callable[[str], AbstractContextManager[None]] = nullcontext
) -> dict[str, dict[str, Tensor]]:
    """Return the gradient of each weighted loss term with respect to each group, by group and term.

    Args:
        terms: as for :func:`attribute_terms`.
        watched: parameter groups.
        span: as for :func:`attribute_terms`.

    Returns:
        Flat float32 gradients. Terms that do not depend on a group have no entry for it.
    """
    groups = {name: watched.read(name) for name in watched.names()}
    flat = [parameter for group in groups.values() for parameter in group]
    flat_gradients: dict[str, dict[str, Tensor]] = {name: {} for name in groups}
    for term, (weight, value) in terms.items():
        if not value.requires_grad:
            continue
        # Retain the graph: the training's backward pass still needs it.
        with span(f"backward_{term}"):
            all_gradients = torch.autograd.grad(weight * value, flat, retain_graph=True, allow_unused=True)
        # A single backward pass covers all groups; split its result by group.
        gradients = iter(cast("tuple[Tensor | None, ...]", all_gradients))  # None for unused parameters
        for group, parameters in groups.items():
            group_gradients = [next(gradients) for _ in parameters]
            if any(gradient is not None for gradient in group_gradients):
                flat_gradients[group][term] = _concatenated(group_gradients, parameters)
    return flat_gradients


def _concatenated(gradients: list[Tensor | None], parameters: list[Tensor]) -> Tensor:
    pairs = zip(gradients, parameters, strict=True)
    # Missing gradients count as zero. Convert to float32, since norms of half-precision gradients may overflow.
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1).float() for g, p in pairs])


def _compare(group: str, by_term: dict[str, Tensor]) -> dict[str, Tensor]:
    if not by_term:
        return {}
    norms = {term: norm(gradient) for term, gradient in by_term.items()}
    # The floor avoids 0 / 0 if every gradient is exactly zero.
    sum_of_norms = torch.stack([*norms.values()]).sum().clamp_min(1e-30)
    values = {tags.GRADIENT_SHARE.tag(f"{group}_{term}"): length / sum_of_norms for term, length in norms.items()}
    # cos(a, b) = <a, b> / (|a| |b|); each pair appears once, in the order of the terms.
    for a, b in combinations(by_term, 2):
        length = (norms[a] * norms[b]).clamp_min(1e-30)
        values[tags.COSINE.tag(f"{group}_{a}_{b}")] = torch.dot(by_term[a], by_term[b]) / length
    return values
