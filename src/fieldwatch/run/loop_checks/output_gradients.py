"""What the gradient of a module's output says of its targets: classes, hits, explained variance, padding, positions.

The gradient of a cross-entropy is negative at the entry of the right class only, and sums to 0 over the classes; that
of a squared error is proportional to the error. So the targets of any loss formula can be measured without knowing it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fieldwatch.record import tags
from fieldwatch.run.loop_checks.binary_targets import binary_targets
from fieldwatch.run.loop_checks.class_losses import loss_misfits

_PLACES = 256
"""About the number of outputs (samples, or positions of all samples) whose classes are read."""
_CLASSES = 4096
"""Largest number of classes whose targets are counted."""
_FEWEST = 4
_FEW = 64
"""Numbers of classes of which wrong answers are counted by pair."""
_FADE = 0.8
"""Weight of the earlier answers at each measured step."""
_EVEN = 0.25
"""Ratio of the wrong answers in both directions from which on they are about as frequent."""
_LARGEST = 1 << 24
"""Number of entries of an output above which it is not measured."""


@dataclass(kw_only=True)
class TargetCounts:
    """How often each class was a target so far, and which columns of the output have had a gradient.

    Attributes:
        counts: number of targets by class, on the device.
        answers: number of answers by target and answer, of few classes; late batches count more.
        used: 1 for each column that has had a gradient, otherwise 0, on the device.
    """

    counts: Float[Tensor, " classes"] | None = None
    answers: Float[Tensor, "classes classes"] | None = None
    used: Float[Tensor, " classes"] | None = None

    def add(self, targets: Int[Tensor, " places"], live: Float[Tensor, " places"], classes: int) -> Tensor:
        """Add targets and return the counts of this batch."""
        batch = live.new_zeros(classes).index_add_(0, targets, live)
        if self.counts is None or self.counts.shape != batch.shape:
            self.counts = batch
        else:
            # Counts that were restored from a checkpoint are on the host.
            self.counts = self.counts.to(batch.device, non_blocking=True) + batch
        return batch

    def answer(self, targets: Tensor, made: Tensor, live: Tensor, classes: int) -> dict[str, Tensor]:
        """Add answers, and return which share of them is wrong, and which share of those is within pairs of classes.

        Args:
            targets: right classes, shape ``[places]``.
            made: classes with the largest output, shape ``[places]``.
            live: 1 where the target is known, otherwise 0.
            classes: number of classes.
        """
        if not _FEWEST <= classes <= _FEW:
            return {}
        batch = live.new_zeros(classes * classes).index_add_(0, targets * classes + made, live).view(classes, classes)
        known = self.answers
        if known is None or known.shape != batch.shape:
            self.answers = batch
        else:
            self.answers = known.to(batch.device, non_blocking=True) * _FADE + batch
        answers = self.answers
        wrong = answers - answers.diag().diag()
        number = wrong.sum()
        # Two classes are a pair if each is the usual wrong answer to the other one.
        usual = wrong.argmax(dim=1)
        paired = usual[usual] == torch.arange(classes, device=usual.device)
        there = wrong.gather(1, usual[:, None])[:, 0]
        back = wrong[usual, torch.arange(classes, device=usual.device)]
        even = torch.minimum(there, back) >= _EVEN * torch.maximum(there, back)
        within = (there * (paired & even)).sum()
        return {"pairs": within / number.clamp_min(1), "share": number / answers.sum().clamp_min(1)}

    def use(self, gradient: Float[Tensor, "..."], dimension: int) -> Float[Tensor, ""]:
        """Note the columns that have a gradient, and return the fraction of those that have had none so far."""
        others = [each for each in range(gradient.dim()) if each != dimension]
        now = (gradient.abs().amax(dim=others) > 0).float()
        if self.used is not None and self.used.shape == now.shape:
            now = torch.maximum(now, self.used.to(now.device, non_blocking=True))
        self.used = now
        return 1 - now.mean()


def listen(
    name: str,
    output: Tensor,
    ids: Tensor | None,
    counts: TargetCounts,
    measured: Callable[[dict[str, Tensor]], None],
) -> None:
    """Measure the gradient of an output when the backward pass computes it.

    Args:
        name: name of the tracked module.
        output: its output, ``[batch, ...]``.
        ids: its input if that holds integers, such as tokens.
        counts: counts of the targets so far.
        measured: function that takes the values, by metric name.
    """
    if not output.requires_grad or output.dim() < 1 or not 1 < output.numel() <= _LARGEST or len(output) < 2:
        return
    # A copy of a small part, because the output itself may be changed or freed before the backward pass.
    values = output.detach()
    classes = _class_dimension(output, ids)
    kept = None if classes is None else _places(values, classes).float().clone()
    flat = values.reshape(-1)
    flat = flat[:: max(len(flat) // 4096, 1)].float().clone()
    small_ids = None if ids is None or ids.shape != output.shape[:-1] else ids.reshape(-1)[:: _stride(ids.numel())]
    following = _following(ids) if small_ids is not None and ids is not None else None
    places = Places(
        ids=None if small_ids is None else small_ids.clone(), following=following, classes=classes, values=kept
    )
    cast("Any", output).register_hook(
        _GradientHook(name=name, places=places, flat=flat, counts=counts, measured=measured)
    )


@dataclass(frozen=True, kw_only=True)
class Places:
    """The part of an output whose classes are read.

    Attributes:
        classes: dimension of the classes; None if the output has none.
        values: outputs, with the classes last.
        ids: token at each place; None for other inputs.
        following: token behind each place, -1 at the end of a sequence.
    """

    classes: int | None
    values: Float[Tensor, "places classes"] | None
    ids: Int[Tensor, " places"] | None
    following: Int[Tensor, " places"] | None


@dataclass(frozen=True, kw_only=True)
class _GradientHook:
    """Tensor hook that measures the gradient of an output and changes nothing."""

    name: str
    places: Places
    flat: Float[Tensor, " n"]
    counts: TargetCounts
    measured: Callable[[dict[str, Tensor]], None]

    def __call__(self, gradient: Tensor) -> None:
        """Measure a gradient."""
        if gradient.layout is not torch.strided or (gradient.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        with torch.no_grad():
            gradient = gradient.detach()
            size = gradient.abs().sum(dtype=torch.float32).clamp_min(1e-30)
            found = {tags.BATCH_SUM.tag(self.name): gradient.sum(0, dtype=torch.float32).abs().sum() / size}
            live = gradient.reshape(len(gradient), -1).abs().amax(dim=1) > 0
            found[tags.LIVE_SHARE.tag(self.name)] = live.float().mean()
            entries = gradient.reshape(-1)
            # As if the loss were a mean of squares; the rules compare it with the recorded loss.
            error = entries[:: max(len(entries) // 4096, 1)].float() * (gradient.numel() / 2)
            if len(error) == len(self.flat):
                found |= _moments(self.name, self.flat, error)
                found |= binary_targets(self.name, self.flat, error)
            if self.places.classes is not None:
                found[tags.UNUSED_SHARE.tag(self.name)] = self.counts.use(gradient, self.places.classes)
                found |= _classes(self.name, self.places, _places(gradient, self.places.classes).float(), self.counts)
            self.measured(found)


def _moments(name: str, values: Float[Tensor, " n"], error: Float[Tensor, " n"]) -> dict[str, Tensor]:
    targets = values - error
    values = values - values.mean()
    centered = error - error.mean()
    # Of outputs from which a loss selects a part, the others are no targets; 0/0 makes the values NaN, which the rules
    # leave out.
    whole = ((error != 0).float().mean() > _WHOLE).float()
    known = whole / whole
    found = {
        tags.TARGET_LOW.tag(name): targets.amin(),
        tags.TARGET_HIGH.tag(name): targets.amax(),
        tags.TARGET_FRACTION.tag(name): (targets - targets.round()).abs().amax(),
        tags.ERROR_SQUARE.tag(name): error.square().mean(),
        tags.ERROR_VARIANCE.tag(name): centered.square().mean(),
        tags.ERROR_COVARIANCE.tag(name): (values * centered).mean(),
        tags.OUTPUT_VARIANCE.tag(name): values.square().mean(),
    }
    return {name: value * known for name, value in found.items()}


_WHOLE = 0.9
"""Share of the outputs that have a gradient if the loss compares all of them."""


def _classes(
    name: str, places: Places, gradient: Float[Tensor, "places classes"], counts: TargetCounts
) -> dict[str, Tensor]:
    values, ids, following = places.values, places.ids, places.following
    if values is None:
        return {}
    size = gradient.abs().sum()
    targets = gradient.argmin(dim=1)
    live = (gradient.abs().amax(dim=1) > 0).float()
    # Without any gradient there are no targets: 0/0 makes these values NaN, which the rules leave out.
    number = live.sum()
    batch = counts.add(targets, live, gradient.shape[1])
    everything = counts.counts if counts.counts is not None else batch
    surprise = -values.log_softmax(dim=1).gather(1, targets[:, None])[:, 0]
    made = values.argmax(dim=1)
    hits = (made == targets).float()
    answers = counts.answer(targets, made, live, gradient.shape[1])
    twice, unlogged = loss_misfits(values, gradient)
    found = {
        tags.SOFTMAX_TWICE.tag(name): twice,
        tags.NO_LOGARITHM.tag(name): unlogged,
        tags.CLASS_SUM.tag(name): gradient.sum(dim=1).abs().sum() / size,
        tags.HITS.tag(name): (hits * live).sum() / number,
        tags.IMPLIED_LOSS.tag(name): (surprise * live).sum() / number,
        tags.TARGET_ENTROPY.tag(name): _entropy(everything),
        tags.BATCH_ENTROPY.tag(name): _entropy(batch) + 0 * (number / number),
        tags.TARGET_SHARE.tag(name): everything.max() / everything.sum().clamp_min(1),
        tags.WEIGHT_SLOPE.tag(name): _weight_slope(
            -gradient.gather(1, targets[:, None])[:, 0], (-surprise).exp(), everything[targets], live
        ),
    }
    if answers:
        found[tags.WRONG_PAIRS.tag(name)] = answers["pairs"]
        found[tags.WRONG_SHARE.tag(name)] = answers["share"]
    if ids is not None and len(ids) == len(targets):
        blank = ids.mode().values
        usual = targets.mode().values
        same = ((ids == blank) == (targets == usual)).float()
        both = ((ids == blank) & (targets == usual)).float().mean()
        # Places that are blank on both sides, if all blanks agree.
        found[tags.BLANK_SHARE.tag(name)] = torch.where(same.mean() > _AGREE, both * live.mean(), 0.0)
        if following is not None:
            known = (following >= 0).float() * live
            agree = (following == targets).float()
            found[tags.NEXT_SHARE.tag(name)] = (agree * known).sum() / known.sum().clamp_min(1)
            found[tags.SAME_SHARE.tag(name)] = ((ids == targets).float() * live).sum() / number
    return found


def _weight_slope(
    pull: Float[Tensor, " places"],
    chance: Float[Tensor, " places"],
    count: Float[Tensor, " places"],
    live: Float[Tensor, " places"],
) -> Float[Tensor, ""]:
    """Return the exponent with which the weight of a class grows with its frequency.

    A cross-entropy pulls at the right class by the weight of the sample times the chance that is missing. So weights
    are known without the loss: all equal have the exponent 0, inverse frequencies -1, frequencies 1.

    Args:
        pull: gradient by which the right class is raised.
        chance: chance that the outputs give to the right class.
        count: how often that class was a target so far.
        live: 1 where there is a gradient, otherwise 0.

    Returns:
        The slope of logarithms; NaN if all classes are about as frequent.
    """
    known = live * (chance < _SURE) * (pull > 0)
    number = known.sum().clamp_min(1)
    weight = (pull.clamp_min(1e-30) / (1 - chance).clamp_min(1e-6)).log()
    often = count.clamp_min(1).log()
    centered = (often - (often * known).sum() / number) * known
    spread = centered.square().sum() / number
    slope = (centered * weight).sum() / number / spread.clamp_min(1e-30)
    comparable = (spread > _UNEVEN).float()
    return slope * (comparable / comparable)


_SURE = 0.98
"""Chance of the right class above which what is missing is rounding."""
_UNEVEN = 0.1
"""Variance of the logarithms of the classes' counts below which all are about as frequent."""


_AGREE = 0.98
"""Share of the places at which input and target agree on what is blank."""


def _entropy(counts: Float[Tensor, " classes"]) -> Float[Tensor, ""]:
    """Return the entropy of a distribution in nats: the cross-entropy of the best constant prediction."""
    shares = counts / counts.sum().clamp_min(1)
    return -(shares * shares.clamp_min(1e-12).log()).sum()


def _class_dimension(output: Tensor, ids: Tensor | None) -> int | None:
    """Return the dimension with the classes, None if the output is none of classes."""
    if output.dim() < 2:
        return None
    last = output.dim() == 2 or (ids is not None and ids.shape == output.shape[:-1])
    ahead = output.dim() >= 4 or (output.dim() == 3 and ids is not None and ids.shape[1:] == output.shape[2:])
    dimension = output.dim() - 1 if last or not ahead else 1
    return dimension if 2 <= output.shape[dimension] <= _CLASSES else None


def _places(values: Tensor, classes: int) -> Float[Tensor, "places classes"]:
    """Return about 256 outputs, with the classes last."""
    rows = values.movedim(classes, -1)
    rows = rows.reshape(-1, rows.shape[-1])
    return rows[:: _stride(len(rows))]


def _stride(count: int) -> int:
    return max(count // _PLACES, 1)


def _following(ids: Tensor) -> Tensor:
    """Return the next token at the places that are read; -1 at the end of a sequence."""
    following = torch.full_like(ids, -1)
    following[:, :-1] = ids[:, 1:]
    return following.reshape(-1)[:: _stride(ids.numel())]


def position_spread(ids: Any, output: Tensor) -> Float[Tensor, ""] | None:
    """Return how far outputs of equal tokens of a sequence differ, relative to the largest output.

    Args:
        ids: tokens, ``[batch, length]``.
        output: outputs, ``[batch, length, columns]``.
    """
    if not isinstance(ids, Tensor) or ids.dim() != 2 or output.shape[:-1] != ids.shape or ids.shape[1] < 2:
        return None
    rows = ids[:8, :48]
    values = output.detach()[:8, :48, :32].float()
    equal = (rows[:, :, None] == rows[:, None, :]).float()
    apart = (values[:, :, None] - values[:, None]).abs().amax(dim=-1)
    pairs = equal.sum() - rows.numel()
    spread = (apart * equal).amax() / values.abs().amax().clamp_min(1e-30)
    # Without a pair of equal tokens there is nothing to compare.
    return torch.where(pairs > 0, spread, 1.0)
