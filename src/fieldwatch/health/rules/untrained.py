"""Rules for parameters that cannot learn: without any gradient, frozen at the output, decayed away, badly averaged."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.poor_results import ends_poorly, is_good
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished
from fieldwatch.record import History, tags


def _listed(event: Mapping[str, Any]) -> str:
    names = [f"'{name}'" for name in event["names"][:3]]
    rest = int(event["count"]) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True, kw_only=True)
class NeverTrained(HealthRule):
    """Parameters in an optimizer have had no gradient since the first update.

    A note if they are a small part of the model, or no module that owns them is called: many models have a part that a
    task does not use. A note as well if held-out results are nearly perfect without them. None while a declared loss
    term has not begun.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "without_gradient"
    patience: int = threshold(32, unit="updates", reason="players of a game, or tasks, may be trained in turns")
    share: float = threshold(
        0.1, unit="fraction of the parameters", reason="unused heads and poolers of pretrained models are smaller"
    )
    perfect: float = threshold(0.98, unit="fraction of right answers", reason="nothing is left for them to add")
    remedy: ClassVar[str] = (
        "Check that the loss depends on them: look for detach(), .data, torch.no_grad(), an output that is not used, "
        "a module that is built but never called, and activation checkpointing whose inputs require no gradient (pass "
        "use_reentrant=False to torch.utils.checkpoint). Freeze what is not meant to be trained."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first event that counts."""
        for event in history.events(self.kind):
            # A term that begins later may be the one that trains them; a term without a gradient has a rule of its own.
            waits = any(first > event["step"] for first, _ in history.windows.values())
            if event["updates"] >= self.patience and not waits:
                matters = event["share"] >= self.share and event["called"]
                level: Severity = "warning" if matters and not self._is_not_needed(history) else "note"
                text = (
                    f"{event['count']} parameters in an optimizer ({percent(event['share'], 0)} of all entries) "
                    "have had no "
                    f"gradient within {event['updates']} updates: {_listed(event)}."
                )
                return (self.finding(int(event["step"]), text, subject=str(event["names"][0]), severity=level),)
        return ()

    def _is_not_needed(self, history: History) -> bool:
        """Return whether a held-out result is so good already that it cannot become much better."""
        return is_good(history, self.perfect)


@dataclass(frozen=True, kw_only=True)
class FrozenOutput(HealthRule):
    """The last layers of a trained module are frozen, although an optimizer holds them.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "frozen_output"
    remedy: ClassVar[str] = (
        "Call requires_grad_(True) on them: in fine-tuning, the last layers are those to train. If they are meant to "
        "stay as they are, pass only the trained parameters to the optimizer."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding if there are such layers."""
        for event in history.events(self.kind):
            text = f"{_listed(event)} have requires_grad=False since the start, behind layers that are trained."
            return (self.finding(int(event["step"]), text, subject=str(event["names"][0])),)
        return ()


@dataclass(frozen=True, kw_only=True)
class StaleAverage(HealthRule):
    """The evaluated average of the weights has hardly followed the trained module."""

    way: float = threshold(
        0.5, unit="fraction of the way of the trained module", reason="an average that follows ends near the weights"
    )
    remedy: ClassVar[str] = (
        "Update the average after every optimizer step, with a decay that fits the length of the run (averaging over "
        "at most a tenth of its steps: decay 0.99 for 1,000 steps), or warm the decay up; or evaluate the trained "
        "module itself."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per average."""
        if not finished(history):
            return ()
        return tuple(
            self.finding(
                history.step,
                f"'{item}' is evaluated, but has moved only {percent(history[name].values[-1], 0)} as far from its "
                "start as "
                "the module that is trained: the average of the weights lags or is not updated.",
                subject=item,
            )
            for item, name in tags.AVERAGE.parts(history.names()).items()
            # A frozen copy that is not evaluated is a reference or a target.
            if history[name].values[-1] < self.way and tags.EVALUATION_INPUT_MEAN.tag(item) in history
        )


@dataclass(frozen=True, kw_only=True)
class CopyNeverUpdated(HealthRule):
    """A tracked copy of the trained module has never changed, and the result is poor at the end.

    A target network has to follow the trained one; a reference policy or a teacher does not.
    """

    way: float = threshold(1e-6, unit="fraction of the way of the trained module", reason="rounding of float32")
    remedy: ClassVar[str] = (
        "Copy the weights to the target network every few hundred updates (load_state_dict), or let it follow slowly: "
        "target.lerp_(online, 0.005) after each update."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per copy."""
        if not finished(history) or not ends_poorly(history):
            return ()
        return tuple(
            self.finding(
                history.step,
                f"'{item}' is a copy of the trained module and has not changed since the start: a target network that "
                "is never updated gives the targets of an untrained model.",
                subject=item,
            )
            for item, name in tags.AVERAGE.parts(history.names()).items()
            if float(np.nanmax(history[name].values)) < self.way and tags.EVALUATION_INPUT_MEAN.tag(item) not in history
        )


@dataclass(frozen=True, kw_only=True)
class DecayTooHigh(HealthRule):
    """Weight decay shrinks the parameters faster than they can learn.

    A warning if the result is poor at the end, otherwise a note.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = "weight_decay"
    step: float = threshold(
        2e-3,
        unit="fraction of a parameter per update (learning rate times weight decay)",
        reason="halves the parameters every 350 updates; AdamW with 1e-3 and 0.1 takes 1e-4",
    )
    coupled: float = threshold(
        0.03,
        unit="weight decay of an optimizer that adds it to the gradient",
        reason="usual values are 1e-5 to 5e-3; the gradient of the loss is far below it once the loss has fallen",
    )
    remedy: ClassVar[str] = (
        "Lower weight_decay: 0.01 to 0.1 is usual for AdamW, 1e-5 to 5e-4 for SGD and Adam, and none for biases and "
        "norms."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per parameter group."""
        return tuple(self._all(history))

    def _all(self, history: History) -> Iterator[Finding]:
        for event in history.events(self.kind):
            group = str(event["group"])
            decay = float(event["weight_decay"])
            name = tags.LEARNING_RATE.tag(group)
            rate = float(np.nanmedian(history[name].values)) if name in history else 0.0
            if rate * decay < self.step and (event["decoupled"] or decay < self.coupled):
                continue
            severity: Severity = "warning" if ends_poorly(history) else "note"
            text = (
                f"weight decay {decay:g} at learning rate {rate:g} ({event['optimizer']}) removes "
                f"{number(rate * decay, 2)} of each parameter of group '{group}' per update."
            )
            step = history.step if severity == "warning" else int(event["step"])
            yield self.finding(step, text, subject=group, severity=severity)
