"""Health rules of normals runs: the occupancy grid, rays that find nothing, the sharpness, and learned poses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fieldwatch import GENERAL, Finding, History
from fieldwatch.rules import LOOKBACK, HealthRule, Severity, first_held, memory, on_steps, spans, threshold

_NEUS = "https://arxiv.org/abs/2106.10689"
"""NeuS, Wang et al. 2021."""
_PMNI = "https://arxiv.org/abs/2504.08410"
"""PMNI, Pei et al. 2025."""

_EXPONENT = 10.0
"""The sharpness is exp(10 v), and v is what is recorded (NeuS)."""


@dataclass(frozen=True, kw_only=True)
class RayStarvation(HealthRule):
    """Rays get no samples: the occupancy grid has lost the surface."""

    severity: ClassVar[Severity] = "error"
    metrics: Sequence[str] = ("samples_per_ray", "Statistics/samples_per_ray", "Render/samples_per_ray")
    low: float = threshold(
        0.0, unit="samples per ray", reason="no samples at all: the grid has collapsed; about 3 is healthy"
    )
    warmup: int = threshold(0, unit="recordings", reason="a collapsed grid never recovers by itself")
    patience: int = threshold(8, unit="recordings", reason="one view without samples recovers")
    remedy: ClassVar[str] = (
        "Rebuild the occupancy grid from the present field without its moving average, sample such rays uniformly, or "
        "go back to the last checkpoint with half the learning rate."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where rays had been without samples for too long."""
        found: list[Finding] = []
        for span in spans(history, *self.metrics):
            at = first_held(span.values <= self.low, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = f"{span.name} is {span.values[at]:g}: the occupancy grid has collapsed, rays have no samples."
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class OccupancySaturated(HealthRule):
    """Every cell of the occupancy grid counts as occupied: no empty space is skipped."""

    metrics: Sequence[str] = ("occupied_frac", "Statistics/occupied_frac", "Render/occupied_frac")
    high: float = threshold(
        0.75,
        unit="share of cells",
        reason="an object that fills the sphere in the box occupies 0.6 of it: the inside counts as well",
    )
    warmup: int = threshold(500, unit="recordings", reason="the grid starts full and thins out in the first 500 steps")
    patience: int = threshold(8, unit="recordings", reason="a rebuilt grid is full for a moment")
    remedy: ClassVar[str] = (
        "Raise the occupancy threshold (tie it to the cell size), cap the samples per batch, and check that the field "
        "has a surface at all."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where the grid had been full for too long."""
        found: list[Finding] = []
        for span in spans(history, *self.metrics):
            at = first_held(span.values >= self.high, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = f"{span.name} is {span.values[at]:g}: the occupancy grid is saturated."
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class StarvedRays(HealthRule):
    """Many rays that see the object get no samples of the grid: there is no surface where they look for it."""

    metrics: Sequence[str] = ("Statistics/starved_share",)
    high: float = threshold(
        0.25, unit="share of rays", reason="a quarter of the object is not found; beyond a half the run itself reacts"
    )
    warmup: int = threshold(
        500, unit="steps", reason="the surface starts as a sphere and has yet to grow into the whole mask"
    )
    patience: int = threshold(100, unit="steps", reason="hard views come and go")
    remedy: ClassVar[str] = (
        "Look at the newest mesh beside the masks. Parts that are missing: more weight of the mask, a larger --radius "
        "of the sphere at the start. A surface elsewhere: poses, masks or scale do not belong to each other "
        "(`fieldwatch doctor --data`)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per phase, where too many rays had been without samples for too long."""
        found: list[Finding] = []
        for span in spans(history, *self.metrics):
            at = first_held(span.values > self.high, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = (
                    f"{span.values[at]:.0%} of the rays in the mask find no surface (more than {self.high:.0%} for "
                    f"{self.patience} steps)."
                )
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class AbundantSamples(HealthRule):
    """Rays get many times the samples that a surface of this sharpness and step needs.

    The surface is seen within about 8 / s on both sides, so a ray needs 16 / s divided by the step, whatever the step
    is: a bound on the number of samples itself would only fit one setting.
    """

    severity: ClassVar[Severity] = "note"
    samples: str = "Statistics/samples_per_ray"
    step: str = "Statistics/step_size"
    sharpness: str = "Statistics/s"
    ratio: float = threshold(
        20.0,
        unit="times the need",
        reason=(
            "coarse grids and grazing rays take up to 5 times the need on the built-in scene with grids of "
            "16 to 64 cells"
        ),
    )
    band: float = threshold(
        16.0, unit="1 / s", reason="S(-8) = 0.03 % of a ray's opacity is left at 8 / s on either side", source=_NEUS
    )
    warmup: int = threshold(500, unit="steps", reason="the field is no distance yet")
    patience: int = threshold(50, unit="steps", reason="single views may graze the surface")
    remedy: ClassVar[str] = (
        "Empty space is sampled: a grid that is nearly full or coarse (--grid-resolution), or a field that is no "
        "distance (raise the weight of the eikonal term, look at its value)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per phase, where rays had been given too much for too long."""
        if self.step not in history or self.sharpness not in history:
            return ()
        found: list[Finding] = []
        for span in spans(history, self.samples):
            steps = span.series.steps
            step = on_steps(history[self.step], steps)
            v = on_steps(history[self.sharpness], steps)
            needed = self.band * np.exp(-_EXPONENT * v) / step
            at = first_held(span.values > self.ratio * needed, patience=self.patience, warmup=self.warmup)
            if at is not None:
                text = (
                    f"{span.values[at]:.0f} samples per ray, where a surface this sharp needs about {needed[at]:.0f}."
                )
                found.append(self.finding(span.step(at), text, subject=span.name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class SharpnessStuck(HealthRule):
    """The surface has not become sharper since the run began."""

    metrics: Sequence[str] = ("Statistics/s",)
    rise: float = threshold(0.01, unit="v", reason="with this rise s has grown by a tenth")
    warmup: int = threshold(2500, unit="steps", reason="s falls at first, while the surface looks for its place")
    patience: int = threshold(500, unit="steps", reason="s may pause between stages")
    remedy: ClassVar[str] = (
        "Views contradict each other, and blur is the best answer to that: check poses, axes of the normals and masks; "
        "or raise it by schedule (--sharpness scheduled)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return where v had been no higher than at the start for too long; judged over the whole run."""
        found: list[Finding] = []
        for name in self.metrics:
            if name not in history or history[name].steps[0] >= history.first + LOOKBACK:
                continue
            series = history[name]
            low = series.values < series.values[0] + self.rise
            at = first_held(low, patience=self.patience, warmup=self.warmup)
            if at is not None:
                began, now = (float(np.exp(_EXPONENT * v)) for v in (series.values[0], series.values[at]))
                text = f"the sharpness of the surface began at {began:.0f} and is {now:.0f}: it does not rise."
                found.append(self.finding(int(series.steps[at]), text, subject=name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class PosesRunAway(HealthRule):
    """Learned poses have moved farther from where they started than a guess is ever off."""

    rotation: str = "Statistics/pose_change_rotation"
    position: str = "Statistics/pose_change_position"
    degrees: float = threshold(
        30.0,
        unit="degrees",
        reason="a start this far off is no estimate; the noise in the paper's experiments is 5 degrees",
        source=_PMNI,
    )
    distance: float = threshold(
        1.5,
        unit="radii of the scene's sphere",
        reason="20 degrees about the object, four units away; the noise of a start is 0.1",
    )
    patience: int = threshold(5, unit="recordings", reason="poses are recorded every tenth step")
    remedy: ClassVar[str] = (
        "Lower --lr-poses, let the surface form first (--poses-from), or start from better poses; poses that drift "
        "together turn the whole scene and do no harm, see the pose errors after alignment."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per phase and part, where poses had been too far off for too long."""
        found: list[Finding] = []
        for name, bound, unit in ((self.rotation, self.degrees, " degrees"), (self.position, self.distance, "")):
            for span in spans(history, name):
                at = first_held(span.values > bound, patience=self.patience)
                if at is not None:
                    text = f"{name} is {span.values[at]:.2g}{unit} on average: more than {bound:g}{unit}."
                    found.append(self.finding(span.step(at), text, subject=name))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class GridRebuilt(HealthRule):
    """The occupancy grid had collapsed or was full, and was made anew from the field."""

    kind: str = "grid_rebuilt"
    remedy: ClassVar[str] = (
        "Once is no harm. Again and again: look at the loss and the occupied share before it, and lower the learning "
        "rate or keep more around the surface (a lower --grid-threshold)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return each time."""
        found: list[Finding] = []
        for event in history.events(self.kind):
            ends = "which mended it" if event.get("mended") else "which did not mend it"
            text = (
                f"{event.get('cause')}: the grid was made anew, {ends} "
                f"({event.get('before', 0):.1%} of it was occupied, now {event.get('after', 0):.1%})."
            )
            found.append(self.finding(int(event["step"]), text, subject=self.kind))
        return tuple(found)


NORMALS_RULES: tuple[HealthRule, ...] = (
    *GENERAL,
    RayStarvation(),
    OccupancySaturated(),
    StarvedRays(),
    AbundantSamples(),
    SharpnessStuck(),
    PosesRunAway(),
    GridRebuilt(),
    memory.MemoryGrowing(metrics=(memory.PARAMETERS,), explained_by=""),
)
"""The rules of a normals run."""
