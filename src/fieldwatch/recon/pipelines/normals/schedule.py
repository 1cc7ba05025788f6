"""Schedule of a normals run: converts nominal iterations to the steps of the run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fieldwatch import Phase, Window
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.stages import TERMS, TrainingStage, weights_at
from fieldwatch.recon.render import geometric_step


@dataclass(frozen=True, kw_only=True)
class NormalsSchedule:
    """Everything that changes over a run, as a function of the step, so there is no state to checkpoint.

    Attributes:
        config: settings, in nominal iterations.
    """

    config: NormalsConfig

    @cached_property
    def _stages(self) -> tuple[TrainingStage, ...]:
        return self.config.parsed_stages

    @property
    def total(self) -> int:
        """Total number of steps."""
        return self.config.steps

    def iteration(self, step: int) -> float:
        """Return the nominal iteration of a step."""
        return step * self.config.nominal / self.config.steps

    def step_of(self, iteration: float) -> int:
        """Return the first step at or after a nominal iteration."""
        # Rounding must not move an iteration that coincides with a step to the next step.
        return math.ceil(iteration * self.config.steps / self.config.nominal - 1e-9)

    def weights(self, step: int) -> Mapping[str, float]:
        """Return the weights of the active terms at a step."""
        return weights_at(self._stages, self.iteration(step))

    @cached_property
    def windows(self) -> dict[str, Window]:
        """Window of steps in which each term is active, from the first to the last."""
        acting: dict[str, list[int]] = {}
        for step in self._borders():
            for term in self.weights(step):
                acting.setdefault(term, []).append(step)
        return {term: Window(acting[term][0], acting[term][-1]) for term in TERMS if term in acting}

    def _borders(self) -> list[int]:
        """Return the steps around the ends of stages and ramps; in between, no term becomes active or inactive."""
        steps: set[int] = set()
        ends = [*(stage.start for stage in self._stages[1:]), self.config.nominal]
        for stage, end in zip(self._stages, ends, strict=True):
            for iteration in (stage.start, stage.start + stage.ramp, end):
                # A ramp starts at the weight before: a term that begins acts from the step after the ramp's start,
                # and one that ends to the step before its end.
                steps |= {self.step_of(iteration) + offset for offset in (-1, 0, 1)}
        return sorted(step for step in steps if 0 <= step < self.total)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Stages as windows of steps."""
        stages = [stage for stage in self._stages if self.step_of(stage.start) < self.total]
        starts = [self.step_of(stage.start) for stage in stages]
        ends = [*starts[1:], self.total]
        named = zip(stages, starts, ends, strict=True)
        return tuple(Phase(stage.name, Window(first, end - 1)) for stage, first, end in named if first < end)

    def march_step(self, step: int) -> float:
        """Return the distance between samples at a step, in units of the scene's sphere."""
        options = self.config.rendering
        return geometric_step(step, self.total, options.first_step, options.last_step)

    def sharpness(self, step: int) -> float:
        """Return the scheduled sharpness s at a step."""
        options = self.config.rendering
        return geometric_step(step, self.total, options.first_sharpness, options.last_sharpness)

    def levels(self, step: int) -> float:
        """Return the number of active encoding levels at a step."""
        options = self.config.sdf
        # 0 activates all levels from the start.
        share = 1.0 if options.levels_by == 0 else min(self.iteration(step) / options.levels_by, 1.0)
        return options.first_levels + share * (options.levels - options.first_levels)

    def rate_factor(self, step: int) -> float:
        """Return the factor of all learning rates: a linear warm-up, then a cosine decay to ``last_share`` (NeuS)."""
        options = self.config.rates
        nominal = self.config.nominal
        iteration = self.iteration(step)
        if iteration < options.warm_up:
            return iteration / options.warm_up
        share = (iteration - options.warm_up) / max(nominal - options.warm_up, 1)
        return options.last_share + (1 - options.last_share) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))

    def most_rays_per_view(self, step: int) -> int | None:
        """Return the maximum number of rays per view at a step; None for no limit."""
        options = self.config.rays
        return options.warm_up_rays if self.iteration(step) < options.warm_up_rays_until else None

    def learns_poses(self, step: int) -> bool:
        """Return whether poses are optimized at a step."""
        options = self.config.poses
        # None means until the end of training.
        until = self.config.nominal if options.poses_until is None else options.poses_until
        return options.learned and options.poses_from <= self.iteration(step) < until

    def pose_rate(self, step: int) -> float:
        """Return the learning rate of the poses before the common factor."""
        options = self.config.rates
        return options.lr_poses if self.iteration(step) < options.poses_late_from else options.lr_poses_late

    def due(self, interval: int, done: int) -> bool:
        """Return whether something with an interval of nominal iterations is due after ``done`` steps."""
        if not interval:
            return False
        # A step may cover several nominal iterations, so this compares counts of passed multiples.
        return int(self.iteration(done) / interval + 1e-9) > int(self.iteration(done - 1) / interval + 1e-9)
