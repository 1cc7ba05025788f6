"""Rules for evaluations that run in the wrong mode, or that change the random numbers of the training."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import threshold
from fieldwatch.record import History

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

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "random_numbers"
    count: int = threshold(2, unit="evaluations", reason="a single draw may belong to a part of the loop that ran once")
    share: float = threshold(_RARE, unit="fraction of the updates", reason=_RARE_REASON)
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
            yield (self.finding(int(event["step"]), text, subject="torch"),)
