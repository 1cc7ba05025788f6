"""A surface that is learned as a signed distance: rays that find nothing, and what a run did to get it back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fieldwatch.health.defaults import integer, number
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.window import LOOKBACK, first_held, on_steps, spans
from fieldwatch.record import History

_EXPONENT = 10.0
"""The sharpness is exp(10 v), and v is what is recorded (NeuS)."""


@dataclass(frozen=True, kw_only=True)
class StarvedRays(HealthRule):
    """Many rays that see the object get no samples of the grid: there is no surface where they look for it."""

    metrics: Sequence[str] = ("Statistics/starved_share",)
    high: float = number("StarvedRays", "high")
    warmup: int = integer("StarvedRays", "warmup")
    patience: int = integer("StarvedRays", "patience")
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
    ratio: float = number("AbundantSamples", "ratio")
    band: float = number("AbundantSamples", "band")
    warmup: int = integer("AbundantSamples", "warmup")
    patience: int = integer("AbundantSamples", "patience")
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
            step, v = on_steps(history[self.step], steps), on_steps(history[self.sharpness], steps)
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
    rise: float = number("SharpnessStuck", "rise")
    warmup: int = integer("SharpnessStuck", "warmup")
    patience: int = integer("SharpnessStuck", "patience")
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
    degrees: float = number("PosesRunAway", "degrees")
    distance: float = number("PosesRunAway", "distance")
    patience: int = integer("PosesRunAway", "patience")
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


@dataclass(frozen=True, kw_only=True)
class RolledBack(HealthRule):
    """The run went back to its last good state; it goes on at half the rate, or without the bad updates."""

    kind: str = "rolled_back"
    remedy: ClassVar[str] = (
        "Look at what changed shortly before it (a stage, a rate, a view); if it comes again, train with a lower "
        "learning rate from the start."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return each time."""
        return tuple(
            self.finding(
                int(event["step"]),
                f"{event.get('cause')}: the run went back from {event.get('from')} steps to the state after "
                f"{event.get('to')}, {_what_changed(event)}.",
                subject=self.kind,
            )
            for event in history.events(self.kind)
        )


def _what_changed(event: Mapping[str, Any]) -> str:
    if "rate_factor" in event:
        return f"its rates are now {event['rate_factor']:g} of the schedule's"
    skipped = event.get("skipped")
    return f"the updates of steps {skipped[0]} to {skipped[1]} are skipped" if skipped else "no update is skipped"


@dataclass(frozen=True, kw_only=True)
class ValidationFailed(HealthRule):
    """An evaluation, a mesh or a picture could not be made; the training went on."""

    kind: str = "validation_failed"
    remedy: ClassVar[str] = (
        "Read the traceback in the file that is named. Out of memory: fewer points at a time (--chunk of `fieldwatch "
        "train normals`), or a coarser mesh. The training itself was not touched."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return each failure."""
        return tuple(
            self.finding(
                int(event["step"]),
                f"{event.get('what', 'validation')} failed: {event.get('reason')} (see {event.get('file')}).",
                subject=str(event.get("what", self.kind)),
            )
            for event in history.events(self.kind)
        )
