"""Rules for models of sequences: padding, positions, tokens of the future, and targets that are not shifted."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fieldwatch.base import percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import CLASS_SUM_BOUND, CLASS_SUM_REASON, classifiers, head_median, late
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.poor_results import ends_poorly
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished
from fieldwatch.record import History, tags


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
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    remedy: ClassVar[str] = (
        "Leave padding out of the loss: cross_entropy(..., ignore_index=...), or a mask over the positions, and divide "
        "by the number of positions that count; mask it in attention and in metrics too."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item in classifiers(history, self.class_sum):
            name = tags.BLANK_SHARE.tag(item)
            blank = head_median(history[name]) if name in history else 0.0
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
            if following not in history or head_median(history[following]) < self.share:
                continue
            if float(history[name].values[-1]) > self.spread:
                text = (
                    f"'{item}' predicts the next token, but its outputs change with later tokens: it sees the answer "
                    "(a leak from the future), so its training loss means nothing."
                )
                found.append(self.finding(int(history[name].steps[-1]), text, subject=item))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class TargetsUnshifted(HealthRule):
    """A model of sequences is asked for the token that it is given: its targets are not shifted by one.

    Silent if an evaluation showed that the outputs depend on later tokens, as those of an autoencoder do.
    """

    share: float = threshold(
        0.99, unit="fraction of the targets", reason="masked and noisy inputs differ from their targets more often"
    )
    count: int = threshold(16, unit="recordings", reason="a single batch may repeat one token")
    spread: float = threshold(1e-3, unit="fraction of the largest output", reason="far above rounding")
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    remedy: ClassVar[str] = (
        "Shift the targets by one: the target of token i is token i + 1 (inputs = tokens[:, :-1], targets = "
        "tokens[:, 1:]), once, in the data or in the loss."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        found: list[Finding] = []
        for item in classifiers(history, self.class_sum):
            same = tags.SAME_SHARE.tag(item)
            future = tags.FUTURE_SPREAD.tag(item)
            if same not in history or len(history[same]) < self.count or head_median(history[same]) < self.share:
                continue
            if future in history and float(history[future].values[-1]) > self.spread:
                continue
            text = (
                f"the targets of '{item}' are the tokens of its input, at the same places: it learns to copy, and its "
                "loss falls without any prediction."
            )
            found.append(self.finding(int(history[same].steps[self.count - 1]), text, subject=item))
        return tuple(found)
