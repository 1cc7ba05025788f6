"""Which loss term pulls a group of parameters, how hard, and against which other term."""

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
    """Gradient of each weighted term by itself, compared per watched group. Call it before ``backward``.

    The graph is kept and no ``.grad`` is touched, so training goes on bit for bit as without it. It costs one backward
    pass per term: do it on a cadence.

    Args:
        terms: the step's loss terms.
        watched: the parameter groups.
        span: measures each term's backward pass by itself, as ``backward_<term>``: its time and its peak of memory.

    Returns:
        ``Gradients/share_<group>_<term>``: norm of the term's gradient over the sum of all terms' norms (0..1);
        ``Gradients/cosine_<group>_<a>_<b>``: -1 when two terms pull in opposite directions.
        Terms that do not reach a group are absent there.
    """
    groups = {name: watched.read(name) for name in watched.names()}
    flat = [parameter for group in groups.values() for parameter in group]
    flat_gradients: dict[str, dict[str, Tensor]] = {name: {} for name in groups}
    for term, (weight, value) in terms.items():
        if not value.requires_grad:
            continue
        # `retain_graph`: the training's own backward pass still needs the graph.
        with span(f"backward_{term}"):
            all_gradients = torch.autograd.grad(weight * value, flat, retain_graph=True, allow_unused=True)
        gradients = iter(cast("tuple[Tensor | None, ...]", all_gradients))  # unused ones are None
        for group, parameters in groups.items():
            group_gradients = [next(gradients) for _ in parameters]
            if any(gradient is not None for gradient in group_gradients):
                flat_gradients[group][term] = _concatenated(group_gradients, parameters)
    values: dict[str, Tensor] = {}
    for group, by_term in flat_gradients.items():
        values |= _compare(group, by_term)
    return values


def _concatenated(gradients: list[Tensor | None], parameters: list[Tensor]) -> Tensor:
    pairs = zip(gradients, parameters, strict=True)
    # A missing gradient is zero; in float32, so that half precision does not overflow in the norms.
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1).float() for g, p in pairs])


def _compare(group: str, by_term: dict[str, Tensor]) -> dict[str, Tensor]:
    if not by_term:
        return {}
    norms = {term: norm(gradient) for term, gradient in by_term.items()}
    # The floor avoids 0 / 0 where every gradient is exactly zero.
    sum_of_norms = torch.stack([*norms.values()]).sum().clamp_min(1e-30)
    values = {tags.GRADIENT_SHARE.tag(f"{group}_{term}"): length / sum_of_norms for term, length in norms.items()}
    for a, b in combinations(by_term, 2):
        length = (norms[a] * norms[b]).clamp_min(1e-30)
        values[tags.COSINE.tag(f"{group}_{a}_{b}")] = torch.dot(by_term[a], by_term[b]) / length
    return values
