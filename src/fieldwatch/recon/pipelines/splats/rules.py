"""Health rules of splats runs: useless Gaussians, sudden losses of Gaussians, and a cap that binds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fieldwatch import GENERAL, Finding, History
from fieldwatch.rules import (
    HealthRule,
    Severity,
    Span,
    excused,
    first_held,
    forecast,
    phases,
    quality,
    spans,
    threshold,
)

_KERBL = "https://arxiv.org/abs/2308.04079"
"""3D Gaussian Splatting, Kerbl et al. 2023."""
_HYUNG = "https://arxiv.org/abs/2406.11672"
"""Effective rank of Gaussians, Hyung et al. 2024."""
_SUGAR = "https://arxiv.org/abs/2311.12775"
"""SuGaR, Guedon and Lepetit 2024."""
SIZE = "Model/size"
_ADVICE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "transparent": ("are transparent", "they cost memory and time and show nothing"),
        "giant": ("are giant, larger than a tenth of the scene", "they blur what lies behind them"),
        "needle": ("are needles, with one long axis", "no surface can be read off them, and new views show streaks"),
        "never_visible": ("were seen by no photo for two rounds", "nothing trains them"),
    }
)
"""What is said of each kind: what they are, and why that matters."""


@dataclass(frozen=True, kw_only=True)
class DegenerateGaussians(HealthRule):
    """Many Gaussians have been of no use for long: transparent, giant, needle-shaped, or never visible.

    Attributes:
        prefix: what the shares are recorded under.
        excuses: kinds of events after which transparent Gaussians are expected.
        fading: loss terms that drive opacities to 0 before a prune; transparent Gaussians are expected meanwhile.
    """

    prefix: str = "Population/"
    excuses: Sequence[str] = ("reset",)
    fading: Sequence[str] = ("entropy_regularization", "opacity")
    transparent: float = threshold(
        0.5,
        unit="share",
        reason="half of the work is for nothing; transparent is an opacity below 0.005, where 3DGS prunes",
        source=_KERBL,
    )
    giant: float = threshold(
        0.05,
        unit="share",
        reason=(
            "a far background needs some, more means an unresolved scene; giant is a standard deviation "
            "above 0.1 of the extent, where 3DGS prunes"
        ),
        source=_KERBL,
    )
    needle: float = threshold(
        0.5,
        unit="share",
        reason=(
            "photos alone make many, and half of all leave no surface; a needle's longest axis is over 10 "
            "times the second, an effective rank below 1.12"
        ),
        source=_HYUNG,
    )
    never_visible: float = threshold(0.2, unit="share", reason="a fifth of the memory holds what no photo trains")
    warmup: int = threshold(5, unit="recordings", reason="growth and resets change the population at once")
    patience: int = threshold(30, unit="recordings", reason="300 steps at the usual cadence: three densifications")
    grace: int = threshold(
        300, unit="steps", reason="after a reset, or the end of a fading term, until the next prunes have passed"
    )
    remedy: ClassVar[str] = (
        "Transparent or unseen: prune them (--prune-on-load at a start from a checkpoint). Giant: check cameras and "
        "background, and that growth prunes by size. Needles: a surface term (-r planar) or --flatness-weight gives "
        "them a second axis."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per kind and phase, where the share had been above its bound for too long."""
        return tuple(
            found
            for kind in _ADVICE
            for span in spans(history, self.prefix + kind)
            if (found := self._judge(history, kind, span))
        )

    def _judge(self, history: History, kind: str, span: Span) -> Finding | None:
        bound = float(getattr(self, kind))
        steps = span.series.steps
        high = span.values > bound
        if kind == "transparent":
            high &= ~(excused(history, self.excuses, steps, self.grace) | self._faded(history, steps))
        at = first_held(high, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        what, why = _ADVICE[kind]
        text = f"{span.values[at]:.0%} of the Gaussians {what} (more than {bound:.0%} for {self.patience} looks): {why}"
        return self.finding(span.step(at), f"{text}.", subject=span.name)

    def _faded(self, history: History, steps: NDArray[np.float64]) -> NDArray[np.bool_]:
        mask = np.zeros(len(steps), np.bool_)
        for term in self.fading:
            if term in history.windows:
                first, last = history.windows[term]
                mask |= (steps >= first) & (steps <= last + self.grace)
        return mask


@dataclass(frozen=True, kw_only=True)
class NonFiniteGaussians(HealthRule):
    """A Gaussian holds a value that is not finite."""

    severity: ClassVar[Severity] = "error"
    metrics: Sequence[str] = ("Population/non_finite",)
    remedy: ClassVar[str] = (
        "Go back to the last checkpoint: the parameters took it. Keep step.update's guard on, which refuses such an "
        "update and names term and photo; look at what else writes parameters (growth, resets, your own code)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per phase, the first look that found one."""
        found: list[Finding] = []
        for span in spans(history, *self.metrics):
            at = first_held(~(span.values == 0))
            if at is not None:
                text = f"{span.values[at]:.2%} of the Gaussians hold a value that is not finite."
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class PopulationCollapse(HealthRule):
    """Most of the Gaussians went from one step to the next; a planned prune may take more, but not nearly all.

    Attributes:
        metric: the number of Gaussians.
        planned: kinds of events that are meant to take many.
    """

    metric: str = SIZE
    planned: Sequence[str] = ("prune",)
    drop: float = threshold(
        0.5,
        unit="share",
        reason="densification never removes half; opacities that were just reset and not yet trained do",
    )
    most: float = threshold(
        0.95,
        unit="share",
        reason="SuGaR's prune at opacity 0.5 keeps a fifth: 5 million become 1 million",
        source=_SUGAR,
    )
    remedy: ClassVar[str] = (
        "Go back to the checkpoint before. If a prune took them, lower its opacity (--prune-below), or start it later; "
        "if growth did, it came too soon after a reset of the opacities (--reset-every)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per phase, the first step after which most were gone; across a phase's border, too."""
        if self.metric not in history:
            return ()
        series = history[self.metric]
        before = series.values[:-1]
        after = series.values[1:]
        steps = series.steps
        lost = np.where(before > 0, 1 - after / np.where(before > 0, before, 1), 0.0)
        bounds = np.where(self._meant(history, steps), self.most, self.drop)
        places = np.flatnonzero(lost > bounds)
        found: list[Finding] = []
        for first, last in phases(history):
            at = next((at for at in places.tolist() if first <= steps[at + 1] <= last), None)
            if at is not None:
                how = "a prune took" if bounds[at] == self.most else "one step took, though no prune was declared,"
                text = f"{how} {lost[at]:.0%} of the Gaussians: {before[at]:,.0f} became {after[at]:,.0f}."
                found.append(self.finding(int(steps[at + 1]), text, subject=self.metric))
        return tuple(found)

    def _meant(self, history: History, steps: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Tell for each pair of recordings whether an event between them was meant to take Gaussians."""
        mask = np.zeros(max(len(steps) - 1, 0), np.bool_)
        for kind in self.planned:
            for event in history.events(kind):
                mask |= (steps[:-1] <= event["step"]) & (event["step"] <= steps[1:])
        return mask


@dataclass(frozen=True, kw_only=True)
class PruneRefused(HealthRule):
    """A planned prune would have left next to nothing, and was not done: opacities had not settled."""

    kind: str = "prune"
    remedy: ClassVar[str] = (
        "Give the opacities longer before the prune (a larger --schedule-scale, no opacity reset shortly before), or "
        "prune less (--prune-below)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return each prune that was refused."""
        found: list[Finding] = []
        for event in history.events(self.kind):
            refused = _count(event, "refused")
            before = _count(event, "before")
            if refused:
                text = (
                    f"the prune below opacity {event.get('below', 0):g} would have taken {refused:,.0f} of "
                    f"{before:,.0f} Gaussians and was not done."
                )
                found.append(self.finding(int(event["step"]), text, subject=self.kind))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class GrowthCapBinds(HealthRule):
    """The cap holds back Gaussians that wanted to grow, long before growth ends.

    Growth by sampling (MCMC), which fills its cap by design, is not judged.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = "growth"
    share: float = threshold(0.02, unit="share", reason="of all Gaussians: fewer than one in fifty do not matter")
    left: float = threshold(
        0.25, unit="share of the growth to come", reason="a cap that is reached at the end has done its work"
    )
    patience: int = threshold(3, unit="densifications", reason="a single one may ask for many")
    remedy: ClassVar[str] = (
        "Raise --growth-cap if memory and time allow; else raise --growth-pull, so that the cap is reached later and "
        "the strongest places of all photos share it."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per phase, the growth step at which the cap had bound for too long."""
        events = history.events(self.kind)
        if any(_count(event, "drawn") or _count(event, "relocated") for event in events):
            return ()
        found = (self._judge(events, first, last) for first, last in phases(history))
        return tuple(finding for finding in found if finding is not None)

    def _judge(self, events: Sequence[Mapping[str, Any]], first: int, last: int) -> Finding | None:
        here = [event for event in events if first <= event["step"] <= last]
        at = first_held(np.array([self._binds(event, events) for event in here], np.bool_), patience=self.patience)
        if at is None:
            return None
        event = here[at]
        text = (
            f"the cap holds the model at {_count(event, 'after'):,} Gaussians: {_count(event, 'held_back'):,} that "
            f"wanted to grow were held back at step {event['step']}, and growth goes on until {event['growth_until']}."
        )
        return self.finding(int(event["step"]), text)

    def _binds(self, event: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> bool:
        begun = events[0]["step"]
        end = _count(event, "growth_until")
        early = end - event["step"] > self.left * (end - begun)
        return early and _count(event, "held_back") > self.share * _count(event, "before")


def _count(event: Mapping[str, Any], name: str) -> int:
    return int(event.get(name, 0))


@dataclass(frozen=True, kw_only=True)
class CollapseOnTestViews(quality.Collapse):
    """Quality on held-out photos suddenly drops far below its best, with no prune or reset to explain it."""

    reported_as: ClassVar[str] = "Collapse"
    metrics: Sequence[str] = ("Test/psnr", "Eval/psnr")
    excuses: Sequence[str] = ("prune", "reset")
    within: Literal["phase", "run"] = "run"
    warmup: int = threshold(1, unit="evaluations", reason="one makes a best, as each has all held-out photos")
    patience: int = threshold(1, unit="evaluations", reason="evaluations are rare, and each is a mean")


SPLATS_RULES: tuple[HealthRule, ...] = (
    *(rule for rule in GENERAL if not isinstance(rule, forecast.OutOfMemoryAhead)),
    forecast.OutOfMemoryAhead(unit="Gaussians"),
    CollapseOnTestViews(),
    quality.Overfitting(metrics=("Test/psnr_gap",)),
    quality.Overtraining(train="Test/train_psnr", validation="Test/psnr"),
    DegenerateGaussians(),
    NonFiniteGaussians(),
    PopulationCollapse(),
    PruneRefused(),
    GrowthCapBinds(),
)
"""The rules of a splats run and of a refinement."""
