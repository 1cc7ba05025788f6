"""Rules for what the modules get and return: the same batch or the same sample again and again, constant outputs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import has_improved, has_rewards, held_out_metrics, is_evaluated, single_loss
from fieldwatch.health.places import loaders
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.poor_results import ends_poorly, is_good, learned_by_heart
from fieldwatch.health.rules.rates import highest_rate
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median, first_sustained, is_signed, on_steps
from fieldwatch.record import History, Series, tags


@dataclass(frozen=True, kw_only=True)
class ConstantInput(HealthRule):
    """All samples of each batch that a module gets are the same."""

    patience: int = threshold(
        8, unit="recordings", reason="a batch of equal samples may occur once, but not at every measured step"
    )
    remedy: ClassVar[str] = (
        "Look at the tensor that the loop passes to the module: a normalization, division or clamp that blanks the "
        "input, an index that reads the same sample for all, a feature that is overwritten. Draw new latents (noise) "
        "for each sample of a batch. For indices (codes, tokens, experts), look at how they are chosen, and at the "
        "initialization of what they are compared with."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        return tuple(
            found
            for item, name in tags.INPUT_SPREAD.parts(history.names()).items()
            if (found := self._judge(item, history[name]))
        )

    def _judge(self, item: str, spread: Series) -> Finding | None:
        at = first_sustained(spread.values == 0, patience=self.patience)
        if at is None:
            return None
        text = (
            f"all samples of a batch are the same for '{item}', at {self.patience} measured steps in a row: its input "
            "carries no information, so its outputs have no diversity and can be no better than a constant prediction."
        )
        return self.finding(int(spread.steps[at]), text, subject=item)


@dataclass(frozen=True, kw_only=True)
class ConstantArgument(HealthRule):
    """One of several inputs of a module is the same for all samples at every step.

    A warning if the result is poor at the end, otherwise a note: masks and settings may be the same for all.
    """

    severity: ClassVar[Severity] = "note"
    patience: int = threshold(
        32, unit="recordings", reason="a batch of equal values may occur once, but not at every measured step"
    )
    remedy: ClassVar[str] = (
        "Look at the arguments that the loop passes to the module (times, conditions, classes, masks): draw or index "
        "them for each sample, and check that none is overwritten with a constant."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item, name in tags.ARGUMENT_SPREAD.parts(history.names()).items():
            spread = history[name]
            if len(spread) < self.patience or spread.values.any() or not ends_poorly(history):
                continue
            text = f"one of the inputs of '{item}' is the same for all samples at every measured step."
            found.append(self.finding(history.step, text, subject=item, severity="warning"))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class SameBatch(HealthRule):
    """A module gets the same batch at every step.

    A note, since the batch may be all of the data; a warning if the result on held-out data is poor at the end.
    """

    severity: ClassVar[Severity] = "note"
    count: int = threshold(
        34, unit="recordings", reason="the first 32 steps are all measured; two more show that it has lasted"
    )
    mean: float = threshold(0.1, unit="mean of the input", reason="normal noise of some hundred numbers has about 0.05")
    std: float = threshold(
        0.1, unit="difference of the standard deviation from 1", reason="normal noise of some hundred numbers has 0.03"
    )
    remedy: ClassVar[str] = (
        "Draw another batch, and other noise, at every step: call next(...) on the iterator of the loader inside the "
        "loop, do not create the iterator (or seed a generator) anew at each step, and shuffle the order of the "
        "samples."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item, name in tags.INPUT_MARK.parts(history.names()).items():
            marks = history[name]
            spread = tags.INPUT_SPREAD.tag(item)
            # Equal samples are another fault; a single sample has no spread.
            equal = spread in history and not history[spread].values.any()
            if len(marks) < self.count or np.ptp(marks.values) != 0 or equal:
                continue
            # A loss that has not fallen has another cause: one batch is easy to learn.
            severity: Severity = "warning" if learned_by_heart(history) else "note"
            text = f"'{item}' got the same batch at all {len(marks)} measured steps: other samples were never seen."
            if severity == "note" and self._is_fixed_noise(history, item):
                severity = "warning"
                text = (
                    f"'{item}' got the same noise at all {len(marks)} measured steps, while others get new batches: "
                    "it learns answers to these numbers only."
                )
            elif severity == "note":
                text = f"'{item}' got the same batch at all {len(marks)} measured steps, as if it were all of the data."
            step = history.step if severity == "warning" else int(marks.steps[self.count - 1])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)

    def _is_fixed_noise(self, history: History, item: str) -> bool:
        """Return whether a constant input looks like normal noise, and other modules do not get the same each time."""
        names = [family.tag(item) for family in (tags.INPUT_MEAN, tags.INPUT_STD)]
        if not finished(history) or is_good(history) or any(name not in history for name in names):
            return False
        mean, std = (float(history[name].values[-1]) for name in names)
        others = [name for other, name in tags.INPUT_MARK.parts(history.names()).items() if other != item]
        changing = [name for name in others if np.ptp(history[name].values) > 0]
        return abs(mean) < self.mean and abs(std - 1) < self.std and bool(changing)


@dataclass(frozen=True, kw_only=True)
class BatchesRepeated(HealthRule):
    """Each batch comes as many times in a row as a loader has workers: every worker reads all of the data."""

    count: int = threshold(16, unit="steps", reason="consecutive ones, from the first on")
    remedy: ClassVar[str] = (
        "Give each worker its share of the stream: in __iter__ of the data set, take every n-th sample, starting at "
        "torch.utils.data.get_worker_info().id (n is its num_workers), or set num_workers=1."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        workers = {int(each["workers"]): str(each["name"]) for each in loaders(history) if each["workers"] > 1}
        found: list[Finding] = []
        for item, name in tags.INPUT_MARK.parts(history.names()).items():
            marks = history[name].start
            known = int(np.count_nonzero(marks.steps == marks.steps[0] + np.arange(len(marks))))
            values = marks.values[:known]
            length = _block_length(values)
            if length not in workers or known < max(self.count, 3 * length):
                continue
            text = (
                f"'{item}' gets each batch {length} times in a row: each of the {length} workers of the loader "
                f"'{workers[length]}' reads the whole data set, so that all samples come {length} times (duplicates) "
                "and an epoch is as many times longer."
            )
            found.append(self.finding(int(marks.steps[known - 1]), text, subject=item))
        return tuple(found)


def _block_length(values: NDArray[np.float64]) -> int:
    """Return how often each value comes in a row; 0 if that differs, or they do not come again."""
    borders = np.flatnonzero(np.diff(values) != 0) + 1
    if len(borders) < 2:
        return 0
    lengths = np.diff(np.concatenate([[0], borders]))
    same = lengths[0] > 1 and bool((lengths == lengths[0]).all())
    return int(lengths[0]) if same else 0


@dataclass(frozen=True, kw_only=True)
class ConstantOutput(HealthRule):
    """A module returns the same for every sample of a batch, although the samples differ."""

    spread: float = threshold(
        1e-6,
        unit="fraction of the largest output",
        reason="differences within the rounding of float32 come from no input",
    )
    patience: int = threshold(
        8, unit="recordings", reason="a layer that starts at zero has constant outputs only before its first updates"
    )
    remedy: ClassVar[str] = (
        "Find the layer behind which the activations are constant: dead units (a ReLU whose bias or inputs are far "
        "below zero), saturated ones, weights that started at or decayed to zero. Check its initialization, replace "
        "the activation (LeakyReLU, GELU), and lower the learning rate if the units died during the training. Of a "
        "recurrent layer, take the state at the length of each sequence, not the last one, which is behind the padding."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        return tuple(self._all(history))

    def _all(self, history: History) -> Iterator[Finding]:
        for item, name in tags.OUTPUT_SPREAD.parts(history.names()).items():
            spreads = history[name]
            inputs = tags.INPUT_SPREAD.tag(item)
            if inputs not in history:
                continue
            differ = on_steps(history[inputs], spreads.steps) > 0
            constant = (spreads.values <= self.spread) & differ
            at = first_sustained(constant, patience=self.patience)
            if at is None:
                continue
            text = (
                f"'{item}' returns the same for every sample of a batch, at {self.patience} measured steps in a row: "
                "its units are dead or saturated, and no gradient reaches what depends on the input."
            )
            finding = self.finding(int(spreads.steps[at]), text, subject=item)
            rate = highest_rate(history)
            since = at - self.patience + 1
            # Outputs that differed at first were destroyed by updates.
            if rate and since > 0 and not constant[:since].any():
                text += (
                    f" The outputs differed until step {spreads.steps[since - 1]:.0f}: updates at the learning rate of "
                    f"{rate:g} were too large."
                )
                remedy = (
                    f"Start with learning rate {number(rate / 100, 2)} and warm it up. If that does not help: "
                    f"{self.remedy}"
                )
                finding = replace(finding, message=text, remedy=remedy)
            yield finding


@dataclass(frozen=True, kw_only=True)
class InputIgnored(HealthRule):
    """A module has learned to return nearly the same for every sample: its predictions do not depend on the input."""

    share: float = threshold(
        0.05, unit="fraction of the output's variance", reason="between samples; healthy runs end above 0.5"
    )
    fall: float = threshold(
        0.2, unit="times the share at first", reason="a module whose outputs are alike by nature starts low"
    )
    head: int = threshold(8, unit="recordings", reason="length of the initial median")
    window: int = threshold(4, unit="recordings", reason="length of the final median, about 200 steps")
    count: int = threshold(36, unit="recordings", reason="the first 32 steps, and four later ones (every 50th)")
    remedy: ClassVar[str] = (
        "Check that inputs and targets (labels) belong together: both have to be shuffled in the same order, and "
        "indexed by the same batch. Check also that the input is not blanked on its way, and that no regularizer is "
        "far too strong."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history) or tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
            return ()
        return tuple(
            found
            for item, name in tags.OUTPUT_SHARE.parts(history.names()).items()
            if len(history[name]) >= self.count and (found := self._judge(history, item, history[name]))
        )

    def _judge(self, history: History, item: str, shares: Series) -> Finding | None:
        first = float(np.nanmedian(shares.values[: self.head]))
        last = float(np.nanmedian(shares.values[-self.window :]))
        if not last < min(self.share, self.fall * first):
            return None
        text = (
            f"only {percent(last)} of the variance of the outputs of '{item}' is between samples, "
            f"{percent(first, 0)} at first: it "
            "has learned to predict the same for all, no better than a constant prediction."
        )
        return self.finding(history.step, text, subject=item)


@dataclass(frozen=True, kw_only=True)
class NoDiversity(HealthRule):
    """The outputs of a module are nearly the same for all samples, and no held-out metric has improved: a collapse.

    Found are outputs whose variance lies hardly between samples, and those that differ far less than at first while the
    loss stands still.
    """

    share: float = threshold(
        0.01, unit="fraction of the output's variance", reason="between samples; healthy runs end above 0.1"
    )
    spread: float = threshold(
        0.2, unit="fraction of the largest output", reason="the largest difference of two samples"
    )
    fall: float = threshold(
        0.04,
        unit="fraction of the first deviation between samples",
        reason="outputs that are learned differ more at the end, or a few times less if the targets are small",
        source="measured by benchmarks/verdicts.py",
    )
    head: int = threshold(8, unit="recordings", reason="length of the initial median")
    window: int = threshold(4, unit="recordings", reason="length of the final median, about 200 steps")
    count: int = threshold(34, unit="recordings", reason="the first 32 steps, and two later ones")
    remedy: ClassVar[str] = (
        "Scale the input (latents, noise) of the module to a standard deviation of about 1, and check that it is drawn "
        "for each sample. In a game, lower the learning rate of this player or raise that of its opponent (critic, "
        "discriminator); without negatives, a similarity loss has a constant as its best solution: add negatives or a "
        "term for diversity."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history) or has_improved(history) or has_rewards(history) or not is_evaluated(history):
            return ()
        found: list[Finding] = []
        for item, name in tags.OUTPUT_SHARE.parts(history.names()).items():
            shares = history[name]
            spreads = tags.OUTPUT_SPREAD.tag(item)
            if len(shares) < self.count or "." in item or spreads not in history:
                continue
            share = finite_median(shares.values[-self.window :])
            spread = finite_median(history[spreads].values[-self.window :])
            first, last = self._deviations(history, item)
            if last < self.fall * first and self._has_settled(history):
                text = (
                    f"the outputs of '{item}' have collapsed to a constant: between samples they differ by "
                    f"{number(last)}, {percent(last / first, 1)} of the {number(first)} at first, and no evaluation "
                    "has improved."
                )
                found.append(replace(self.finding(history.step, text, subject=item), remedy=_CONSTANT))
            elif share < self.share and spread < self.spread:
                text = (
                    f"the outputs of '{item}' hardly differ between samples ({percent(max(share, 0.0), 2)} of their "
                    "variance): a collapse to nearly a constant, without diversity, which no evaluation shows to be "
                    "meant."
                )
                found.append(self.finding(history.step, text, subject=item))
        return tuple(found)

    def _deviations(self, history: History, item: str) -> tuple[float, float]:
        """Return the standard deviation of the outputs between samples at first and at the end."""
        name = tags.OUTPUT_STD.tag(item)
        if name not in history:
            return 0.0, 0.0
        whole = history[name]
        shares = on_steps(history[tags.OUTPUT_SHARE.tag(item)], whole.steps)
        between = whole.values * np.sqrt(np.maximum(shares, 0.0))
        return finite_median(between[: self.head]), finite_median(between[-self.window :])

    def _has_settled(self, history: History) -> bool:
        """Return whether the only loss is one that does not fall any more: a constant is all that it gets."""
        loss = single_loss(history)
        if loss is None:
            return False
        half = len(loss) // 2
        before = finite_median(loss.values[half // 2 : half])
        return finite_median(loss.values[half:]) > _SETTLED * before


_SETTLED = 0.9
"""Ratio of the loss in the second half of a run and in the second quarter above which it has settled."""
_CONSTANT = (
    "Check that the targets are in the range and unit that the model can return (pixels or fractions, logits or "
    "probabilities), that its last operation (softmax, normalization) works over the right axis, and that inputs and "
    "targets belong together: a constant is the best answer to targets that the input says nothing about, and the "
    "only one if all of them are out of reach."
)


@dataclass(frozen=True, kw_only=True)
class EmbeddingsShrink(HealthRule):
    """A loss of distances between outputs pulls all of them together: the outputs shrink towards a single point."""

    share: float = threshold(0.5, unit="fraction of the first spread", reason="embeddings that are learned spread")
    head: int = threshold(8, unit="recordings", reason="length of the initial median")
    window: int = threshold(4, unit="recordings", reason="length of the final median, about 200 steps")
    count: int = threshold(34, unit="recordings", reason="the first 32 steps, and two later ones")
    good: float = threshold(0.8, unit="fraction", reason="so many right answers show embeddings that tell apart")
    remedy: ClassVar[str] = (
        "Choose easier negatives: all of a batch, or semi-hard ones (farther than the positive, within the margin), "
        "not the hardest alone, which pull everything to one point, where the loss is just the margin. Normalize the "
        "embeddings, lower the learning rate, and check the sign of both distances."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history) or not history.events("compared_outputs") or is_good(history, self.good):
            return ()
        found: list[Finding] = []
        for item, name in tags.OUTPUT_STD.parts(history.names()).items():
            values = history[name].values
            if len(values) < self.count:
                continue
            first = finite_median(values[: self.head])
            last = finite_median(values[-self.window :])
            if last < self.share * first:
                text = (
                    f"the outputs of '{item}', whose distances the loss compares, have shrunk from a standard "
                    f"deviation of {number(first)} to {number(last)}: they collapse to a single point, and the loss to "
                    "its margin."
                )
                found.append(self.finding(history.step, text, subject=item))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class BatchOfOne(HealthRule):
    """Batch norms normalize by the statistics of a single sample.

    A warning if the result is poor at the end, otherwise a note.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = "batch_of_one"
    patience: int = threshold(32, unit="recordings", reason="the last batch of an epoch may have one sample")
    remedy: ClassVar[str] = (
        "Use larger batches, or group, layer or instance norm instead of batch norm: with one sample, training "
        "normalizes by other statistics than an evaluation, which uses the running ones."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: dict[str, Finding] = {}
        for event in history.events(self.kind):
            item = str(event["item"])
            if item in found or event["updates"] < self.patience:
                continue
            severity: Severity = "warning" if ends_poorly(history) else "note"
            text = f"batch norm '{event['modules'][0]}' trains on batches of one sample."
            step = history.step if severity == "warning" else int(event["step"])
            found[item] = self.finding(step, text, subject=item, severity=severity)
        return tuple(found.values())


@dataclass(frozen=True, kw_only=True)
class InputScale(HealthRule):
    """A column of a module's input has a far larger scale than the others, or all have: the input is not normalized.

    A warning if the result is poor at the end or held-out errors have not halved, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    ratio: float = threshold(
        200.0,
        unit="times the geometric mean of the columns' standard deviations",
        reason="a single column of other units among five reaches 1,000 times it at a factor of 5,000",
    )
    scale: float = threshold(
        50.0,
        unit="standard deviation of the input",
        reason="layers are initialized for inputs of about 1; bytes have 70",
    )
    small: float = threshold(
        0.03, unit="standard deviation of the input", reason="a layer's bias outweighs such an input"
    )
    offset: float = threshold(
        10.0, unit="times the standard deviation", reason="the mean of inputs hides their differences"
    )
    count: int = threshold(8, unit="recordings", reason="single batches may hold an extreme sample")
    left: float = threshold(0.5, unit="times the first held-out error", reason="what is learned well leaves less")
    evaluations: int = threshold(4, unit="evaluations", reason="whose second half is more than the last one")
    remedy: ClassVar[str] = (
        "Normalize the inputs: subtract the mean of each feature (column, channel) and divide by its standard "
        "deviation, both from the training data, or take logarithms of features with heavy tails; check the units of "
        "the named input."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item, name in tags.INPUT_RATIO.parts(history.names()).items():
            ratios = history[name]
            if len(ratios) < self.count or "." in item:
                continue
            mean, std = (history[family.tag(item)].values for family in (tags.INPUT_MEAN, tags.INPUT_STD))
            usual = float(np.nanmedian(ratios.values))
            spread = float(np.nanmedian(std))
            center = float(np.nanmedian(np.abs(mean)))
            if usual > self.ratio:
                what = f"a column of the input of '{item}' is {number(usual, 2)} times larger in scale than the others"
            elif spread > self.scale:
                what = f"the input of '{item}' has a standard deviation of {number(spread, 3)}"
            elif 0 < spread < self.small:
                what = f"the input of '{item}' (latents, features) has a standard deviation of only {number(spread, 2)}"
            elif spread > 0 and center > self.offset * spread:
                what = f"the input of '{item}' has mean {number(center, 3)} and varies by {number(spread, 2)} only"
            else:
                continue
            severity: Severity = "warning" if ends_poorly(history) or self._learns_little(history) else "note"
            text = f"{what}: it is not normalized (units, scale), and a part of its information hardly counts."
            step = history.step if severity == "warning" else int(ratios.steps[self.count - 1])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)

    def _learns_little(self, history: History) -> bool:
        """Return whether there are held-out errors, and none has halved in the second half of the run."""
        errors = [
            history[name].values
            for name, better in held_out_metrics(history).items()
            if better == "lower" and len(history[name]) >= self.evaluations
        ]
        left = [finite_median(values[len(values) // 2 :]) / max(abs(float(values[0])), 1e-30) for values in errors]
        return finished(history) and bool(left) and min(left) > self.left
