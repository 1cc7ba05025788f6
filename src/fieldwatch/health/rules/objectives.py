"""Rules for what a loop minimizes: the form of its loss, and what the gradients of the outputs say of the targets."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity, first_per_subject
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.finite import NonFinite
from fieldwatch.health.rules.rates import RateTooHigh
from fieldwatch.health.rules.results import (
    ends_poorly,
    explained_variance,
    has_improved,
    has_poor_result,
    has_rewards,
    held_out_accuracy,
    held_out_metrics,
    late,
    single_loss,
    target_variance,
)
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median, is_signed
from fieldwatch.record import History, Series, tags

_NUMBER_OF_CLASS_SUM = 0.01
_CLASS_SUM_REASON = "the gradient of a cross-entropy sums to exactly 0 over the classes; this is rounding of half types"


def _classes(history: History, bound: float) -> Iterator[str]:
    """Yield the modules whose outputs are logits of classes, as their gradients show."""
    for item, name in tags.CLASS_SUM.parts(history.names()).items():
        if finite_median(history[name].values) < bound:
            yield item


def falls_short(history: History) -> bool:
    """Return whether a finished run is at chance level, or far better in training than on held-out data."""
    return bool(ChanceLevel()(history) or TrainingGap()(history))


def _median(series: Series, head: int = 32) -> float:
    return finite_median(series.values[:head])


@dataclass(frozen=True, kw_only=True)
class LossForm(HealthRule):
    """A loss is computed from the wrong kind of values or shapes, as the operations behind it show.

    Found are a cross-entropy of probabilities (softmax or sigmoid twice), of clamped logits or over the wrong axis, a
    negative log-likelihood without a logarithm, and differences of outputs ``[n, 1]`` and targets ``[n]``, which
    compare every output with every target.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "loss_form"

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per term."""
        return first_per_subject(
            self._judge(event) for event in history.events(self.kind) if event["form"] != "bounded"
        )

    def _judge(self, event: Mapping[str, Any]) -> Finding:
        form = str(event["form"])
        term = str(event["term"])
        operation = event.get("operation", "")
        if form == "activated":
            text = (
                f"term '{term}' applies {event['loss']} to the output of {operation}: the loss normalizes (softmax or "
                "sigmoid) by itself, so the values are squashed twice and their gradients nearly vanish."
            )
            remedy = f"Pass the logits to the loss: remove the {operation} in front of it (apply it in inference only)."
        elif form == "negated":
            text = (
                f"term '{term}' is the negative of an error that is 0 for a perfect prediction: its sign is wrong, and "
                "training makes the predictions as bad as it can."
            )
            remedy = "Remove the minus sign in front of the loss (or the negative weight)."
        elif form == "axis":
            text = (
                f"{operation} in front of term '{term}' normalizes over dimension 0, the batch, and not over the "
                "classes: the outputs of a sample are no distribution, and the samples compete with each other."
            )
            remedy = f"Normalize over the classes: {operation}(dim=1), or dim=-1 if the classes are on the last axis."
        elif form == "no_log":
            text = (
                f"term '{term}' is a negative log-likelihood of {operation}, not of logarithms of probabilities: it "
                "has no lower bound or hardly any gradient."
            )
            remedy = "Use cross_entropy with logits, or apply log_softmax before nll_loss."
        else:
            text = (
                f"term '{term}' compares outputs and targets of shapes that do not match: broadcasting made "
                f"{event['rows']} x {event['rows']} differences, of each output with every target. The best that the "
                "model can learn is the mean of the targets, a constant prediction."
            )
            remedy = (
                "Give output and target the same shape: output.squeeze(-1), or target.unsqueeze(-1), before the loss; "
                "assert output.shape == target.shape."
            )
        return replace(self.finding(int(event["step"]), text, subject=term), remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class OutputRange(HealthRule):
    """The last operation of the model limits its outputs to a range that the targets exceed.

    Attributes:
        kind: kind of the events with the operations in front of the loss.
    """

    kind: str = "loss_form"
    beyond: float = threshold(
        0.2, unit="width of the range (1 for a ReLU)", reason="labels at the border of the range need no more"
    )
    agree: float = threshold(0.05, unit="fraction of the loss", reason="targets are known for a mean of squares only")
    count: int = threshold(8, unit="recordings", reason="single batches may hold an extreme target")
    remedy: ClassVar[str] = (
        "Remove the named activation at the output, or scale the targets to its range (sigmoid: 0 to 1, tanh: -1 to 1, "
        "ReLU: not negative)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        operations = [str(event["operation"]) for event in history.events(self.kind) if event["form"] == "bounded"]
        total = single_loss(history)
        if not operations or total is None:
            return ()
        low, high = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}.get(operations[0], (0.0, np.inf))
        width = high - low if np.isfinite(high) else 1.0
        for item, name in tags.TARGET_LOW.parts(history.names()).items():
            square = tags.ERROR_SQUARE.tag(item)
            if len(history[name]) < self.count or not _agrees(total, history[square], self.agree):
                continue
            least = _median(history[name])
            most = _median(history[tags.TARGET_HIGH.tag(item)])
            if least < low - self.beyond * width or most > high + self.beyond * width:
                text = (
                    f"{operations[0]} limits the outputs of '{item}' to {low:g} to {high:g}, but the targets go from "
                    f"{number(least, 3)} to {number(most, 3)}: those beyond cannot be reached."
                )
                return (self.finding(int(history[name].steps[self.count - 1]), text, subject=item),)
        return ()


@dataclass(frozen=True, kw_only=True)
class SamplesIgnored(HealthRule):
    """Most samples of a batch have no gradient: the loss does not depend on their outputs.

    A warning if the result is poor at the end, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    share: float = threshold(
        0.5,
        unit="fraction of the samples",
        reason="masks and margins leave out some, rarely half from the start",
    )
    head: int = threshold(16, unit="recordings", reason="later, samples that are learned may have no gradient left")
    remedy: ClassVar[str] = (
        "Check that the loss averages over the whole batch (an index such as [0] or [-1], a mask that is inverted, a "
        "weight of 0 per sample), and that outputs are not detached for a part of it."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item, name in tags.LIVE_SHARE.parts(history.names()).items():
            series = history[name]
            if len(series) < self.head or "." in item:
                continue
            share = _median(series, self.head)
            if not 0 < share < self.share:
                continue
            severity: Severity = "warning" if ends_poorly(history) or falls_short(history) else "note"
            text = f"only {percent(share, 0)} of the samples of a batch have a gradient at the output of '{item}'."
            step = history.step if severity == "warning" else int(series.steps[self.head - 1])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class EqualUnits(HealthRule):
    """All units of a layer are the same: they started with equal weights, get equal gradients, and stay equal."""

    zero: float = threshold(1e-6, unit="fraction of the largest weight", reason="rounding of float32")
    count: int = threshold(2, unit="recordings", reason="weights that start at zero differ after the first updates")
    remedy: ClassVar[str] = (
        "Initialize the weights at random (the default of torch, kaiming_normal_, xavier_uniform_), not with a "
        "constant or zeros: equal units can never become different."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item, name in tags.UNIT_SPREAD.parts(history.names()).items():
            series = history[name]
            if len(series) >= self.count and float(np.nanmax(series.values[: self.count])) < self.zero:
                text = f"all units of a layer of '{item}' have the same weights: symmetric initialization."
                found.append(self.finding(int(series.steps[self.count - 1]), text, subject=item))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class OptimizerRenewed(HealthRule):
    """The loop creates its optimizer anew again and again, which loses its moments each time.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "optimizer_renewed"
    count: int = threshold(8, unit="renewals", reason="a new optimizer for each of a few phases is usual")
    share: float = threshold(0.1, unit="fraction of the updates", reason="rarer renewals, per epoch, cost little")
    remedy: ClassVar[str] = (
        "Create the optimizer once, before the loop: momentum and the moments of Adam are lost with each new one."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first event that counts."""
        for event in history.events(self.kind):
            if event["renewals"] >= self.count and event["renewals"] > self.share * event["updates"]:
                text = (
                    f"a new optimizer ({event['optimizer']}) was created {event['renewals']} times within "
                    f"{event['updates']} updates: its state (momentum, moments) is lost each time."
                )
                return (self.finding(int(event["step"]), text, subject=str(event["optimizer"])),)
        return ()


@dataclass(frozen=True, kw_only=True)
class NormalizedOverBatch(HealthRule):
    """The loss normalizes the outputs over the samples of a batch, not over the classes.

    A warning if the result is poor at the end, otherwise a note: losses that whiten embeddings do so on purpose.
    """

    severity: ClassVar[Severity] = "note"
    zero: float = threshold(1e-5, unit="fraction of the gradient", reason="sums that are 0 up to rounding")
    apart: float = threshold(
        0.01, unit="fraction of the gradient", reason="a normalization over the classes would make it 0 too"
    )
    count: int = threshold(8, unit="recordings", reason="single batches may be balanced by chance")
    remedy: ClassVar[str] = (
        "Check the axis (dim) of softmax, log_softmax or normalization in the loss: the classes of a sample have to "
        "compete, not the samples of a batch. For logits [batch, classes, ...] it is dim=1, for [..., classes] dim=-1."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item, name in tags.CLASS_SUM.parts(history.names()).items():
            over_batch = tags.BATCH_SUM.tag(item)
            if over_batch not in history or len(history[name]) < self.count:
                continue
            rows = history[name]
            columns = history[over_batch].values
            if float(np.max(columns)) < self.zero and finite_median(rows.values) > self.apart:
                severity: Severity = "warning" if ends_poorly(history) or falls_short(history) else "note"
                text = (
                    f"the gradient of the outputs of '{item}' sums to 0 over the batch and not over the classes: a "
                    "softmax or a normalization in the loss has the wrong axis."
                )
                step = history.step if severity == "warning" else int(rows.steps[self.count - 1])
                found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class ChanceLevel(HealthRule):
    """At the end, the training loss is no lower than that of a constant prediction.

    For classes the constant prediction is the distribution of the targets, for squared errors their mean. Both are
    measured from the gradients of the outputs, and only trusted if they agree with the recorded loss.
    """

    share: float = threshold(0.95, unit="times the loss of a constant", reason="5 % is the noise of a few batches")
    agree: float = threshold(
        0.15, unit="fraction of the loss", reason="a loss that the outputs do not explain has another form"
    )
    class_sum: float = threshold(_NUMBER_OF_CLASS_SUM, unit="fraction of the gradient", reason=_CLASS_SUM_REASON)
    count: int = threshold(36, unit="recordings", reason="the first 32 steps, and four later ones")
    remedy: ClassVar[str] = (
        "The model has learned nothing from its input. Check that inputs and targets (labels, pairs) belong together "
        "and are indexed by the same batch, that the input carries information (normalization, positions, encoding) "
        "and reaches the output, and that the loss compares matching shapes over the right axis; then the learning "
        "rate."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding at the end of the run."""
        if not finished(history) or single_loss(history) is None or has_improved(history) or has_rewards(history):
            return ()
        for item, loss, constant, what in self._measured(history):
            if constant > 0 and loss >= self.share * constant:
                text = (
                    f"the loss ended at {number(loss)}, no better than a constant prediction ({number(constant)}, "
                    f"{what}): '{item}' is at chance level."
                )
                return (self.finding(history.step, text, subject=item),)
        return ()

    def _measured(self, history: History) -> Iterator[tuple[str, float, float, str]]:
        """Yield module, final loss, loss of a constant prediction, and what that is."""
        total = single_loss(history)
        if total is None:
            return
        for item in _classes(history, self.class_sum):
            implied = history[tags.IMPLIED_LOSS.tag(item)]
            if len(implied) >= self.count and _agrees(total, implied, self.agree):
                entropy = float(history[tags.TARGET_ENTROPY.tag(item)].values[-1])
                yield item, late(implied), entropy, "the entropy of the targets"
        for item, name in tags.ERROR_SQUARE.parts(history.names()).items():
            explained = explained_variance(history, item)
            if len(history[name]) >= self.count and explained is not None:
                last = late(total)
                yield item, last, last / max(1 - explained, 1e-12), "the variance of the targets"


def _agrees(total: Series, implied: Series, bound: float) -> bool:
    """Return whether a loss is the one that the outputs imply, at the first and the last measured steps."""
    places = np.searchsorted(total.steps, implied.steps)
    places = np.minimum(places, len(total) - 1)
    ratio = total.values[places] / np.maximum(implied.values, 1e-12)
    return all(abs(finite_median(part) - 1) < bound for part in (ratio[:32], ratio[-4:]))


@dataclass(frozen=True, kw_only=True)
class InitialLoss(HealthRule):
    """The loss of a classifier starts far above that of a guess: its outputs are far too large before any training.

    A warning if the run diverges or its result is poor, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    ratio: float = threshold(
        10.0, unit="times the loss of a guess", reason="usual initializations start within twice that of a guess"
    )
    class_sum: float = threshold(_NUMBER_OF_CLASS_SUM, unit="fraction of the gradient", reason=_CLASS_SUM_REASON)
    remedy: ClassVar[str] = (
        "Normalize the inputs of the layers (features, an adjacency matrix, sums over many neighbors), and use a "
        "smaller scale for the initial weights, so that the first outputs are of order 1; clip gradients and lower "
        "the learning rate until then."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        if history.first > 0:
            return ()
        found: list[Finding] = []
        for item in _classes(history, self.class_sum):
            first = float(history[tags.IMPLIED_LOSS.tag(item)].values[0])
            guess = float(history[tags.TARGET_ENTROPY.tag(item)].values[0])
            if not guess > 0 or not first > self.ratio * guess:
                continue
            bad = NonFinite()(history) or RateTooHigh()(history) or ends_poorly(history)
            severity: Severity = "warning" if bad else "note"
            text = (
                f"the first outputs of '{item}' have a loss of {number(first)}, {number(first / guess, 2)} times that "
                "of a guess: their scale is far too large at the start, and gradients explode."
            )
            step = int(history[tags.CLASS_SUM.tag(item)].steps[0])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class OutputsGrow(HealthRule):
    """The outputs of a module grow to many times their first size and still grow at the end, and the result is poor."""

    ratio: float = threshold(
        20.0, unit="times the first standard deviation", reason="logits grow tenfold while they are learned"
    )
    rise: float = threshold(1.2, unit="times that of the middle of the run", reason="outputs that settle do not grow")
    count: int = threshold(36, unit="recordings", reason="the first 32 steps, and four later ones")
    remedy: ClassVar[str] = (
        "Look for targets that are made of the model's own outputs: with bootstrapped values use a discount below 1, "
        "no value behind the end of an episode (terminal states), and a target network; detach the targets. "
        "Otherwise bound or normalize the outputs, and lower the learning rate."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history) or not (has_poor_result(history) or falls_short(history)):
            return ()
        found: list[Finding] = []
        for item, name in tags.OUTPUT_STD.parts(history.names()).items():
            series = history[name]
            if len(series) < self.count or "." in item:
                continue
            first = _median(series, 8)
            middle = finite_median(series.values[series.steps <= history.step / 2][-2:])
            last = late(series)
            if first > 0 and last > self.ratio * first and last > self.rise * middle:
                text = (
                    f"the outputs of '{item}' grow without bound: their standard deviation went from {number(first)} "
                    f"over {number(middle)} to {number(last)} (they diverge)."
                )
                found.append(self.finding(history.step, text, subject=item))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class UnmixedBatches(HealthRule):
    """Batches hold few classes each, although all steps together have many: the samples are not shuffled.

    A warning if the result is poor at the end, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    share: float = threshold(
        0.6, unit="times the entropy of all targets", reason="random batches of 8 samples have more than 0.7 of it"
    )
    entropy: float = threshold(0.5, unit="nats", reason="with nearly a single class there is nothing to mix")
    class_sum: float = threshold(_NUMBER_OF_CLASS_SUM, unit="fraction of the gradient", reason=_CLASS_SUM_REASON)
    count: int = threshold(16, unit="recordings", reason="enough batches to see several classes")
    remedy: ClassVar[str] = (
        "Shuffle the samples: DataLoader(..., shuffle=True) or a sampler with a new random order in each epoch; data "
        "that are sorted by class or source make the model forget one class while it learns the next."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item in _classes(history, self.class_sum):
            batch = history[tags.BATCH_ENTROPY.tag(item)]
            everything = float(history[tags.TARGET_ENTROPY.tag(item)].values[-1])
            # At first: later, samples that are learned have no gradient left.
            usual = finite_median(batch.values[: self.count])
            if len(batch) < self.count or everything < self.entropy or usual > self.share * everything:
                continue
            severity: Severity = "warning" if ends_poorly(history) or falls_short(history) else "note"
            text = (
                f"a batch of '{item}' has targets with an entropy of {number(usual)}, all steps together of "
                f"{number(everything)}: the samples come sorted by class, not shuffled."
            )
            step = history.step if severity == "warning" else int(batch.steps[self.count - 1])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class PaddingCounts(HealthRule):
    """Padding counts in the loss: a large part of the targets is the same class exactly where the input is blank.

    A warning if the other targets are learned poorly at the end, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    share: float = threshold(
        0.3, unit="fraction of the targets", reason="less padding hardly weakens the gradient of the rest"
    )
    hits: float = threshold(
        0.9, unit="accuracy on the other targets", reason="padding does no harm to what was learned anyway"
    )
    class_sum: float = threshold(_NUMBER_OF_CLASS_SUM, unit="fraction of the gradient", reason=_CLASS_SUM_REASON)
    remedy: ClassVar[str] = (
        "Leave padding out of the loss: cross_entropy(..., ignore_index=...), or a mask over the positions, and divide "
        "by the number of positions that count; mask it in attention and in metrics too."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item in _classes(history, self.class_sum):
            name = tags.BLANK_SHARE.tag(item)
            blank = _median(history[name]) if name in history else 0.0
            if blank < self.share:
                continue
            # All blanks are right after a few steps.
            others = (late(history[tags.HITS.tag(item)]) - blank) / max(1 - blank, 1e-6)
            severity: Severity = "warning" if finished(history) and others < self.hits else "note"
            text = (
                f"{percent(blank, 0)} of the targets of '{item}' are one class exactly where the input is the same "
                f"token: padding counts in the loss, and outweighs the other targets"
            )
            text += f", of which {percent(max(others, 0.0), 0)} are right." if severity == "warning" else "."
            step = history.step if severity == "warning" else int(history[name].steps[0])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class PositionIgnored(HealthRule):
    """A module with attention returns the same for equal tokens of a sequence: it does not know their positions.

    A warning if many training targets are wrong at the end, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    spread: float = threshold(1e-5, unit="fraction of the largest output", reason="rounding of float32")
    hits: float = threshold(0.9, unit="training accuracy", reason="a task that needs no positions is learned without")
    count: int = threshold(8, unit="recordings", reason="embeddings of positions may start at zero")
    remedy: ClassVar[str] = (
        "Add positions to the input of the attention (a positional encoding or embedding, rotary positions): without "
        "them the order of the tokens is no information for the model."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item, name in tags.POSITION_SPREAD.parts(history.names()).items():
            series = history[name]
            # Dropout makes equal tokens differ in any case.
            if len(series) < self.count or not np.nanmax(series.values[-self.count :]) <= self.spread:
                continue
            hits = tags.HITS.tag(item)
            poor = ends_poorly(history) or (hits in history and late(history[hits]) < self.hits)
            severity: Severity = "warning" if finished(history) and poor else "note"
            text = f"'{item}' returns the same for equal tokens of a sequence: its attention knows no position."
            step = history.step if severity == "warning" else int(series.steps[self.count - 1])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class FutureVisible(HealthRule):
    """A model that predicts the next token sees it: the last token changes the outputs before it."""

    spread: float = threshold(1e-3, unit="fraction of the largest output", reason="far above rounding")
    share: float = threshold(
        0.8, unit="fraction of the targets", reason="so many equal the next token only in language models"
    )
    remedy: ClassVar[str] = (
        "Give the attention a causal mask (is_causal=True, or an upper triangle of -inf), and check that no layer "
        "(bidirectional recurrence, centered convolution, norm over the positions) looks ahead."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item, name in tags.FUTURE_SPREAD.parts(history.names()).items():
            following = tags.NEXT_SHARE.tag(item)
            if following not in history or _median(history[following]) < self.share:
                continue
            if float(history[name].values[-1]) > self.spread:
                text = (
                    f"'{item}' predicts the next token, but its outputs change with later tokens: it sees the answer "
                    "(a leak from the future), so its training loss means nothing."
                )
                found.append(self.finding(int(history[name].steps[-1]), text, subject=item))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class TargetAmongInputs(HealthRule):
    """A module passes on one column of its input, and held-out data gain far less: the target is among the inputs."""

    correlation: float = threshold(
        0.99, unit="correlation of output and input column", reason="higher than features that merely help"
    )
    remedy: ClassVar[str] = (
        "Look for a feature (column) of the training inputs that holds the target or is computed from it, and drop it: "
        "it leaks the answer and is missing or different in new data. Compute features on the training split only."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history) or not (ends_poorly(history) or falls_short(history)):
            return ()
        found: list[Finding] = []
        for item, name in tags.COPIED.parts(history.names()).items():
            copied = late(history[name])
            if copied > self.correlation:
                text = (
                    f"the outputs of '{item}' equal one column of its inputs (correlation {number(copied, 4)}) in "
                    "training, and the result on held-out data is far worse: the target leaks into the inputs."
                )
                found.append(self.finding(history.step, text, subject=item))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class TrainingGap(HealthRule):
    """The training accuracy, measured from the outputs' gradients, is far above the held-out one."""

    share: float = threshold(
        0.3, unit="difference of accuracies", reason="three of ten samples are right only because they were seen"
    )
    class_sum: float = threshold(_NUMBER_OF_CLASS_SUM, unit="fraction of the gradient", reason=_CLASS_SUM_REASON)
    fallen: float = threshold(
        0.9, unit="times the first held-out error", reason="an error that falls shows that something was learned"
    )
    count: int = threshold(36, unit="recordings", reason="the first 32 steps, and four later ones")
    remedy: ClassVar[str] = (
        "Check that training and evaluation agree: the same targets (labels, shift, order), the same preprocessing of "
        "inputs, the same mode. If they do, the training data were learned by heart: use more data, shuffle, "
        "regularize (weight decay, dropout) or take a smaller model, and keep the best checkpoint."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history):
            return ()
        for item in _classes(history, self.class_sum):
            series = history[tags.HITS.tag(item)]
            if len(series) < self.count:
                continue
            seen = late(series)
            for name, unseen in held_out_accuracy(history):
                if seen - unseen > self.share:
                    text = (
                        f"{percent(seen, 0)} of the training targets of '{item}' are right, but {name} ended at "
                        f"{number(unseen)}: held-out data gain far less (targets or inputs differ, or overfitting)."
                    )
                    return (self.finding(history.step, text, subject=name),)
        return self._of_squares(history)

    def _of_squares(self, history: History) -> tuple[Finding, ...]:
        """Return a finding if a loss of squares is far lower in training than the same error on held-out data."""
        for item in tags.ERROR_SQUARE.parts(history.names()):
            variance = target_variance(history, item)
            explained = explained_variance(history, item)
            if variance is None or explained is None:
                continue
            for name, better in held_out_metrics(history).items():
                words = set(re.findall(r"[a-z0-9]+", name.lower()))
                last = float(history[name].values[-1])
                unseen = None
                if better == "lower" and words & {"mse", "rmse"}:
                    unseen = 1 - (last if "mse" in words else last**2) / variance
                elif words & {"r2", "explained"}:
                    unseen = last
                first = float(history[name].values[0])
                # An error in other units than the loss falls with it.
                learned = better == "lower" and last < self.fallen * first
                if unseen is not None and not learned and explained - unseen > self.share:
                    text = (
                        f"'{item}' explains {percent(explained, 0)} of the training targets' variance, but {name} "
                        f"ended at {number(last)}, {percent(unseen, 0)} of it: held-out data gain far less (targets or "
                        "inputs differ, or overfitting)."
                    )
                    return (self.finding(history.step, text, subject=name),)
        return ()


@dataclass(frozen=True, kw_only=True)
class OddSetting(HealthRule):
    """An optimizer or a layer has a setting that is rarely meant, such as momentum 0.999 or dropout 0.9.

    A warning if the result is poor at the end, or if the optimizer maximizes a loss; otherwise a note.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = "odd_setting"
    remedy: ClassVar[str] = "Use the usual value, or the default of the class."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per place and setting."""
        return first_per_subject(self._judge(history, event) for event in history.events(self.kind))

    def _judge(self, history: History, event: Mapping[str, Any]) -> Finding:
        setting = str(event["setting"])
        where = str(event["where"])
        value = float(event["value"])
        maximizes = setting == "maximize"
        poor = ends_poorly(history) or falls_short(history)
        severity: Severity = "warning" if poor or (maximizes and _rose(history)) else "note"
        text = f"{where} has {setting} = {value:g}; usual is {event['usual']}."
        if maximizes:
            text = f"{where} has maximize=True: its updates raise the loss instead of lowering it (a wrong sign)."
        remedy = f"Set {setting} of {where} to the usual value ({event['usual']})."
        step = history.step if severity == "warning" else int(event["step"])
        return replace(self.finding(step, text, subject=f"{where} {setting}", severity=severity), remedy=remedy)


def _rose(history: History) -> bool:
    if tags.TOTAL not in history or len(history[tags.TOTAL]) < 32:
        return False
    values = history[tags.TOTAL].values
    return bool(np.nanmedian(values[-8:]) > np.nanmedian(values[:8]))


@dataclass(frozen=True, kw_only=True)
class FrozenBody(HealthRule):
    """Most of a trained module is frozen from the start, and the result is poor.

    A note if the result is good: fine-tuning freezes a pretrained body on purpose.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = "frozen_share"
    share: float = threshold(0.3, unit="fraction of the parameters", reason="smaller parts hardly limit the model")
    remedy: ClassVar[str] = (
        "Call requires_grad_(True) on the named parameters and give them to the optimizer, unless they are pretrained: "
        "a body with random weights cannot learn. If it is pretrained, check that its weights were loaded."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding if there are such parameters."""
        for event in history.events(self.kind):
            if float(event["share"]) < self.share:
                continue
            poor = ends_poorly(history) or falls_short(history)
            severity: Severity = "warning" if poor else "note"
            names = ", ".join(f"'{name}'" for name in event["names"][:3])
            also = ", although an optimizer holds them" if event["in_optimizer"] else ""
            text = (
                f"{percent(event['share'], 0)} of the parameters are frozen (requires_grad=False) since the start"
                f"{also}: {names} and others."
            )
            step = history.step if severity == "warning" else int(event["step"])
            return (self.finding(step, text, subject=str(event["names"][0]), severity=severity),)
        return ()


@dataclass(frozen=True, kw_only=True)
class UnboundedLoss(HealthRule):
    """A loss falls without a bound, faster and faster: its sign, or that of a term, is wrong."""

    depth: float = threshold(
        20.0, unit="times the first absolute loss", reason="likelihoods of healthy runs settle within a few units"
    )
    faster: float = threshold(
        0.5, unit="fraction of the fall in the last third", reason="a bounded loss falls mostly at first"
    )
    count: int = threshold(60, unit="recordings", reason="three parts of 20 recordings")
    remedy: ClassVar[str] = (
        "Check the sign of the loss and of each term (a log-determinant, an entropy, a reward, a distance that is to "
        "be large): a loss that can be lowered without end is minimized at the expense of everything else. Bound it."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of the run."""
        if not finished(history) or tags.TOTAL not in history:
            return ()
        series = history[tags.TOTAL]
        values = series.values[np.isfinite(series.values)]
        alone = len(tags.COMPONENT.parts(history.names())) <= 1
        if not alone or len(values) < self.count or not is_signed(values) or has_improved(history):
            return ()
        first = float(np.median(values[:8]))
        middle = float(np.median(values[2 * len(values) // 3 :][:8]))
        last = float(np.median(values[-8:]))
        fall = first - last
        if last >= 0 or fall < self.depth * max(abs(first), 0.1) or middle - last < self.faster * fall:
            return ()
        text = (
            f"{tags.TOTAL} fell from {number(first)} to {number(last)}, most of it at the end: it has no lower bound, "
            "so a sign is wrong."
        )
        return (self.finding(history.step, text, subject=tags.TOTAL),)
