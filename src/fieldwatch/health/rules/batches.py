"""Rules for what the modules get and return: the same batch or the same sample again and again, constant outputs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import has_improved, has_rewards, held_out_lag, is_evaluated, single_loss
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
    remedy: ClassVar[str] = (
        "Draw another batch at every step: call next(...) on the iterator of the loader inside the loop, do not create "
        "the iterator (or seed a generator) anew at each step, and shuffle the order of the samples."
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
            if severity == "note":
                text = f"'{item}' got the same batch at all {len(marks)} measured steps, as if it were all of the data."
            step = history.step if severity == "warning" else int(marks.steps[self.count - 1])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


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
        "the activation (LeakyReLU, GELU), and lower the learning rate if the units died during the training."
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
        if not finished(history) or has_improved(history) or not is_evaluated(history):
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
class EvaluationInput(HealthRule):
    """A module gets inputs of another scale in evaluations than in training.

    A warning if the result is poor at the end, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    scale: float = threshold(
        3.0, unit="times the standard deviation in training", reason="samples of the same data differ by much less"
    )
    shift: float = threshold(
        2.0, unit="standard deviations in training", reason="a mean of about 2,000 entries varies by far less"
    )
    columns: float = threshold(
        1.0,
        unit="standard deviations of a column, on average",
        reason="means of 32 samples differ by 0.15; other samples of the same data by hardly more",
    )
    some: float = threshold(
        0.7, unit="standard deviations of a column, on average", reason="enough if held-out data lack a loss as well"
    )
    lag: float = threshold(
        0.3, unit="fraction of the fall of the training loss", reason="lacking in the same loss on held-out data"
    )
    arguments: float = threshold(
        3.5,
        unit="standard deviations, or tenths of the tokens",
        reason="times that begin at the end of their range are 1.7 away; other samples of the same tokens differ by 1",
    )
    right: float = threshold(
        0.95, unit="fraction", reason="a model that is right so often all the same does not mind where padding stands"
    )
    placed: float = threshold(
        0.25, unit="fraction of the sequences", reason="single sequences may be unusual; a format concerns most"
    )
    count: int = threshold(2, unit="evaluations", reason="a single batch may be unusual")
    remedy: ClassVar[str] = (
        "Apply the same normalization (mean, standard deviation, scaling to 0..1) in training and in evaluation: make "
        "it part of the model, or use one function for both. Check that both have the same features (columns, "
        "channels) in the same order, the same unit of times and conditions, and the same tokenizer and vocabulary."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item in tags.EVALUATION_INPUT_MEAN.parts(history.names()):
            finding = self._by_place(history, item) or self._judge(history, item)
            finding = finding or self._by_column(history, item) or self._by_argument(history, item)
            if finding is not None:
                found.append(finding)
        return tuple(found)

    def _judge(self, history: History, item: str) -> Finding | None:
        families = (tags.INPUT_MEAN, tags.INPUT_STD, tags.EVALUATION_INPUT_MEAN, tags.EVALUATION_INPUT_STD)
        names = [family.tag(item) for family in families]
        if any(name not in history for name in names) or len(history[names[2]]) < self.count:
            return None
        mean, std, seen_mean, seen_std = (float(np.nanmedian(history[name].values)) for name in names)
        if not std > 0:
            return None
        ratio = seen_std / std
        if abs(seen_mean - mean) <= self.shift * std and 1 / self.scale <= ratio <= self.scale:
            return None
        severity: Severity = "warning" if ends_poorly(history) else "note"
        text = (
            f"the input of '{item}' has mean {number(seen_mean, 3)} and standard deviation {number(seen_std, 3)} "
            "in evaluations, but "
            f"{number(mean, 3)} and {number(std, 3)} in training: it is normalized differently."
        )
        step = history.step if severity == "warning" else int(history[names[2]].steps[self.count - 1])
        return self.finding(step, text, subject=item, severity=severity)

    def _by_place(self, history: History, item: str) -> Finding | None:
        """Return a finding if sequences are padded on the other side, or begin with another token."""
        for place in _PLACES:
            name = place.family.tag(item)
            if name not in history or len(history[name]) < self.count:
                continue
            share = finite_median(history[name].values)
            if share > self.placed:
                text = f"{percent(share, 0)} of the sequences that '{item}' gets in evaluations {place.text}"
                # A model that answers well all the same does not mind.
                severity: Severity = "warning" if finished(history) and not is_good(history, self.right) else "note"
                step = history.step if severity == "warning" else int(history[name].steps[self.count - 1])
                return replace(self.finding(step, text, subject=item, severity=severity), remedy=place.remedy)
        return None

    def _by_column(self, history: History, item: str) -> Finding | None:
        """Return a finding if the columns have other means in evaluations, such as exchanged or missing ones."""
        name = tags.EVALUATION_INPUT_SHIFT.tag(item)
        if name not in history or len(history[name]) < self.count:
            return None
        shift = float(np.nanmedian(history[name].values))
        # Two weak signs of the same fault: columns that differ somewhat, and a loss that held-out data lack.
        both = shift > self.some and held_out_lag(history) > self.lag
        if not both and (shift <= self.columns or not ends_poorly(history)):
            return None
        text = (
            f"the columns of the input of '{item}' have other means in evaluations than in training, by "
            f"{number(shift, 2)} standard deviations on average: features differ, or come in another order or scale."
        )
        return self.finding(history.step, text, subject=item, severity="warning")

    def _by_argument(self, history: History, item: str) -> Finding | None:
        """Return a finding if other arguments (times, conditions) or the frequencies of tokens are others."""
        name = tags.EVALUATION_ARGUMENT_SHIFT.tag(item)
        if name not in history or len(history[name]) < self.count or not ends_poorly(history):
            return None
        shift = float(np.nanmedian(history[name].values))
        if shift <= self.arguments:
            return None
        text = (
            f"an argument of '{item}' (times, conditions, tokens, indices) has another scale or other frequencies in "
            f"evaluations than in training, by {number(shift, 2)} standard deviations: it is not the same input."
        )
        return self.finding(history.step, text, subject=item, severity="warning")


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Share of an evaluation's sequences whose tokens stand elsewhere than in training.

    Attributes:
        family: its metrics.
        text: what it means, behind "of the sequences that ... gets in evaluations".
        remedy: what to do.
    """

    family: tags.Family
    text: str
    remedy: str


_PLACES = (
    _Place(
        family=tags.EVALUATION_PADDING,
        text="are padded on the other side than in training: what only filled the ends of sequences comes before their "
        "tokens (or after them), where the model has never seen it.",
        remedy="Pad on the same side in training and in evaluation (padding_side of the tokenizer; for prompts that "
        "are written on, pad the training sequences on the left, too), write on prompts of equal length together, or "
        "give the model a mask of the padding.",
    ),
    _Place(
        family=tags.EVALUATION_START,
        text="do not begin with the token with which all sequences of the training began: the model has never seen "
        "such a start.",
        remedy="Begin the sequences of evaluations with the same start token as those of the training (bos, sos, "
        "[CLS]): use one function, or one tokenizer setting, for both.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class EvaluationOutput(HealthRule):
    """A module answers inputs of the same scale with far larger, smaller or other outputs in evaluations.

    So it is another function there, or its inputs differ in what counts: statistics of norms that do not follow the
    weights, a part that is dropped or added in one of the modes, features that are missing or rearranged. Judged is the
    second half of the run.
    """

    ratio: float = threshold(
        2.2,
        unit="times the standard deviation of the outputs in training",
        reason="from 0.6 to 1.6 in healthy runs",
        source="measured by benchmarks/verdicts.py",
    )
    shift: float = threshold(
        1.2,
        unit="standard deviations of an output's column, on average",
        reason="0.1 to 0.3 in healthy runs, of other samples of the same data",
        source="measured by benchmarks/verdicts.py",
    )
    inputs: float = threshold(
        1.5, unit="times the deviation of the inputs", reason="inputs of another scale have other outputs"
    )
    count: int = threshold(2, unit="evaluations", reason="a single batch may be unusual")
    remedy: ClassVar[str] = (
        "Compare model(x) in train and in eval mode for one training batch. If they differ, look at batch norms (their "
        "momentum, running statistics that an average of the weights did not copy) and at dropout. If not, the data "
        "differ: check that training and evaluation use the same features, axes, order, mask and preprocessing, and "
        "that no input of the training holds the target."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        # A policy that plays well sees other states than one that explores.
        if not finished(history) or has_rewards(history):
            return ()
        return tuple(
            found
            for item in tags.EVALUATION_OUTPUT_STD.parts(history.names())
            if (found := self._judge(history, item)) is not None
        )

    def _judge(self, history: History, item: str) -> Finding | None:
        trained, evaluated = (
            self._late(history, family.tag(item)) for family in (tags.OUTPUT_STD, tags.EVALUATION_OUTPUT_STD)
        )
        given, asked = (self._late(history, family.tag(item)) for family in (tags.INPUT_STD, tags.EVALUATION_INPUT_STD))
        if not (trained > 0 and given > 0 and 1 / self.inputs <= asked / given <= self.inputs):
            return None
        shift = self._late(history, tags.EVALUATION_OUTPUT_SHIFT.tag(item))
        if not 1 / self.ratio <= evaluated / trained <= self.ratio:
            text = (
                f"the outputs of '{item}' have a standard deviation of {number(evaluated, 3)} in evaluations, but of "
                f"{number(trained, 3)} in training, for inputs of the same scale: training and evaluation differ."
            )
        elif shift > self.shift:
            text = (
                f"the outputs of '{item}' have other means in evaluations than in training, by {number(shift, 2)} "
                "standard deviations on average, for inputs of the same scale: training and evaluation differ."
            )
        else:
            return None
        return self.finding(history.step, text, subject=item)

    def _late(self, history: History, name: str) -> float:
        """Return the median of the second half of the run; NaN if there are too few recordings."""
        if name not in history:
            return float("nan")
        series = history[name]
        values = series.values[series.steps >= history.step / 2]
        return finite_median(values) if len(values) >= self.count else float("nan")


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

    A warning if the result is poor at the end, otherwise a note.
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
            severity: Severity = "warning" if ends_poorly(history) else "note"
            text = f"{what}: it is not normalized (units, scale), and a part of its information hardly counts."
            step = history.step if severity == "warning" else int(ratios.steps[self.count - 1])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)
