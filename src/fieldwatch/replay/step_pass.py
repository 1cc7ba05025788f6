"""`StepPass`: one of the times that a replay makes the same step."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal

from fieldwatch.record import tags
from fieldwatch.replay.groups import GroupValues
from fieldwatch.replay.operation import number_of, plain_frames
from fieldwatch.replay.places import frames_of, is_hidden
from fieldwatch.replay.term_comparison import TermComparison
from fieldwatch.replay.trace import OperationTrace
from fieldwatch.replay.variants import Variant

PassKind = Literal["trace", "plain", "terms", "variant"]
"""What is done besides the step: every operation is looked at, nothing, terms are compared, an intervention."""


@dataclass(kw_only=True)
class StepPass:
    """One pass over the step, and over the steps after it.

    Attributes:
        kind: what the pass is for.
        variant: intervention; one without changes in the other passes.
        values: recorded values by step.
        samples: names of the samples of the step.
        sample_loss: their losses; empty if there are none.
        before: parameters before the step.
        gradients: gradients before clipping; None if there are none.
        after: parameters after the update.
        trace: the trace of the operations.
        terms: comparison of the terms.
        error: exception that ended the pass, as plain values.
        complete: whether the pass has come to its end.
    """

    kind: PassKind
    variant: Variant = field(default_factory=lambda: Variant("as trained"))
    values: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    samples: tuple[str, ...] = ()
    sample_loss: list[float] = field(default_factory=list[float])
    before: GroupValues | None = None
    gradients: GroupValues | None = None
    after: GroupValues | None = None
    trace: OperationTrace | None = None
    terms: TermComparison | None = None
    error: dict[str, Any] | None = None
    complete: bool = False

    def plain(self, step: int) -> dict[str, Any]:
        """Return losses, norms and the size of the update as plain values."""
        values = self.values.get(step, {})
        change = self.before.change_to(self.after) if self.before is not None and self.after is not None else {}
        broken = set[str]()
        for found in (self.gradients, self.after):
            broken |= set(found.not_finite()) if found is not None else set()
        return {
            "name": self.variant.name,
            "kind": self.kind,
            "losses": [
                {"step": index, "loss": number_of(row[tags.TOTAL])}
                for index, row in sorted(self.values.items())
                if tags.TOTAL in row
            ],
            "terms": {term: number_of(values[tag]) for term, tag in tags.COMPONENT.parts(values).items()},
            "gradient_norm": _known(values, tags.TOTAL_NORM),
            "gradient_norms": {group: number_of(values[tag]) for group, tag in tags.GROUP_NORM.parts(values).items()},
            "update": change,
            "refused": bool(values.get(f"{tags.GUARD}/refused", 0.0)),
            "not_finite": sorted(broken),
            "error": self.error,
        }

    def plain_samples(self) -> list[dict[str, Any]]:
        """Return the samples of the step, those with the largest losses first."""
        if len(self.sample_loss) != len(self.samples):
            return [{"sample": name} for name in self.samples]
        whole = sum(self.sample_loss)
        rows = sorted(zip(self.samples, self.sample_loss, strict=True), key=lambda row: _badness(row[1]), reverse=True)
        return [
            {"sample": name, "loss": number_of(loss), "share": number_of(loss / whole) if whole else None}
            for name, loss in rows
        ]


def plain_error(error: BaseException, step: int, message: str) -> dict[str, Any]:
    """Return an exception as plain values, with the lines of the user's code that it passed.

    Args:
        error: the exception.
        step: step in which it was raised.
        message: its message, as it is to be shown.
    """
    stack: list[tuple[CodeType, int]] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        # Begins at the caller of the loop, which is hidden, too.
        if not is_hidden(frame.f_code):
            stack.append((frame.f_code, line))
    return {
        "type": type(error).__name__,
        "message": message,
        "step": step,
        # The innermost first, as everywhere.
        "stack": plain_frames(frames_of(tuple(reversed(stack)))),
    }


def _known(values: Mapping[str, float], tag: str) -> float | str | None:
    return number_of(values[tag]) if tag in values else None


def _badness(loss: float) -> float:
    # NaN compares with nothing: the sample that caused it comes first.
    return loss if loss - loss == 0 else float("inf")
