"""Ray marching through an occupancy grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fieldwatch.health.defaults import integer, number
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.window import first_held, spans
from fieldwatch.record import History


@dataclass(frozen=True, kw_only=True)
class RayStarvation(HealthRule):
    """Rays get no samples: the occupancy grid has lost the surface."""

    severity: ClassVar[Severity] = "error"
    metrics: Sequence[str] = ("samples_per_ray", "Statistics/samples_per_ray", "Render/samples_per_ray")
    low: float = number("RayStarvation", "low")
    warmup: int = integer("RayStarvation", "warmup")
    patience: int = integer("RayStarvation", "patience")
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
    high: float = number("OccupancySaturated", "high")
    warmup: int = integer("OccupancySaturated", "warmup")
    patience: int = integer("OccupancySaturated", "patience")
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
