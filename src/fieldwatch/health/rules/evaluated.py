"""Rules for what evaluations are made of: samples of the training, random outputs, rows that were never trained."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import (
    ACCURACIES,
    CLASS_SUM_BOUND,
    CLASS_SUM_REASON,
    FRACTIONS,
    WORDS,
    classifiers,
    has_improved,
    held_out_accuracy,
    held_out_lag,
    held_out_metrics,
    is_rare,
    is_training,
    loss_ends,
    mean_until,
    name_words,
    single_loss,
    whole,
)
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.chance import falls_short
from fieldwatch.health.rules.poor_results import ends_poorly, is_good
from fieldwatch.health.rules.results import HeldOutGap
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median, is_signed
from fieldwatch.record import History, tags

_UNSEEN = frozenset(("val", "valid", "validation", "test", "dev", "heldout", "holdout", "unseen"))
"""Words of metrics that are certainly meant to be of other data; an ``eval`` may be one of the training's own data."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedOnTraining(HealthRule):
    """Samples of a held-out evaluation were among those of the training.

    Compared are rows of numbers that were given to the same module, and stretches of time in windows of a series.
    Metrics that are named after other data (``val``, ``test``) must not have such samples. Any other evaluation may
    have them, but not later on only: then the data were split anew, such as by another job of the same run.
    """

    share: float = threshold(0.4, unit="fraction of the samples", reason="copies among natural data are far fewer")
    first: float = threshold(0.05, unit="fraction of the samples", reason="at the first evaluations, none were known")
    later: float = threshold(0.3, unit="fraction of the samples", reason="of the known ones: a new split of the data")
    gap: float = threshold(0.2, unit="difference of accuracies", reason="what was learned by heart has none")
    lag: float = threshold(0.3, unit="fraction of the fall of the training loss", reason="the same for a loss")
    count: int = threshold(2, unit="evaluations", reason="a first look may be at the data of the training")
    remedy: ClassVar[str] = (
        "Evaluate samples that the training never gets: split the data once, by a fixed seed or a stored list of "
        "indices that every job and every resumed run uses, before anything is augmented, copied or shuffled, and "
        "give the evaluation the loader of the held-out split. Split windows of a series by time, with a gap as long "
        "as a window, and not at random. Results so far show memory, not generalization."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        # An evaluation of the training data beside the other one may come first.
        if not finished(history) or any(is_training(name) and is_rare(name, history) for name in history.names()):
            return ()
        named = any(_UNSEEN & set(WORDS.findall(name.lower())) for name in held_out_metrics(history))
        found: list[Finding] = []
        for item, name in tags.EVALUATION_SEEN.parts(history.names()).items():
            series = history[name]
            if len(series) < self.count:
                continue
            usual = finite_median(series.values)
            begin = finite_median(series.values[: max(len(series) // 4, 1)])
            end = finite_median(series.values[-max(len(series) // 4, 1) :])
            if named and usual >= self.share and not self._differs(history, item):
                text = (
                    f"{percent(usual, 0)} of the samples that '{item}' gets in evaluations are the same data as in its "
                    "first training batches, or windows that overlap with them: what is called held-out was seen in "
                    "training (a leak)."
                )
                found.append(self.finding(int(series.steps[self.count - 1]), text, subject=item))
            elif begin <= self.first and end >= self.later:
                at = int(np.argmax(series.values >= self.later))
                text = (
                    f"since step {series.steps[at]:.0f}, {percent(end, 0)} of the samples that '{item}' gets in "
                    "evaluations were seen in its earlier training batches, and none before: the data were split "
                    "anew, so that held-out data leak into the training."
                )
                found.append(self.finding(int(series.steps[at]), text, subject=item))
        return tuple(found)

    def _differs(self, history: History, item: str) -> bool:
        """Return whether held-out results lack what the training has: the targets or other inputs are other ones.

        The nodes of a graph are the same in training and evaluation, and so are samples beside which others stand.
        """
        hits = tags.HITS.tag(item)
        accuracies = [value for _, value in held_out_accuracy(history)]
        gap = finite_median(history[hits].values[-2:]) - min(accuracies) if hits in history and accuracies else 0.0
        return gap > self.gap or held_out_lag(history) > self.lag or bool(HeldOutGap()(history))


@dataclass(frozen=True, kw_only=True)
class EvaluationRandom(HealthRule):
    """In eval mode, a module returns something else for the same samples: it draws random numbers.

    A warning if its forward calls dropout as a function without its mode, otherwise a note: a model may sample on
    purpose.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = tags.EVALUATION_OUTPUT
    remedy: ClassVar[str] = (
        "Call dropout by a module (nn.Dropout), or pass training=self.training to functional.dropout, whose default is "
        "training=True in eval mode as well; add noise in training only, and evaluate the mean of a distribution "
        "unless samples are meant."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        return tuple(self._judge(event) for event in history.events(self.kind) if event["random"])

    def _judge(self, event: Mapping[str, Any]) -> Finding:
        text = f"'{event['item']}' in eval mode returned different outputs for the same samples: it draws at random."
        if event["inline"]:
            text += f" {event['inline']}.forward calls functional.dropout without training=self.training."
        severity: Severity = "warning" if event["inline"] else "note"
        return self.finding(int(event["step"]), text, subject=str(event["item"]), severity=severity)


@dataclass(frozen=True, kw_only=True)
class SamplesMixed(HealthRule):
    """In eval mode, the output of a sample depends on the other samples of its batch.

    A warning if the result is poor at the end, otherwise a note.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = tags.EVALUATION_OUTPUT
    remedy: ClassVar[str] = (
        "Check which dimension each operation works over: attention, recurrent layers and position codes expect the "
        "batch second unless batch_first=True, softmax and normalizations need dim=-1 or 1 and not 0, and a view or "
        "reshape must not exchange the batch with another dimension (use transpose or permute)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        return tuple(self._judge(event, history) for event in history.events(self.kind) if event["others"])

    def _judge(self, event: Mapping[str, Any], history: History) -> Finding:
        severity: Severity = "warning" if ends_poorly(history) or falls_short(history) else "note"
        text = (
            f"in evaluations, the outputs of '{event['item']}' change if the other samples of the batch are left out: "
            "samples are mixed along the batch dimension."
        )
        step = history.step if severity == "warning" else int(event["step"])
        return self.finding(step, text, subject=str(event["item"]), severity=severity)


@dataclass(frozen=True, kw_only=True)
class PaddingLookedUp(HealthRule):
    """The row of an embedding that stands for padding, which is 0 and never trained, is looked up as a value.

    A warning unless the result is good at the end; a row of zeros may also stand for what is unknown.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = tags.PADDING_ROWS
    share: float = threshold(0.02, unit="fraction of the look-ups", reason="fewer hardly matter for the result")
    good: float = threshold(0.9, unit="fraction", reason="so many right answers need no other row")
    remedy: ClassVar[str] = (
        "Leave out padding_idx, or shift all indices by one so that index 0 (or the one given) is used for padding "
        "only: nn.Embedding(..., padding_idx=i) keeps row i at zero and gives it no gradient."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per embedding."""
        found: list[Finding] = []
        for event in history.events(self.kind):
            if event["share"] < self.share:
                continue
            severity: Severity = "warning" if finished(history) and not is_good(history, self.good) else "note"
            text = (
                f"{percent(event['share'], 0)} of the look-ups in '{event['name']}' are of row {event['index']}, its "
                f"padding_idx, as a value and not as padding: this row stays 0 and has no gradient."
            )
            step = history.step if severity == "warning" else int(event["step"])
            found.append(self.finding(step, text, subject=str(event["name"]), severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class RowsNeverTrained(HealthRule):
    """Evaluations look up rows of an embedding that have never had a gradient.

    A note if a held-out result has improved: what the rows stand for may not matter for it.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = tags.UNTRAINED_ROWS
    share: float = threshold(0.2, unit="fraction of the look-ups", reason="rare entries of natural data are fewer")
    remedy: ClassVar[str] = (
        "Let the training use these rows as well: for guidance, drop the class or condition of a part of the samples "
        "(10 to 20 %) and look up the null (unconditional) row in its place; otherwise check that training and "
        "evaluation number their entries (labels, tokens, persons) in the same way."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per embedding."""
        if not finished(history):
            return ()
        latest = {str(event["name"]): event for event in history.events(self.kind)}
        severity: Severity = "note" if has_improved(history) else "warning"
        return tuple(
            self.finding(int(event["step"]), self._text(event), subject=name, severity=severity)
            for name, event in latest.items()
            if event["share"] >= self.share
        )

    def _text(self, event: Mapping[str, Any]) -> str:
        rows = ", ".join(str(row) for row in event["rows"])
        return (
            f"{percent(event['share'], 0)} of the look-ups of '{event['name']}' in evaluations are of rows that have "
            f"never had a gradient in training ({rows}): they still hold random numbers."
        )


@dataclass(frozen=True, kw_only=True)
class PerfectFromStart(HealthRule):
    """A held-out fraction is exactly 1 at all evaluations, although the training loss says that much is unlearned.

    What a pretrained model has learned before the first step counts: its first loss is far below that of a guess. So
    does what was learned before the first evaluation: the loss of a contrast has a floor far above 0.
    """

    count: int = threshold(3, unit="evaluations", reason="a single one may be of few samples")
    left: float = threshold(
        0.4, unit="fraction of the first loss, or of that of a guess", reason="at the end: most of it is not learned"
    )
    learned: float = threshold(
        0.3, unit="fraction of the first loss", reason="a lasting fall by the first evaluation may have made it perfect"
    )
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    remedy: ClassVar[str] = (
        "Look at what the evaluation compares: a search for the nearest sample has to leave out the query itself "
        "(exclude the diagonal, or take a gallery of other samples), and answers must not be compared with "
        "themselves or be part of the input."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, the metrics that are perfect."""
        if not finished(history) or tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
            return ()
        began, ended = loss_ends(history[tags.TOTAL])
        began = max(began, self._guess(history))
        if not ended > self.left * began:
            return ()
        return tuple(self._perfect(history, began, ended))

    def _guess(self, history: History) -> float:
        """Return the loss of a guess; 0 if unknown. A model that is trained already begins far below it."""
        entropies = [
            float(history[tags.TARGET_ENTROPY.tag(item)].values[-1]) for item in classifiers(history, self.class_sum)
        ]
        return entropies[0] if len(entropies) == 1 and single_loss(history) is not None else 0.0

    def _perfect(self, history: History, began: float, ended: float) -> Iterator[Finding]:
        for name, better in held_out_metrics(history).items():
            values = history[name].values
            known = better == "higher" and name_words(name) & (FRACTIONS | ACCURACIES)
            if not known or len(values) < self.count:
                continue
            at_first = mean_until(history[tags.TOTAL], float(history[name].steps[0]), width=8)
            unlearned = began - max(at_first, ended) < self.learned * began
            if unlearned and bool((values == whole(values)).all()):
                text = (
                    f"{name} is exactly {number(values[0])} at all {len(values)} evaluations, from the first one on, "
                    f"while {percent(ended / began, 0)} of the training loss is left: too good to be true."
                )
                yield self.finding(int(history[name].steps[self.count - 1]), text, subject=name)
