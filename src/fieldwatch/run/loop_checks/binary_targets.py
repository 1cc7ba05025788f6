"""What the gradient of an output says of yes-or-no targets: their share, the hits, the overlap and the loss.

The gradient of a binary cross-entropy is ``w (p - y)`` at a logit and ``w (p - y) / (p (1 - p))`` at a probability,
with one constant ``w`` for each of the two targets. So its sign is the target, and its size tells whether the loss has
this form.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.record import tags

_TINY = 1e-12
"""Least divisor. Everything here stays finite: a value that is not would look like the first sign of a broken run."""
_FAR = 1e30
"""Spread without yes-or-no targets."""
_SMALL = 1e-3
"""Gradients of outputs that are nearly certain are too small for a ratio, and outputs that differ less are equal."""


def binary_targets(
    name: str, values: Float[Tensor, " n"], gradient: Float[Tensor, " n"]
) -> dict[str, Float[Tensor, ""]]:
    """Return what yes-or-no targets imply, by metric name; without a gradient, the spread is 1e30.

    Args:
        name: name of the tracked module.
        values: entries of its output.
        gradient: their gradients, in any unit.
    """
    yes = gradient < 0
    live = (gradient != 0).float()
    number = live.sum()
    size = gradient.abs()
    chances = values.sigmoid()
    off_logit = torch.where(yes, 1 - chances, chances)
    off_chance = torch.where(yes, 1 - values, values)
    # What the weights of yes and no would be, if the outputs are logits, and if they are probabilities.
    of_logit = size / off_logit.clamp_min(_TINY)
    spread_logit = _largest_spread(of_logit, off_logit, yes, live)
    # At a probability, the gradient of a right answer is not small: its size is w / p or w / (1 - p).
    inside = ((values >= 0) & (values <= 1)).all()
    kept = (1 - off_chance).clamp(0, 1)
    of_chance = size * kept
    spread_chance = torch.where(inside, _largest_spread(of_chance, kept, yes, live), _FAR)
    is_chance = spread_chance < spread_logit
    # Equal outputs have equal gradients with many losses.
    differ = values.std() > _SMALL * values.abs().amax()
    said = torch.where(is_chance, values > 0.5, values > 0)
    off = torch.where(is_chance, off_chance, off_logit)
    ratios = torch.where(is_chance, of_chance, of_logit)
    weight = torch.where(yes, _mean(ratios, yes.float() * live), _mean(ratios, (~yes).float() * live)) * live
    weighted = (weight * yes.float()).sum() / weight.sum().clamp_min(_TINY)
    both = (said & yes).float() * live
    either = (said | yes).float() * live
    return {
        tags.BINARY_SPREAD.tag(name): torch.where(differ, torch.minimum(spread_logit, spread_chance), _FAR),
        tags.BINARY_HITS.tag(name): ((said == yes).float() * live).sum() / number.clamp_min(1),
        tags.BINARY_SHARE.tag(name): (yes.float() * live).sum() / number.clamp_min(1),
        tags.BINARY_OVERLAP.tag(name): both.sum() / either.sum().clamp_min(1),
        tags.BINARY_LOSS.tag(name): (-(1 - off).clamp(_TINY, 1).log() * weight).sum() / weight.sum().clamp_min(_TINY),
        tags.BINARY_GUESS.tag(name): _entropy(weighted) + _entropy(1 - weighted),
    }


def _entropy(share: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Return the part of a share in an entropy; 0 for a share of 0."""
    return -share * share.clamp_min(_TINY).log()


def _mean(values: Float[Tensor, " n"], counted: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return (values * counted).sum() / counted.sum().clamp_min(1)


def _largest_spread(
    ratios: Float[Tensor, " n"], sizes: Float[Tensor, " n"], yes: Tensor, live: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """Return the larger relative deviation of the ratios of both targets; 1e30 without both of them."""
    found: list[Tensor] = []
    for chosen in (yes, ~yes):
        counted = chosen.float() * live * (sizes > _SMALL).float()
        number = counted.sum()
        mean = (ratios * counted).sum() / number.clamp_min(1)
        deviation = (((ratios - mean).square() * counted).sum() / number.clamp_min(1)).sqrt()
        # Two entries at least: a single one never deviates.
        found.append(torch.where(number > 1, (deviation / mean.clamp_min(_TINY)).clamp_max(_FAR), _FAR))
    return torch.maximum(found[0], found[1])
