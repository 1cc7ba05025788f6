"""Rules for how model and optimizer were set up: initial weights, frozen parts, odd values, renewed optimizers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fieldwatch.base import percent
from fieldwatch.health.finding import Finding, Severity, first_per_subject
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.chance import falls_short
from fieldwatch.health.rules.poor_results import ends_poorly, is_good
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished
from fieldwatch.record import History, tags


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
class FrozenBody(HealthRule):
    """Most of a trained module is frozen from the start, and the result is poor.

    A note if the result is good: fine-tuning freezes a pretrained body on purpose, and what is learned on top of random
    features, or in adapters beside them, may be enough.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = "frozen_share"
    share: float = threshold(0.3, unit="fraction of the parameters", reason="smaller parts hardly limit the model")
    part: float = threshold(0.1, unit="fraction of the parameters", reason="enough if their values are random")
    random: float = threshold(
        0.5,
        unit="fraction of the frozen matrices",
        reason="the largest singular value of a trained matrix is above that of a random one",
        source="https://en.wikipedia.org/wiki/Marchenko%E2%80%93Pastur_distribution",
    )
    enough: float = threshold(
        0.85, unit="held-out fraction or correlation", reason="so good a result was not harmed by random features"
    )
    remedy: ClassVar[str] = (
        "Call requires_grad_(True) on the named parameters and give them to the optimizer, unless they are pretrained: "
        "a body with random weights cannot learn. If it is pretrained, check that its weights were loaded."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding if there are such parameters."""
        for event in history.events(self.kind):
            # What is frozen and still random was never loaded: a suspect as soon as the result is not good.
            random = float(event.get("random", 0.0)) > self.random
            if float(event["share"]) < (self.part if random else self.share):
                continue
            poor = ends_poorly(history) or falls_short(history)
            doubtful = random and finished(history) and not is_good(history, self.enough)
            severity: Severity = "warning" if poor or doubtful else "note"
            names = ", ".join(f"'{name}'" for name in event["names"][:3])
            also = ", although an optimizer holds them" if event["in_optimizer"] else ""
            text = (
                f"{percent(event['share'], 0)} of the parameters are frozen (requires_grad=False) since the start"
                f"{also}: {names} and others."
            )
            if random:
                text += " Their values have no more structure than random numbers: they were not loaded, or not meant."
            step = history.step if severity == "warning" else int(event["step"])
            return (self.finding(step, text, subject=str(event["names"][0]), severity=severity),)
        return ()


@dataclass(frozen=True, kw_only=True)
class OddSetting(HealthRule):
    """An optimizer or a layer has a setting that is rarely meant, such as momentum 0.999 or dropout 0.9.

    A warning if the result is poor at the end, if the optimizer maximizes a loss, or if a dropout leaves nearly
    nothing; otherwise a note.

    Attributes:
        kind: kind of the events to report.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = "odd_setting"
    dropped: float = threshold(
        0.9, unit="probability of a dropout", reason="of the values to drop; the share to keep was probably meant"
    )
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
        dropped = setting == "dropout" and value >= self.dropped
        severity: Severity = "warning" if poor or dropped or (maximizes and _rose(history)) else "note"
        text = f"{where} has {setting} = {value:g}; usual is {event['usual']}."
        if maximizes:
            text = f"{where} has maximize=True: its updates raise the loss instead of lowering it (a wrong sign)."
        remedy = f"Set {setting} of {where} to the usual value ({event['usual']})."
        if setting.startswith("betas"):
            remedy += " A command has it in --beta1 and --beta2: leave them out."
        step = history.step if severity == "warning" and not dropped else int(event["step"])
        return replace(self.finding(step, text, subject=f"{where} {setting}", severity=severity), remedy=remedy)


def _rose(history: History) -> bool:
    if tags.TOTAL not in history or len(history[tags.TOTAL]) < 32:
        return False
    values = history[tags.TOTAL].values
    return bool(np.nanmedian(values[-8:]) > np.nanmedian(values[:8]))


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
