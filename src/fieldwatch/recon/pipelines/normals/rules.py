"""Health rules of normals runs: occupancy grid, rays without samples, sharpness, and optimized poses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fieldwatch import GENERAL, Finding, History
from fieldwatch.rules import (
    LOOKBACK,
    HealthRule,
    Severity,
    finished,
    first_sustained,
    memory,
    on_steps,
    results,
    samples,
    spans,
    terms,
    threshold,
)

_NEUS = "https://arxiv.org/abs/2106.10689"
"""NeuS, Wang et al. 2021."""
_PMNI = "https://arxiv.org/abs/2504.08410"
"""PMNI, Pei et al. 2025."""

_EXPONENT = 10.0
"""The sharpness is s = exp(10 v), as in NeuS; runs record v."""


@dataclass(frozen=True, kw_only=True)
class RayStarvation(HealthRule):
    """Rays receive no samples: the occupancy grid has lost the surface."""

    severity: ClassVar[Severity] = "error"
    metrics: Sequence[str] = ("samples_per_ray", "Statistics/samples_per_ray", "Render/samples_per_ray")
    low: float = threshold(
        0.0, unit="samples per ray", reason="0 means that the grid has collapsed; a healthy run has about 3"
    )
    warmup: int = threshold(0, unit="recordings", reason="a collapsed grid never recovers on its own")
    patience: int = threshold(8, unit="recordings", reason="a single view without samples recovers")
    remedy: ClassVar[str] = (
        "Rebuild the occupancy grid from the current field without its moving average, sample empty rays uniformly, or "
        "resume from the last checkpoint with half the learning rate."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding for each phase in which rays received no samples for `patience` recordings."""
        found: list[Finding] = []
        for span in spans(history, *self.metrics):
            at = first_sustained(span.values <= self.low, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = f"{span.name} is {span.values[at]:g}: the occupancy grid has collapsed and rays get no samples."
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class OccupancySaturated(HealthRule):
    """Nearly all cells of the occupancy grid are occupied, so no empty space is skipped."""

    metrics: Sequence[str] = ("occupied_frac", "Statistics/occupied_frac", "Render/occupied_frac")
    high: float = threshold(
        0.75,
        unit="fraction of cells",
        reason="an object that fills the box's inscribed sphere occupies 0.6, because its inside counts as occupied",
    )
    warmup: int = threshold(500, unit="recordings", reason="the grid starts full and empties over the first 500 steps")
    patience: int = threshold(8, unit="recordings", reason="a rebuilt grid is briefly full")
    remedy: ClassVar[str] = (
        "Raise the occupancy threshold (relative to the cell size), limit the samples per batch, and check that the "
        "field has a surface at all."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding for each phase in which the grid was saturated for `patience` recordings."""
        found: list[Finding] = []
        for span in spans(history, *self.metrics):
            at = first_sustained(span.values >= self.high, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = f"{span.name} is {span.values[at]:g}: the occupancy grid is saturated."
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class StarvedRays(HealthRule):
    """Many rays inside the mask get no samples from the grid: there is no surface where they expect one."""

    metrics: Sequence[str] = ("Statistics/starved_share",)
    high: float = threshold(
        0.25, unit="fraction of rays", reason="a quarter of the object is missing; above a half the run itself reacts"
    )
    warmup: int = threshold(
        500, unit="steps", reason="the surface starts as a sphere and takes time to grow into the whole mask"
    )
    patience: int = threshold(100, unit="steps", reason="difficult views cause short peaks")
    remedy: ClassVar[str] = (
        "Compare the newest mesh with the masks. If parts are missing, raise the weight of the mask term or the "
        "--radius of the initial sphere. If the surface is elsewhere, poses, masks or scale are inconsistent "
        "(`fieldwatch doctor --data`)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding for each phase in which too many rays had no samples for `patience` steps."""
        found: list[Finding] = []
        for span in spans(history, *self.metrics):
            at = first_sustained(span.values > self.high, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = (
                    f"{span.values[at]:.0%} of the rays in the mask find no surface (above {self.high:.0%} for "
                    f"{self.patience} steps)."
                )
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class AbundantSamples(HealthRule):
    """Rays get many times the samples that the current sharpness and step size require.

    A surface of sharpness s is visible within about 8 / s on either side, so a ray needs 16 / s divided by the step
    size. The rule judges this ratio, because a fixed bound on the number of samples would fit a single setting only.
    """

    severity: ClassVar[Severity] = "note"
    samples: str = "Statistics/samples_per_ray"
    step: str = "Statistics/step_size"
    sharpness: str = "Statistics/s"
    ratio: float = threshold(
        20.0,
        unit="times the required samples",
        reason=(
            "on the built-in scene, coarse grids (16 to 64 cells) and grazing rays take up to 5 times the required "
            "samples"
        ),
    )
    band: float = threshold(
        16.0, unit="1 / s", reason="beyond 8 / s on either side, S(-8) = 0.03 % of the opacity is left", source=_NEUS
    )
    warmup: int = threshold(500, unit="steps", reason="the field is not a distance field yet")
    patience: int = threshold(50, unit="steps", reason="single views may graze the surface")
    remedy: ClassVar[str] = (
        "Empty space is being sampled: the grid is nearly full or too coarse (--grid-resolution), or the field is not "
        "a distance: check that the normals have the right axes and the masks and poses are right "
        "(`fieldwatch doctor --data`), then raise the weight of the eikonal term."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding for each phase in which rays had too many samples for `patience` steps."""
        if self.step not in history or self.sharpness not in history:
            return ()
        found: list[Finding] = []
        for span in spans(history, self.samples):
            steps = span.series.steps
            step = on_steps(history[self.step], steps)
            v = on_steps(history[self.sharpness], steps)
            # The visible band, `band` / s with s = exp(10 v), in samples.
            needed = self.band * np.exp(-_EXPONENT * v) / step
            at = first_sustained(span.values > self.ratio * needed, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = (
                    f"rays have {span.values[at]:.0f} samples each; a surface this sharp needs about {needed[at]:.0f}."
                )
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class SharpnessStuck(HealthRule):
    """The surface has not become sharper since the start of the run."""

    metrics: Sequence[str] = ("Statistics/s",)
    rise: float = threshold(0.01, unit="v", reason="a rise of 0.01 in v increases s by a tenth")
    warmup: int = threshold(2500, unit="steps", reason="s falls at first, while the surface takes shape")
    patience: int = threshold(500, unit="steps", reason="s may pause between stages")
    remedy: ClassVar[str] = (
        "A surface stays blurred when views contradict each other: check poses, masks and the axes of the normals, or "
        "raise the sharpness on a schedule (--sharpness scheduled)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding where v stayed at its initial value for `patience` steps, judged over the whole run."""
        found: list[Finding] = []
        for name in self.metrics:
            # A record that starts late does not show the sharpness at the start of the run.
            if name not in history or history[name].steps[0] >= history.first + LOOKBACK:
                continue
            series = history[name]
            low = series.values < series.values[0] + self.rise
            at = first_sustained(low, patience=self.patience, warmup=self.warmup)
            if at is not None:
                began, now = (float(np.exp(_EXPONENT * v)) for v in (series.values[0], series.values[at]))
                text = f"the sharpness began at {began:.0f} and is now {now:.0f}: it does not rise."
                found.append(self.finding(int(series.steps[at]), text, subject=name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class PosesRunAway(HealthRule):
    """Optimized poses have moved farther from their start than any plausible initial error."""

    rotation: str = "Statistics/pose_change_rotation"
    position: str = "Statistics/pose_change_position"
    degrees: float = threshold(
        30.0,
        unit="degrees",
        reason="poses this wrong are not an estimate; the noise in the paper's experiments is 5 degrees",
        source=_PMNI,
    )
    distance: float = threshold(
        1.5,
        unit="radii of the scene's sphere",
        reason="about 20 degrees around an object four units away; the noise of initial positions is 0.1",
    )
    patience: int = threshold(5, unit="recordings", reason="pose changes are recorded every tenth step")
    remedy: ClassVar[str] = (
        "Lower --lr-poses, let the surface form first (--poses-from), or start from better poses. Poses that drift "
        "together only rotate the whole scene, which is harmless: see the pose errors after alignment."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding for each phase and component in which poses were too far off for `patience` recordings."""
        found: list[Finding] = []
        for name, bound, unit in ((self.rotation, self.degrees, " degrees"), (self.position, self.distance, "")):
            for span in spans(history, name):
                at = first_sustained(span.values > bound, patience=self.patience)
                if at is not None:
                    text = f"{name} is {span.values[at]:.2g}{unit} on average, above {bound:g}{unit}."
                    found.append(self.finding(span.step(at), text, subject=name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class NormalsWorseThanNothing(results.WorseThanNothing):
    """The final normals are no better than normals that all face the camera."""

    reported_as: ClassVar[str] = "WorseThanNothing"
    away: float = threshold(
        90.0, unit="degrees", reason="random normals are 90 degrees off; above it, the axes contradict the views"
    )
    remedy: ClassVar[str] = (
        "Do not use this result. Check the axes of the normals with `fieldwatch doctor --data` and pass the right ones "
        "(--axes opengl or --axes opencv), then masks, poses and the order of the views, and the learning rate."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the findings; those above 90 degrees name the axes."""
        hint = " Above 90 degrees, the normals point away from the surface: their axes or signs are wrong."
        return tuple(
            replace(found, message=found.message + hint)
            if found.subject.startswith("Eval/mae") and history[found.subject].values[-1] > self.away
            else found
            for found in super().__call__(history)
        )


@dataclass(frozen=True, kw_only=True)
class MapsDisagree(HealthRule):
    """The normal maps are noisy, or contradict each other or the surface, so that it cannot be better than they are.

    A note on how far they can be trusted; a warning if they contradict the surface by far more than their noise, and
    training does not lessen that.
    """

    severity: ClassVar[Severity] = "note"
    difference: str = "Eval/median_error"
    smooth: str = "Eval/smooth_error"
    noise: str = "Eval/map_noise"
    rotation: str = "Eval/pose_rotation"
    degrees: float = threshold(
        2.0, unit="degrees", reason="exact maps are met to less than 1 degree after a few thousand steps"
    )
    noisy: float = threshold(
        1.5, unit="degrees", reason="about each axis; 8 bits and shape alone give less than half a degree"
    )
    contradiction: float = threshold(
        8.0,
        unit="degrees",
        reason="errors of good estimators average out below it; wrong poses, slopes or conventions do not",
        source="measured by benchmarks/verdicts.py",
    )
    settled: float = threshold(
        0.9, unit="times the first value", reason="what falls further is a surface that is still forming"
    )
    times: float = threshold(4.0, unit="times the noise", reason="noise alone leaves less in a mean of 49 pixels")
    count: int = threshold(2, unit="evaluations", reason="one alone shows no course")
    remedy: ClassVar[str] = (
        "Details below these angles are not in the result. Noise averages out with more views; errors that change "
        "slowly over the picture do not, and need better maps. After a short training, they are the surface's: raise "
        "--steps."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a note with the degrees to which normals of the surface can be trusted, at the last evaluation."""
        if self.smooth not in history or self.difference not in history:
            return ()
        smooth = float(history[self.smooth].values[-1])
        noise = float(history[self.noise].values[-1]) if self.noise in history else 0.0
        if not (smooth > self.degrees or noise >= self.noisy):
            return ()
        text = (
            f"the maps differ from the surface by {float(history[self.difference].values[-1]):.1f} degrees (median), "
            f"with {noise:.1f} degrees of noise from pixel to pixel: trust the normals of the surface, averaged over "
            f"7 x 7 pixels, to about {smooth:.1f} degrees"
        )
        if noise >= self.noisy:
            # Lengths of noise about two axes follow a Rayleigh distribution.
            single = math.sqrt(math.pi / 2) * noise
            text += f", and a single one to about {single:.0f} degrees, because the surface can follow the noise"
        text += "."
        found = self.finding(int(history[self.smooth].steps[-1]), text, subject=self.smooth)
        return (self._contradicted(history, smooth, noise) or found,)

    def _contradicted(self, history: History, smooth: float, noise: float) -> Finding | None:
        """Return a warning at the end if maps and surface contradict each other, whatever the training does."""
        series = history[self.smooth]
        still = len(series) >= self.count and smooth > self.settled * float(series.values[0])
        if not finished(history) or not still or smooth <= max(self.contradiction, self.times * noise):
            return None
        text = (
            f"the maps differ from the surface by {smooth:.1f} degrees, averaged over 7 x 7 pixels, with {noise:.1f} "
            f"degrees of noise, {float(series.values[0]):.1f} degrees at the first evaluation: normals, masks and "
            "poses contradict each other, and training does not lessen it."
        )
        remedy = (
            "Check slopes and axes of the normals (too flat or too steep, --axes, --space), the masks (the outline of "
            "the object, not a box around it), the poses and the focal length of the cameras: `fieldwatch doctor "
            "--data FOLDER --picture sheet.png`."
        )
        if self.rotation in history and float(history[self.rotation].values[-1]) > self.contradiction:
            turned = float(history[self.rotation].values[-1])
            text += f" The poses differ from those of the data by {turned:.0f} degrees."
            remedy = (
                "Start from the poses of the data: leave out --pose-start ring, or pass --pose-start dataset. If the "
                f"poses have to be found, train longer, with --preset poses. {remedy}"
            )
        found = self.finding(int(series.steps[-1]), text, subject=self.smooth, severity="warning")
        return replace(found, remedy=remedy)


_VIEW = (
    "Check normals, mask, pose and focal length of the named views (`fieldwatch doctor --data FOLDER --picture "
    "sheet.png`), and leave them out with --exclude and their numbers if their data is bad."
)


@dataclass(frozen=True, kw_only=True)
class WrongView(samples.WrongSample):
    """The losses of a few views are far above all others at the end of training, at every visit."""

    reported_as: ClassVar[str] = "WrongSample"
    remedy: ClassVar[str] = _VIEW


@dataclass(frozen=True, kw_only=True)
class WorstView(results.WorstSample):
    """At the last evaluation, the normals of a few views are far worse than those of all others."""

    reported_as: ClassVar[str] = "WorstSample"
    remedy: ClassVar[str] = _VIEW


@dataclass(frozen=True, kw_only=True)
class StageDominates(terms.TermDominates):
    """A regularizer contributes several times more to the total loss than normals and masks."""

    reported_as: ClassVar[str] = "TermDominates"
    remedy: ClassVar[str] = (
        "Lower the weight of this term in --stages until it stays below those of normal and mask (eikonal=0.1 beside "
        "normal=1 mask=1 is usual)."
    )


@dataclass(frozen=True, kw_only=True)
class GridRebuilt(HealthRule):
    """The occupancy grid had collapsed or was saturated, and was rebuilt from the field."""

    kind: str = "grid_rebuilt"
    remedy: ClassVar[str] = (
        "A single rebuild is harmless. If it recurs, check the loss and the occupied fraction before each rebuild, and "
        "lower the learning rate or keep a wider band around the surface (a lower --grid-threshold)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per rebuild."""
        found: list[Finding] = []
        for event in history.events(self.kind):
            outcome = "which restored the surface" if event.get("mended") else "which did not restore the surface"
            text = (
                f"{event.get('cause')}: the grid was rebuilt, {outcome} "
                f"(occupied cells: {event.get('before', 0):.1%} before, {event.get('after', 0):.1%} after)."
            )
            found.append(self.finding(int(event["step"]), text, subject=self.kind))
        return tuple(found)


_ADAPTED: tuple[HealthRule, ...] = (NormalsWorseThanNothing(), WrongView(), WorstView(), StageDominates())
"""General rules whose remedies name the flags of this pipeline."""

NORMALS_RULES: tuple[HealthRule, ...] = (
    *(rule for rule in GENERAL if rule.name not in {adapted.name for adapted in _ADAPTED}),
    *_ADAPTED,
    RayStarvation(),
    OccupancySaturated(),
    StarvedRays(),
    AbundantSamples(),
    SharpnessStuck(),
    PosesRunAway(),
    GridRebuilt(),
    MapsDisagree(),
    memory.MemoryGrowing(metrics=(memory.PARAMETERS,), explained_by=""),
)
"""All health rules of a normals run."""
