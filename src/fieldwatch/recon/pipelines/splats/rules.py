"""Health rules of splats runs: degenerate Gaussians, sudden losses of Gaussians, and a densification cap that binds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    finished,
    first_sustained,
    forecast,
    phases,
    planned_steps,
    quality,
    results,
    samples,
    spans,
    terms,
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
        "transparent": ("are transparent", "they cost memory and time without contributing to any image"),
        "giant": ("are giant, with a standard deviation above a tenth of the scene", "they blur what lies behind them"),
        "needle": ("are needles, with one long axis", "they define no surface and cause streaks in new views"),
        "never_visible": ("were visible in no training photo for two epochs", "they receive no gradient"),
    }
)
"""Predicate and consequence of each kind of degenerate Gaussian, for the finding's message."""


@dataclass(frozen=True, kw_only=True)
class DegenerateGaussians(HealthRule):
    """Many Gaussians stay degenerate for long: transparent, giant, needle-shaped, or never visible.

    Giant ones are a note if they are those that few initial points make, and held-out photos are rendered well.

    Attributes:
        prefix: tag prefix of the recorded fractions.
        quality: PSNR of held-out photos.
        baseline: that of their mean color.
        excuses: kinds of events after which transparent Gaussians are expected.
        fading: loss terms that drive opacities to 0 before a prune; transparent Gaussians are expected while they act.
    """

    prefix: str = "Population/"
    quality: str = "Test/psnr"
    baseline: str = "Baseline/Test/psnr"
    excuses: Sequence[str] = ("reset",)
    fading: Sequence[str] = ("entropy_regularization", "opacity")
    transparent: float = threshold(
        0.5,
        unit="fraction",
        reason="half of the work is wasted; transparent means an opacity below 0.005, 3DGS's pruning threshold",
        source=_KERBL,
    )
    giant: float = threshold(
        0.05,
        unit="fraction",
        reason=(
            "a distant background needs some, but more indicate an unresolved scene; giant means a standard "
            "deviation above 0.1 of the extent, 3DGS's pruning threshold"
        ),
        source=_KERBL,
    )
    grown: float = threshold(
        1.25, unit="times the first fraction", reason="a population that is densified by copies keeps its sizes"
    )
    decibels: float = threshold(
        3.0, unit="dB above the baseline", reason="photos of other places gain so much from a scene that is resolved"
    )
    near: float = threshold(0.3, unit="dB", reason="from the best: held-out photos gain up to the end")
    needle: float = threshold(
        0.5,
        unit="fraction",
        reason=(
            "training on photos alone produces many, but above a half the surface is lost; a needle's longest axis "
            "is over 10 times the second, an effective rank below 1.12"
        ),
        source=_HYUNG,
    )
    never_visible: float = threshold(
        0.2, unit="fraction", reason="a fifth of the memory holds Gaussians without training"
    )
    warmup: int = threshold(5, unit="recordings", reason="densification and resets change the population abruptly")
    patience: int = threshold(30, unit="recordings", reason="300 steps at the default interval: three densifications")
    grace: int = threshold(
        300, unit="steps", reason="the prunes that follow a reset or the end of a fading term take this long"
    )
    remedy: ClassVar[str] = (
        "Transparent or never visible: prune them (--prune-on-load when starting from a checkpoint). Giant: check "
        "cameras and background; start with more points, or, where there are many, prune by size (--largest-size). "
        "Needles: add a surface term (-r planar) or --flatness-weight, which give them a second axis."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding for each kind and phase in which the fraction stayed above its bound for too long."""
        return tuple(
            finding
            for kind in _ADVICE
            for span in spans(history, self.prefix + kind)
            if (finding := self._judge(history, kind, span))
        )

    def _judge(self, history: History, kind: str, span: Span) -> Finding | None:
        bound = float(getattr(self, kind))
        steps = span.series.steps
        high = span.values > bound
        # Only transparency is excused: resets and fading terms change opacities, but not shapes or visibility.
        if kind == "transparent":
            high &= ~(excused(history, self.excuses, steps, self.grace) | self._fading_mask(history, steps))
        at = first_sustained(high, patience=self.patience, warmup=self.warmup)
        if at is None:
            return None
        what, why = _ADVICE[kind]
        bounds = f"above {bound:.0%} for {self.patience} recordings"
        text = f"{span.values[at]:.0%} of the Gaussians {what} ({bounds}): {why}."
        harmless = kind == "giant" and self._were_giant(history, span) and self._is_rendered_well(history)
        severity: Severity = "note" if harmless else self.severity
        return self.finding(span.step(at), text, subject=span.name, severity=severity)

    def _were_giant(self, history: History, span: Span) -> bool:
        """Return whether no more Gaussians are giant than at the start of the run, when their points were far apart."""
        first = float(history[span.name].start.values[0])
        return float(np.nanmax(span.values)) <= self.grown * first

    def _is_rendered_well(self, history: History) -> bool:
        """Return whether held-out photos have gained over their baseline up to the end of the run."""
        if not finished(history) or self.quality not in history or self.baseline not in history:
            return False
        values = history[self.quality].values
        last = float(values[-1])
        gained = last - float(history[self.baseline].values[-1])
        return gained > self.decibels and last > float(np.nanmax(values)) - self.near

    def _fading_mask(self, history: History, steps: NDArray[np.float64]) -> NDArray[np.bool_]:
        mask = np.zeros(len(steps), np.bool_)
        for term in self.fading:
            if term in history.windows:
                first, last = history.windows[term]
                mask |= (steps >= first) & (steps <= last + self.grace)
        return mask


@dataclass(frozen=True, kw_only=True)
class NonFiniteGaussians(HealthRule):
    """A Gaussian has a non-finite parameter."""

    severity: ClassVar[Severity] = "error"
    metrics: Sequence[str] = ("Population/non_finite",)
    remedy: ClassVar[str] = (
        "Resume from the last checkpoint; the current parameters are corrupt. Keep the guard of step.update enabled, "
        "which rejects non-finite updates and names term and photo; check all other code that writes parameters "
        "(densification, resets, your own code)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first recording with a non-finite Gaussian in each phase."""
        findings: list[Finding] = []
        for span in spans(history, *self.metrics):
            # Not `> 0`: a recorded fraction that is NaN itself must be reported, too.
            at = first_sustained(~(span.values == 0))
            if at is not None:
                text = f"{span.values[at]:.2%} of the Gaussians have a non-finite parameter."
                findings.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(findings)


@dataclass(frozen=True, kw_only=True)
class PopulationCollapse(HealthRule):
    """Most Gaussians were removed in a single step; a planned prune may remove more, but not nearly all.

    Attributes:
        metric: tag of the number of Gaussians.
        planned: kinds of events that remove many Gaussians by design.
    """

    metric: str = SIZE
    planned: Sequence[str] = ("prune",)
    drop: float = threshold(
        0.5,
        unit="fraction",
        reason="a regular densification never removes half; one that prunes opacities right after a reset does",
    )
    most: float = threshold(
        0.95,
        unit="fraction",
        reason="SuGaR's prune at opacity 0.5 keeps a fifth: 5 million become 1 million",
        source=_SUGAR,
    )
    warmup: float = threshold(
        0.02,
        unit="fraction of the planned steps",
        reason="a random start has Gaussians that no photo sees, which the first densifications remove by design",
    )
    remedy: ClassVar[str] = (
        "Resume from the checkpoint before. If a prune removed them, lower its opacity (--prune-below) or prune later "
        "(--prune-at); if a densification did, it came too soon after an opacity reset (--reset-every)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first collapse in each phase; a collapse at a phase border counts for the new phase."""
        if self.metric not in history:
            return ()
        series = history[self.metric]
        before = series.values[:-1]
        after = series.values[1:]
        steps = series.steps
        # The inner `where` avoids a division by zero, because numpy evaluates both branches.
        lost = np.where(before > 0, 1 - after / np.where(before > 0, before, 1), 0.0)
        bounds = np.where(self._planned_events_between(history, steps), self.most, self.drop)
        start = history.first + self.warmup * (planned_steps(history) or 0)
        collapses = np.flatnonzero((lost > bounds) & (steps[1:] >= start))
        findings: list[Finding] = []
        for first, last in phases(history):
            # A collapse between two recordings belongs to the phase of the second one.
            at = next((at for at in collapses.tolist() if first <= steps[at + 1] <= last), None)
            if at is not None:
                cause = "a prune removed" if bounds[at] == self.most else "a step without a declared prune removed"
                text = f"{cause} {lost[at]:.0%} of the Gaussians: {before[at]:,.0f} became {after[at]:,.0f}."
                findings.append(self.finding(int(steps[at + 1]), text, subject=self.metric))
        return tuple(findings)

    def _planned_events_between(self, history: History, steps: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return, for each pair of consecutive recordings, whether a planned event lies between them."""
        mask = np.zeros(max(len(steps) - 1, 0), np.bool_)
        for kind in self.planned:
            for event in history.events(kind):
                # Inclusive at both ends: the size of a step is recorded before its prune, so that a prune at a recorded
                # step shows only in the next recording.
                mask |= (steps[:-1] <= event["step"]) & (event["step"] <= steps[1:])
        return mask


@dataclass(frozen=True, kw_only=True)
class PruneRefused(HealthRule):
    """A planned prune was skipped because it would have removed nearly all Gaussians: opacities had not converged."""

    kind: str = "prune"
    remedy: ClassVar[str] = (
        "Train the opacities longer before the prune (a larger --schedule-scale, no opacity reset shortly before), or "
        "prune less (--prune-below). If opacities stay low for long, the photos contradict each other: check cameras "
        "and poses (`fieldwatch doctor --data`)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding for each prune that was skipped."""
        findings: list[Finding] = []
        for event in history.events(self.kind):
            refused = _count(event, "refused")
            before = _count(event, "before")
            if refused:
                text = (
                    f"the prune below opacity {event.get('below', 0):g} would have removed {refused:,.0f} of "
                    f"{before:,.0f} Gaussians and was skipped."
                )
                findings.append(self.finding(int(event["step"]), text, subject=self.kind))
        return tuple(findings)


@dataclass(frozen=True, kw_only=True)
class Floaters(HealthRule):
    """Many Gaussians hung in the empty space around the cameras, where few photos show them, and were removed."""

    severity: ClassVar[Severity] = "note"
    kind: str = "prune"
    least: float = threshold(
        0.01, unit="fraction", reason="the six scenes of benchmarks/six_scenes.py that have few floaters stay below"
    )
    remedy: ClassVar[str] = (
        "Add photos that overlap with those that show these places, or leave out photos that overlap with no others: "
        "what three photos or fewer show has no certain place. --prune-floaters 0 keeps such Gaussians, which veil the "
        "views around them."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding if more Gaussians floated than usual, at the sweep with the most."""
        events = [event for event in history.events(self.kind) if _count(event, "before")]
        if not events:
            return ()
        worst = max(events, key=_floating_share)
        if _floating_share(worst) < self.least:
            return ()
        removed = sum(_count(event, "floaters") for event in events)
        kept = _count(worst, "floaters_kept")
        text = f"floaters removed: {removed:,}. They hung closer to a camera than the scene of its photo begins."
        if kept:
            text = (
                f"{kept:,} of {_count(worst, 'before'):,} Gaussians look like floaters and were kept: with so "
                "many, the photos overlap too little to tell."
            )
        return (self.finding(int(worst["step"]), text, subject=self.kind),)


def _floating_share(event: Mapping[str, Any]) -> float:
    return (_count(event, "floaters") + _count(event, "floaters_kept")) / _count(event, "before")


@dataclass(frozen=True, kw_only=True)
class GrowthCapBinds(HealthRule):
    """The cap prevents many densifications long before densification ends.

    MCMC runs are exempt: they fill their cap by design.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = "growth"
    share: float = threshold(
        0.02, unit="fraction of the Gaussians", reason="missing fewer than one in fifty makes no visible difference"
    )
    left: float = threshold(
        0.25, unit="fraction of the densification period", reason="a cap that is reached near the end is well chosen"
    )
    patience: int = threshold(3, unit="densifications", reason="a single densification may have many candidates")
    remedy: ClassVar[str] = (
        "Raise --growth-cap if memory and time allow; otherwise raise --growth-pull, so that the cap is reached later "
        "and goes to the Gaussians with the largest view-space gradients."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the densification in each phase at which the cap had been binding for too long."""
        events = history.events(self.kind)
        # Only MCMC densification records these counts.
        if any(_count(event, "drawn") or _count(event, "relocated") for event in events):
            return ()
        findings = (self._judge(events, first, last) for first, last in phases(history))
        return tuple(finding for finding in findings if finding is not None)

    def _judge(self, events: Sequence[Mapping[str, Any]], first: int, last: int) -> Finding | None:
        here = [event for event in events if first <= event["step"] <= last]
        at = first_sustained(np.array([self._binds(event, events) for event in here], np.bool_), patience=self.patience)
        if at is None:
            return None
        event = here[at]
        text = (
            f"the cap limits the model at {_count(event, 'after'):,} Gaussians: {_count(event, 'held_back'):,} "
            f"candidates were not densified at step {event['step']}, and densification continues until step "
            f"{event['growth_until']}."
        )
        return self.finding(int(event["step"]), text)

    def _binds(self, event: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> bool:
        start = events[0]["step"]
        end = _count(event, "growth_until")
        # Relative to the period from the first densification to the planned end, not to the whole run.
        early = end - event["step"] > self.left * (end - start)
        return early and _count(event, "held_back") > self.share * _count(event, "before")


@dataclass(frozen=True, kw_only=True)
class ResetsTooOften(HealthRule):
    """Opacities are reset again before they could recover from the last reset."""

    kind: str = "reset"
    rate: str = "LearningRate/opacity_logits"
    rise: float = threshold(
        4.6,
        unit="logits",
        reason="from the opacity 0.01 after a reset to 0.5; Adam changes a logit by about its learning rate per step",
        source=_KERBL,
    )
    patience: int = threshold(3, unit="resets", reason="a single reset right after another does little harm")
    remedy: ClassVar[str] = "Reset less often: --reset-every 3000 (the default of 3DGS), or 0 to never reset opacities."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the reset at which the intervals had been too short for too long."""
        steps = np.array(sorted({int(event["step"]) for event in history.events(self.kind)}))
        if self.rate not in history or len(steps) <= self.patience:
            return ()
        rate = float(np.nanmax(history[self.rate].values))
        needed = self.rise / rate if rate > 0 else np.inf
        at = first_sustained(np.diff(steps) < needed, patience=self.patience)
        if at is None:
            return ()
        text = (
            f"opacities were reset {self.patience + 1} times in a row at most {np.diff(steps)[at]:.0f} steps apart; at "
            f"their learning rate of {rate:g} they need about {needed:.0f} steps to recover from a reset."
        )
        return (self.finding(int(steps[at + 1]), text, subject=self.kind),)


def _count(event: Mapping[str, Any], name: str) -> int:
    return int(event.get(name, 0))


@dataclass(frozen=True, kw_only=True)
class CollapseOnTestViews(quality.Collapse):
    """Quality on held-out photos suddenly drops far below its best without a recent prune or reset.

    A densification in between that removed many Gaussians for their size is named: where the initial points are far
    apart, large Gaussians are the scene itself.
    """

    reported_as: ClassVar[str] = "Collapse"
    metrics: Sequence[str] = ("Test/psnr", "Eval/psnr")
    excuses: Sequence[str] = ("prune", "reset")
    # A phase has few evaluations, often one, so each is compared with the best of the run.
    within: Literal["phase", "run"] = "run"
    warmup: int = threshold(1, unit="evaluations", reason="each covers all held-out photos, so one sets a valid best")
    patience: int = threshold(1, unit="evaluations", reason="evaluations are rare, and each is a mean over photos")
    large: float = threshold(
        0.1,
        unit="fraction of the Gaussians",
        reason="a densification removes single ones for their size; 0.23 costs 3 dB",
        source="measured by benchmarks/verdicts.py",
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where quality had been too low for too long, with the densification that removed large Gaussians."""
        return tuple(self._explained(history, found) for found in super().__call__(history))

    def _explained(self, history: History, found: Finding) -> Finding:
        series = history[found.subject]
        earlier = series.steps < found.step
        best = float(series.steps[earlier][np.nanargmax(series.values[earlier])])
        for event in history.events("growth"):
            removed = int(event.get("too_large", 0))
            if best <= event["step"] <= found.step and removed > self.large * event["before"]:
                text = (
                    f"{found.message} The densification of step {event['step']} had removed {removed:,} of "
                    f"{event['before']:,} Gaussians for their size."
                )
                return replace(found, message=text, remedy=_LARGE)
        return found


_LARGE = (
    "Keep large Gaussians (--largest-size 0, or above the distance of the initial points), or start with more points: "
    "where these are few, large Gaussians are the scene, and not what veils it."
)
_PHOTO = (
    "Look at the named photos beside their neighbors: a wrong pose, blur or something that moved are reasons to remove "
    "them from the scene, another exposure to train with --exposure True; `fieldwatch doctor --data` compares poses "
    "and colors with the points of the model."
)


@dataclass(frozen=True, kw_only=True)
class WrongPhoto(samples.WrongSample):
    """The losses of a few photos are far above all others at the end of training, at every visit."""

    reported_as: ClassVar[str] = "WrongSample"
    remedy: ClassVar[str] = _PHOTO


@dataclass(frozen=True, kw_only=True)
class WorstPhoto(results.WorstSample):
    """At the last evaluation, a few held-out photos are rendered far worse than all others."""

    reported_as: ClassVar[str] = "WorstSample"
    remedy: ClassVar[str] = f"{_PHOTO} If they show what no training photo shows, hold out fewer (--held-out)."


@dataclass(frozen=True, kw_only=True)
class SurfaceTermDominates(terms.TermDominates):
    """A surface term contributes several times more to the total loss than the photos."""

    reported_as: ClassVar[str] = "TermDominates"
    remedy: ClassVar[str] = (
        "Lower its weight (--depth-normal-weight 0.05, --flatness-weight 10, --entropy-weight 0.1 are usual), or train "
        "without surface terms (-r none)."
    )


_ADAPTED: tuple[HealthRule, ...] = (
    # The forecast names a number of Gaussians.
    forecast.OutOfMemoryAhead(unit="Gaussians"),
    WrongPhoto(),
    WorstPhoto(),
    SurfaceTermDominates(),
)
"""General rules whose findings name the flags and units of this pipeline."""

SPLATS_RULES: tuple[HealthRule, ...] = (
    *(rule for rule in GENERAL if rule.name not in {adapted.name for adapted in _ADAPTED}),
    *_ADAPTED,
    CollapseOnTestViews(),
    quality.Overfitting(metrics=("Test/psnr_gap",)),
    quality.Overtraining(train="Test/train_psnr", validation="Test/psnr"),
    DegenerateGaussians(),
    NonFiniteGaussians(),
    PopulationCollapse(),
    PruneRefused(),
    Floaters(),
    ResetsTooOften(),
    GrowthCapBinds(),
)
"""Health rules of splats runs and refinements."""
