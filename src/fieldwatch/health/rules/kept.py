"""Rules for what a loop keeps, freezes, clips and leaves switched on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from fieldwatch.base import number
from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.chance import TrainingGap
from fieldwatch.health.rules.poor_results import ends_poorly
from fieldwatch.health.rules.progress import ProgressLost
from fieldwatch.health.rules.results import HeldOutGap
from fieldwatch.health.thresholds import threshold
from fieldwatch.record import History, tags


@dataclass(frozen=True, kw_only=True)
class BestNotCopied(HealthRule):
    """A variable that should hold the best weights holds the current ones: they were kept without a copy.

    It is reported if held-out results became worse after their best, so that it matters.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = tags.KEPT_WEIGHTS
    remedy: ClassVar[str] = (
        "Keep a copy: copy.deepcopy(model.state_dict()). state_dict() returns the tensors of the model themselves, "
        "which go on changing, so that restoring them restores nothing."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        events = history.events(self.kind)
        copied = {event["item"] for event in events if not event["shared"]}
        shared = {str(event["item"]): event for event in events if event["shared"] and event["item"] not in copied}
        if not shared or not (HeldOutGap()(history) or ProgressLost()(history) or TrainingGap()(history)):
            return ()
        return tuple(
            self.finding(
                int(event["step"]),
                f"'{event['name']}' holds the weights of '{item}' themselves, not a copy of earlier ones: they have "
                "been trained on, and the best weights are lost.",
                subject=str(event["name"]),
            )
            for item, event in shared.items()
        )


@dataclass(frozen=True, kw_only=True)
class FrozenNormsMove(HealthRule):
    """The batch norms of a frozen part stay in train mode, and their statistics have left those of its weights.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = tags.FROZEN_NORMS
    drift: float = threshold(
        0.5, unit="standard deviations of a channel", reason="statistics of the same data wander by far less"
    )
    remedy: ClassVar[str] = (
        "Call eval() on the frozen part after every model.train(), or override train() of the model to do so: "
        "requires_grad=False freezes the weights, but not the running statistics of batch norms in train mode."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        return tuple(
            self.finding(int(event["step"]), self._text(event), subject=str(event["item"]))
            for event in history.events(self.kind)[-1:]
            if event["drift"] > self.drift
        )

    def _text(self, event: Mapping[str, Any]) -> str:
        names = ", ".join(f"'{name}'" for name in event["names"][:3])
        return (
            f"the running statistics of {event['count']} frozen batch norms ({names}) have moved by "
            f"{number(event['drift'], 2)} standard deviations: the norms are in train mode, so that the frozen part "
            "no longer computes what it was trained for."
        )


@dataclass(frozen=True, kw_only=True)
class MixedGradients(HealthRule):
    """The loss of one optimizer leaves gradients in the parameters of another one, whose update uses them as well.

    A warning is given if the result is poor at the end: two losses may be meant to meet in a part.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = tags.FOREIGN_GRADIENT
    remedy: ClassVar[str] = (
        "Call zero_grad() of an optimizer before the backward pass of its own loss, not after its step: the backward "
        "pass of the generator (actor) also adds gradients to the critic (discriminator), which have to be cleared; or "
        "freeze the critic meanwhile by requires_grad_(False)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding."""
        events = history.events(self.kind)
        if not events or not ends_poorly(history):
            return ()
        event = events[0]
        text = (
            f"gradients of another loss are left in the parameters of an optimizer ({event['optimizer']}, parameter of "
            f"shape {event['parameters']}) when its own are added: they are cleared after its step, but the other "
            "network's backward pass accumulates into them before the next one (zero_grad comes too early)."
        )
        return (self.finding(history.step, text, subject=str(event["optimizer"])),)


@dataclass(frozen=True, kw_only=True)
class ClipsNothing(HealthRule):
    """The loop clips the gradients of what a generator yields, which is used up after the first step.

    Attributes:
        kind: kind of the events with the lines of the loop.
    """

    kind: str = tags.LOOP_SOURCE
    remedy: ClassVar[str] = (
        "Make a list of the parameters once, parameters = list(model.parameters()), or pass model.parameters() itself "
        "at each call: a generator yields its parameters only once, so that later clipping gets an empty list."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per run."""
        events = history.events(self.kind)
        order = cast("Sequence[Mapping[str, Any]]", events[-1].get("order", ())) if events else ()
        lines = [int(each["line"]) for each in order if each["what"] == "clip of a generator"]
        if not lines or history.step < 1:
            return ()
        file = events[-1]["file"]
        text = (
            f"{file}:{lines[0]} clips the gradients of a generator of parameters, which is empty after its first use: "
            "no gradient norm is limited."
        )
        return (self.finding(int(events[-1]["step"]), text, subject=f"{file}:{lines[0]}"),)


@dataclass(frozen=True, kw_only=True)
class AnomalyDetection(HealthRule):
    """Autograd's search for anomalies is on in a whole training, which it slows down several times.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "anomaly_detection"
    least: int = threshold(100, unit="steps", reason="a search for the source of a NaN takes a few")
    remedy: ClassVar[str] = (
        "Turn it off: torch.autograd.set_detect_anomaly(False), also in frameworks (detect_anomaly=False). It traces "
        "every operation, for debugging only; the run names the source of values that are not finite without it."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding once the training has gone on with it."""
        events = history.events(self.kind)
        if not events or history.step - int(events[0]["step"]) < self.least:
            return ()
        text = "torch.autograd.set_detect_anomaly is on: each operation is traced for debugging, and steps are slow."
        return (self.finding(int(events[0]["step"]) + self.least, text, subject="torch.autograd"),)
