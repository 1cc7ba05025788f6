"""Rules for what a loop minimizes: the form of its loss, and which samples, classes and columns it depends on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity, first_per_subject
from fieldwatch.health.outcomes import (
    CLASS_SUM_BOUND,
    CLASS_SUM_REASON,
    agrees,
    classifiers,
    has_improved,
    has_rewards,
    head_median,
    late,
    single_loss,
)
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.chance import falls_short
from fieldwatch.health.rules.evaluations import EvaluationOutput
from fieldwatch.health.rules.poor_results import ends_poorly
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median, first_sustained, is_signed
from fieldwatch.record import History, Series, tags


@dataclass(frozen=True, kw_only=True)
class LossForm(HealthRule):
    """A loss is computed from the wrong kind of values or shapes, as the operations behind it show.

    Found are a cross-entropy of probabilities (softmax or sigmoid twice), of clamped logits or over the wrong axis, a
    negative log-likelihood or a divergence (kl_div) without a logarithm, similarities of a batch with itself whose
    diagonal is not masked, differences (or products) of outputs ``[n, 1]`` and targets ``[n]``, which compare every
    output with every target, and, if the result is poor at the end, a divergence from a target that is trained as well.
    Where the operations are not seen, since a loop hands over detached losses, the gradient of the outputs tells of
    softmax twice and of a missing logarithm.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "loss_form"
    misfit: float = threshold(1e-4, unit="share of the squared gradient", reason="rounding of half types leaves less")
    clear: float = threshold(
        0.05, unit="times that of the other formula", reason="while chances are nearly equal, both explain a gradient"
    )
    count: int = threshold(4, unit="measured steps", reason="a few may agree by chance")

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per term, or per module if the operations behind its loss are not seen."""
        found = first_per_subject(
            self._judge(event)
            for event in history.events(self.kind)
            if event["form"] != "bounded" and (event["form"] != "moving" or ends_poorly(history))
        )
        return found or tuple(self._measured(history))

    def _measured(self, history: History) -> Iterator[Finding]:
        """Yield what the gradients of outputs tell of their loss."""
        for item, name in tags.SOFTMAX_TWICE.parts(history.names()).items():
            twice = history[name]
            unlogged = history[tags.NO_LOGARITHM.tag(item)]
            at = self._explained(twice, unlogged)
            if at is not None:
                text = (
                    f"the gradient of the outputs of '{item}' is that of a cross-entropy of probabilities: the loss "
                    "normalizes (softmax) by itself, so the outputs are squashed twice and their gradients nearly "
                    "vanish."
                )
                remedy = "Pass the logits to the loss: remove the softmax in front of it (apply it in inference only)."
                yield replace(self.finding(at, text, subject=item), remedy=remedy)
            # Probabilities without a logarithm are also maximized on purpose, where many labels are wrong.
            elif self._explained(unlogged, twice) is not None and (ends_poorly(history) or falls_short(history)):
                text = (
                    f"the gradient of the outputs of '{item}' is that of a negative probability (softmax), not of its "
                    "logarithm: answers that are wrong for certain have hardly any gradient."
                )
                remedy = "Use cross_entropy with logits, or apply log_softmax before nll_loss."
                yield replace(self.finding(history.step, text, subject=item), remedy=remedy)

    def _explained(self, misfits: Series, others: Series) -> int | None:
        """Return the step at which it is known that a formula, and not the other one, explains the gradients."""
        exact = (misfits.values < self.misfit) & (misfits.values < self.clear * others.values)
        known = np.flatnonzero(exact)
        return int(misfits.steps[known[self.count - 1]]) if len(known) >= self.count else None

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
        elif form == "no_log" and event.get("loss") == "divergence":
            text = (
                f"term '{term}' is a divergence (kl_div) of {operation}, but its first argument has to be logarithms "
                "of probabilities: its lowest value is no good prediction."
            )
            remedy = "Pass logarithms to kl_div: log_softmax(logits) in place of softmax(logits)."
        elif form == "no_log":
            text = (
                f"term '{term}' is a negative log-likelihood of {operation}, not of logarithms of probabilities: it "
                "has no lower bound or hardly any gradient."
            )
            remedy = "Use cross_entropy with logits, or apply log_softmax before nll_loss."
        elif form == "moving":
            text = (
                f"term '{term}' is a divergence (kl_div) from a target that is trained by it as well: the teacher "
                "follows the student, and both may end in something trivial."
            )
            remedy = (
                "Compute the teacher's outputs under torch.no_grad(), or detach() them, freeze the teacher with "
                "requires_grad_(False), and give the optimizer the parameters of the student alone."
            )
        elif form == "crossed_product":
            text = (
                f"term '{term}' is a mean of {event['rows']} x {event['rows']} products: broadcasting has multiplied "
                "each output with all weights (advantages, returns), of shapes [n] and [n, 1], so that no output meets "
                "its own."
            )
            remedy = (
                "Give both the same shape: advantages.squeeze(-1), or unsqueeze(-1) for the other one; assert "
                "a.shape == b.shape before the product."
            )
        elif form == "bounded_critic":
            text, remedy = _of_critic(term)
        elif form == "itself":
            text = (
                f"term '{term}' is a cross-entropy of the similarities of {event['rows']} entries with each other, "
                "each with itself among them: nothing is as similar to an entry as itself, so the pairs that are to "
                "be found are not learned (a trivial task)."
            )
            remedy = (
                "Mask the diagonal before the loss (similarity.fill_diagonal_(float('-inf'))), and let the target of "
                "each entry be its other view (its positive), never its own index."
            )
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


def _of_critic(term: str) -> tuple[str, str]:
    """Return message and remedy of a critic that ends with a sigmoid, whose means are subtracted."""
    text = (
        f"term '{term}' is the difference of the means of two sigmoids: a critic whose answers are bounded and "
        "saturate, so that its gradients vanish where it is sure."
    )
    remedy = (
        "Remove the sigmoid at the end of the critic (discriminator): a difference of means needs a linear last layer. "
        "For a discriminator with probabilities, use binary_cross_entropy_with_logits in its place."
    )
    return text, remedy


@dataclass(frozen=True, kw_only=True)
class NegativeLoss(HealthRule):
    """A loss that is never negative for targets in their range has become negative.

    Attributes:
        kind: kind of the events with the losses that have 0 as their lowest value.
    """

    severity: ClassVar[Severity] = "error"
    kind: str = "loss_floor"
    depth: float = threshold(
        0.01, unit="fraction of the largest absolute value", reason="smaller values below 0 are rounding"
    )
    patience: int = threshold(4, unit="recordings", reason="a single batch may hold one bad target")
    remedy: ClassVar[str] = (
        "Look at the targets that the loss gets. A binary cross-entropy needs targets from 0 to 1 (divide masks of 0 "
        "to 255 by 255). CTC needs logarithms of probabilities, and targets that never hold the class of its blank: "
        "pass the same index as blank that decoding uses."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per term, where it had been negative for ``patience`` recordings."""
        found: list[Finding] = []
        for event in history.events(self.kind):
            term = str(event["term"])
            name = tags.COMPONENT.tag(term)
            if name not in history:
                continue
            series = history[name]
            finite = series.values[np.isfinite(series.values)]
            bound = self.depth * float(np.abs(finite).max(initial=0.0))
            at = first_sustained(series.values < -bound, patience=self.patience) if bound > 0 else None
            if at is not None:
                text = (
                    f"term '{term}' is {number(series.values[at])}, but a {event['operation']} is never negative: its "
                    "targets (labels, blank index) or inputs are out of the range that it is defined for, so its "
                    "lowest value is not a good prediction."
                )
                found.append(self.finding(int(series.steps[at]), text, subject=term))
        return first_per_subject(found)


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
            if len(history[name]) < self.count or not agrees(total, history[square], self.agree):
                continue
            least = head_median(history[name])
            most = head_median(history[tags.TARGET_HIGH.tag(item)])
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
            share = head_median(series, self.head)
            if not 0 < share < self.share:
                continue
            severity: Severity = "warning" if ends_poorly(history) or falls_short(history) else "note"
            text = f"only {percent(share, 0)} of the samples of a batch have a gradient at the output of '{item}'."
            step = history.step if severity == "warning" else int(series.steps[self.head - 1])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class NormalizedOverBatch(HealthRule):
    """The loss normalizes the outputs over the samples of a batch, not over the classes.

    A warning if the result is poor at the end, otherwise a note: losses that whiten embeddings do so on purpose. A loss
    of the distances between outputs has such a gradient by its nature, and is left out.
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
        if history.events("compared_outputs"):
            return ()
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
class UnmixedBatches(HealthRule):
    """Batches hold few classes each, although all steps together have many: the samples are not shuffled.

    A warning if the result is poor at the end, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    share: float = threshold(
        0.6, unit="times the entropy of all targets", reason="random batches of 8 samples have more than 0.7 of it"
    )
    entropy: float = threshold(0.5, unit="nats", reason="with nearly a single class there is nothing to mix")
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    count: int = threshold(16, unit="recordings", reason="enough batches to see several classes")
    remedy: ClassVar[str] = (
        "Shuffle the samples: DataLoader(..., shuffle=True) or a sampler with a new random order in each epoch; data "
        "that are sorted by class or source make the model forget one class while it learns the next."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item in classifiers(history, self.class_sum):
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
class InvertedWeights(HealthRule):
    """The loss gives frequent classes more weight than rare ones, as inverted class weights do."""

    slope: float = threshold(
        0.5,
        unit="exponent of the frequency",
        reason="equal weights have 0, inverse frequencies -1, and focal losses less than 0",
    )
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    count: int = threshold(16, unit="recordings", reason="enough batches to know how frequent the classes are")
    remedy: ClassVar[str] = (
        "Invert the weights of the classes: weight = counts.sum() / (classes * counts), so that rare classes count "
        "more, or leave the weights out. Check that the weights are in the order of the class indices."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        # A policy weighs its actions with what they have brought.
        if has_rewards(history):
            return ()
        found: list[Finding] = []
        for item in classifiers(history, self.class_sum):
            name = tags.WEIGHT_SLOPE.tag(item)
            if name not in history or len(history[name]) < self.count:
                continue
            slope = finite_median(history[name].values[: self.count])
            if slope > self.slope:
                text = (
                    f"the loss of '{item}' weighs its classes with their frequency (to the power of "
                    f"{number(slope, 2)}): frequent classes count more than rare ones, which are hardly learned."
                )
                found.append(self.finding(int(history[name].steps[self.count - 1]), text, subject=item))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class TargetAmongInputs(HealthRule):
    """The targets are among the inputs of a module.

    Either columns of the input are the targets, but for a unit: then held-out data do not show it, since theirs leak as
    well. Or the module passes on one column of its input, and held-out data gain far less.
    """

    given: float = threshold(0.9, unit="fraction of the targets' columns", reason="some may be given on purpose")
    correlation: float = threshold(
        0.99, unit="correlation of output and input column", reason="higher than features that merely help"
    )
    remedy: ClassVar[str] = (
        "Look for a feature (column) of the training inputs that holds the target or is computed from it, and drop it: "
        "it leaks the answer and is missing or different in new data. Compute features on the training split only, and "
        "let a window of a series end before what it foretells begins."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history):
            return ()
        return (*self._given(history), *self._passed_on(history))

    def _given(self, history: History) -> Iterator[Finding]:
        for item, name in tags.TARGETS_GIVEN.parts(history.names()).items():
            series = history[name]
            if series.values[-1] >= self.given:
                text = (
                    f"columns of the input of '{item}' are its targets, but for a unit: there is nothing to predict, "
                    "in training and wherever else the input is made in this way, and the answer is missing in use."
                )
                yield self.finding(int(series.steps[-1]), text, subject=item)

    def _passed_on(self, history: History) -> tuple[Finding, ...]:
        poor = ends_poorly(history) or falls_short(history)
        others = {finding.subject for finding in EvaluationOutput()(history)}
        found: list[Finding] = []
        for item, name in tags.COPIED.parts(history.names()).items():
            copied = late(history[name])
            if (poor or item in others) and copied > self.correlation:
                text = (
                    f"the outputs of '{item}' equal one column of its inputs (correlation {number(copied, 4)}) in "
                    "training, and the result on held-out data is far worse: the target leaks into the inputs."
                )
                found.append(self.finding(history.step, text, subject=item))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class UnboundedLoss(HealthRule):
    """A loss falls without a bound, faster and faster or as its outputs grow: its sign, or that of a term, is wrong."""

    depth: float = threshold(
        20.0, unit="times the first absolute loss", reason="likelihoods of healthy runs settle within a few units"
    )
    faster: float = threshold(
        0.5, unit="fraction of the fall in the last third", reason="a bounded loss falls mostly at first"
    )
    growth: float = threshold(
        30.0, unit="times the first deviation of the outputs", reason="outputs that are learned grow up to tenfold"
    )
    rise: float = threshold(1.1, unit="times that of the middle of the run", reason="outputs that settle do not grow")
    still: float = threshold(0.03, unit="fraction of the fall in the last third", reason="it has not settled yet")
    least: float = threshold(3.0, unit="times the first absolute loss", reason="enough if the outputs grow as well")
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
        if not alone or len(values) < self.count or not is_signed(values):
            return ()
        first = float(np.median(values[:8]))
        middle = float(np.median(values[2 * len(values) // 3 :][:8]))
        last = float(np.median(values[-8:]))
        fall = first - last
        growth = self._growth(history)
        # A metric of unknown direction that moves is no sign of an improvement here: it falls with the loss.
        # The outputs of a policy grow as it becomes certain of its actions.
        meant = has_improved(history, move=np.inf) or has_rewards(history)
        falls = fall > self.least * max(abs(first), 0.1) and middle - last > self.still * fall
        if last < 0 and growth > self.growth and falls and not meant:
            text = (
                f"{tags.TOTAL} fell from {number(first)} to {number(last)}, while the outputs grew {growth:.0f} times: "
                "the loss has no lower bound, so a sign is wrong."
            )
            return (self.finding(history.step, text, subject=tags.TOTAL),)
        shallow = fall < self.depth * max(abs(first), 0.1) or middle - last < self.faster * fall
        if last >= 0 or shallow or has_improved(history):
            return ()
        text = (
            f"{tags.TOTAL} fell from {number(first)} to {number(last)}, most of it at the end: it has no lower bound, "
            "so a sign is wrong."
        )
        return (self.finding(history.step, text, subject=tags.TOTAL),)

    def _growth(self, history: History) -> float:
        """Return how many times the outputs of a module have grown, for the one that grew most and grows still."""
        found = [0.0]
        for item, name in tags.OUTPUT_STD.parts(history.names()).items():
            series = history[name]
            first = head_median(series, 8)
            middle = finite_median(series.values[series.steps <= 2 * history.step / 3][-2:])
            last = late(series)
            if "." not in item and first > 0 and last > self.rise * middle:
                found.append(last / first)
        return max(found)
