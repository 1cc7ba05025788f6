"""Rules for evaluations: their mode, their random numbers, and what modules get and return in them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import has_rewards, head_median, held_out_lag, late, yes_no
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.poor_results import ends_poorly, is_good
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median
from fieldwatch.record import History, tags

_RARE = 0.5
_RARE_REASON = "what happens at most steps belongs to the training"


@dataclass(frozen=True, kw_only=True)
class EvaluatedInTrainMode(HealthRule):
    """Evaluations run a module in train mode, with active dropout or batch statistics.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "evaluation_mode"
    count: int = threshold(2, unit="evaluations", reason="a first look at the untrained model may be in any mode")
    share: float = threshold(_RARE, unit="fraction of the updates", reason=_RARE_REASON)
    remedy: ClassVar[str] = (
        "Call model.eval() before the evaluation and model.train() after it; a run.evaluation(...) block restores the "
        "mode by itself. Dropout and batch statistics make the recorded results worse and random."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: dict[str, Finding] = {}
        for event in history.events(self.kind):
            item = str(event["item"])
            evaluations = int(event["evaluations"])
            if item in found or evaluations < self.count or evaluations > self.share * event["updates"]:
                continue
            names = ", ".join(f"'{name}'" for name in event["modules"][:3])
            text = f"'{item}' was in train mode in {evaluations} evaluations: {names} depend on the mode."
            found[item] = self.finding(int(event["step"]), text, subject=item)
        return tuple(found.values())


@dataclass(frozen=True, kw_only=True)
class EvaluationDraws(HealthRule):
    """Evaluations draw or reset the random numbers of the training.

    A warning if they reset them, so that the training repeats itself; otherwise a note: the training is only not the
    same with other evaluations.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "random_numbers"
    count: int = threshold(2, unit="evaluations", reason="a single draw may belong to a part of the loop that ran once")
    share: float = threshold(_RARE, unit="fraction of the updates", reason=_RARE_REASON)
    severity: ClassVar[Severity] = "note"
    remedy: ClassVar[str] = (
        "Evaluate in a run.evaluation(...) block, which restores the generators, or give the evaluation a "
        "torch.Generator of its own; never call torch.manual_seed(...) inside the loop."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first event that counts."""
        return next(self._judged(history), ())

    def _judged(self, history: History) -> Iterator[tuple[Finding, ...]]:
        for event in history.events(self.kind):
            evaluations = int(event["evaluations"])
            if evaluations < self.count or evaluations > self.share * event["updates"]:
                continue
            text = (
                f"{evaluations} evaluations have reset torch's random generator to a state it had before: the training "
                "repeats the same random numbers after each of them."
                if event["repeated"]
                else f"{evaluations} evaluations have drawn numbers from torch's global random generator, so the "
                "training differs with the number of evaluations."
            )
            severity: Severity = "warning" if event["repeated"] else "note"
            yield (self.finding(int(event["step"]), text, subject="torch", severity=severity),)


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
    drift: float = threshold(
        2.0, unit="times the standard deviation", reason="batches of the same data differ by far less"
    )
    alike: float = threshold(
        1.3, unit="times the first standard deviation", reason="evaluations that have kept the scale of the beginning"
    )
    arguments: float = threshold(
        3.5,
        unit="standard deviations, or tenths of the tokens",
        reason="times that begin at the end of their range are 1.7 away; other samples of the same tokens differ by 1",
    )
    unit: float = threshold(
        30.0,
        unit="standard deviations",
        reason="another unit, such as numbers of steps for fractions, whatever the result; at most 5 in healthy runs",
        source="measured by benchmarks/verdicts.py",
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
        "channels) in the same order, the same unit of times and conditions, the same tokenizer and vocabulary, and, "
        "for a model that removes noise, that its schedule of steps ends in the noise that sampling begins with."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item in tags.EVALUATION_INPUT_MEAN.parts(history.names()):
            finding = self._by_place(history, item) or self._judge(history, item) or self._drifted(history, item)
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

    def _drifted(self, history: History, item: str) -> Finding | None:
        """Return a finding if the training's inputs have left the scale that they had at first and evaluations have."""
        names = [family.tag(item) for family in (tags.INPUT_STD, tags.EVALUATION_INPUT_STD)]
        # A policy sees other states as it learns.
        if not finished(history) or any(name not in history for name in names) or has_rewards(history):
            return None
        trained, evaluated = (history[name] for name in names)
        if len(evaluated) < self.count:
            return None
        first = head_median(trained, 8)
        last = finite_median(trained.values[-2:])
        seen = late(evaluated)
        if not (first > 0 and last > 0 and seen > 0):
            return None
        moved = max(first / last, last / first)
        apart = max(seen / last, last / seen)
        alike = max(seen / first, first / seen)
        if moved < self.drift or apart < self.drift or alike > self.alike:
            return None
        severity: Severity = "note" if is_good(history, self.right) else "warning"
        text = (
            f"the training inputs of '{item}' have changed along the way: their standard deviation went from "
            f"{number(first, 3)} to {number(last, 3)}, but evaluations get {number(seen, 3)}, as in the beginning: "
            "training and evaluation differ."
        )
        remedy = (
            "Look for what changes the training data in place (augmentation, masking or normalization that writes into "
            "the stored samples: work on a clone), for an augmentation or a noise that grows with the steps, and for "
            "buffers that are refilled with other data."
        )
        return replace(self.finding(history.step, text, subject=item, severity=severity), remedy=remedy)

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
        # A policy that acts without chance sees other states, and the first states of a game are unlike later ones.
        if name not in history or len(history[name]) < self.count or has_rewards(history):
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
        if name not in history or len(history[name]) < self.count or has_rewards(history):
            return None
        shift = float(np.nanmedian(history[name].values))
        if not finished(history) or shift <= self.arguments or (shift <= self.unit and not ends_poorly(history)):
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
    second half of the run. A note if held-out results are nearly all right: another mix of samples has
    other outputs, too.
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
    moved: float = threshold(
        3.0,
        unit="times the shift of the inputs",
        reason="a model moves its outputs as far as its inputs: later data of a series drift",
        source="measured by benchmarks/verdicts.py",
    )
    inputs: float = threshold(
        1.5, unit="times the deviation of the inputs", reason="inputs of another scale have other outputs"
    )
    right: float = threshold(
        0.95, unit="fraction", reason="a model that is right so often is the same function in evaluations"
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
        if self._has_one_answer(history, item):
            return None
        shift, moved = (
            self._late(history, family.tag(item))
            for family in (tags.EVALUATION_OUTPUT_SHIFT, tags.EVALUATION_INPUT_SHIFT)
        )
        if not 1 / self.ratio <= evaluated / trained <= self.ratio:
            text = (
                f"the outputs of '{item}' have a standard deviation of {number(evaluated, 3)} in evaluations, but of "
                f"{number(trained, 3)} in training, for inputs of the same scale: training and evaluation differ."
            )
        elif shift > self.shift and not shift <= self.moved * moved:
            text = (
                f"the outputs of '{item}' have other means in evaluations than in training, by {number(shift, 2)} "
                "standard deviations on average, for inputs of the same scale: training and evaluation differ."
            )
        else:
            return None
        severity: Severity = "note" if is_good(history, self.right) else "warning"
        return self.finding(history.step, text, subject=item, severity=severity)

    def _has_one_answer(self, history: History, item: str) -> bool:
        """Return whether all measured targets of the training are yes, or all are no.

        A loop that calls the module for each answer in turn is measured at its first call only. The outputs for one
        answer differ by less than those for both, which an evaluation has.
        """
        if item not in yes_no(history) or tags.BINARY_SHARE.tag(item) not in history:
            return False
        shares = history[tags.BINARY_SHARE.tag(item)].values
        return bool((shares == 0).all()) or bool((shares == 1).all())

    def _late(self, history: History, name: str) -> float:
        """Return the median of the second half of the run; NaN if there are too few recordings."""
        if name not in history:
            return float("nan")
        series = history[name]
        values = series.values[series.steps >= history.step / 2]
        return finite_median(values) if len(values) >= self.count else float("nan")
