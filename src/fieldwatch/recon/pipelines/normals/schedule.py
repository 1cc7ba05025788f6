"""When what happens in a normals run: nominal iterations turned into the steps of this run."""

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
    """The steps of one run. All that changes with the step is a function of it: nothing has to be remembered.

    Attributes:
        config: settings, in nominal iterations.
    """

    config: NormalsConfig

    @cached_property
    def _stages(self) -> tuple[TrainingStage, ...]:
        return self.config.parsed_stages

    @property
    def total(self) -> int:
        """Number of the step after the last one."""
        return self.config.steps

    def iteration(self, step: int) -> float:
        """Nominal iteration of a step."""
        return step * self.config.nominal / self.config.steps

    def step_of(self, iteration: float) -> int:
        """First step at or after a nominal iteration."""
        # Rounding of the product must not push an iteration that falls on a step to the next one.
        return math.ceil(iteration * self.config.steps / self.config.nominal - 1e-9)

    def weights(self, step: int) -> Mapping[str, float]:
        """Weights of the terms that count at a step."""
        return weights_at(self._stages, self.iteration(step))

    @cached_property
    def windows(self) -> dict[str, Window]:
        """Per term, the steps at which it acts, from the first to the last."""
        acting: dict[str, list[int]] = {}
        for step in self._borders():
            for term in self.weights(step):
                acting.setdefault(term, []).append(step)
        return {term: Window(acting[term][0], acting[term][-1]) for term in TERMS if term in acting}

    def _borders(self) -> list[int]:
        """Steps around the ends of stages and ramps: between two of them no weight begins or ceases to be 0."""
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
        """The stages, as stretches of steps."""
        stages = [stage for stage in self._stages if self.step_of(stage.start) < self.total]
        starts = [self.step_of(stage.start) for stage in stages]
        ends = [*starts[1:], self.total]
        named = zip(stages, starts, ends, strict=True)
        return tuple(Phase(stage.name, Window(first, end - 1)) for stage, first, end in named if first < end)

    def march_step(self, step: int) -> float:
        """Distance between samples."""
        options = self.config.rendering
        return geometric_step(step, self.total, options.first_step, options.last_step)

    def sharpness(self, step: int) -> float:
        """The s of the surface, where it is scheduled."""
        options = self.config.rendering
        return geometric_step(step, self.total, options.first_sharpness, options.last_sharpness)

    def levels(self, step: int) -> float:
        """Levels of the encoding that count."""
        options = self.config.sdf
        share = 1.0 if options.levels_by == 0 else min(self.iteration(step) / options.levels_by, 1.0)
        return options.first_levels + share * (options.levels - options.first_levels)

    def rate_factor(self, step: int) -> float:
        """Factor of all learning rates: a linear warm-up, then a cosine to the last share (NeuS)."""
        options = self.config.rates
        nominal = self.config.nominal
        at = self.iteration(step)
        if at < options.warm_up:
            return at / options.warm_up
        share = (at - options.warm_up) / max(nominal - options.warm_up, 1)
        return options.last_share + (1 - options.last_share) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))

    def learns_poses(self, step: int) -> bool:
        """Whether poses are learned at a step."""
        options = self.config.poses
        until = self.config.nominal if options.poses_until is None else options.poses_until
        return options.learned and options.poses_from <= self.iteration(step) < until

    def pose_rate(self, step: int) -> float:
        """Rate of the poses, before the factor of all rates."""
        options = self.config.rates
        return options.lr_poses if self.iteration(step) < options.poses_late_from else options.lr_poses_late

    def due(self, interval: int, done: int) -> bool:
        """Whether something that happens every so many nominal iterations is due after `done` steps."""
        if not interval:
            return False
        # A step may stand for several nominal iterations, so multiples that were passed are counted, not hit.
        return int(self.iteration(done) / interval + 1e-9) > int(self.iteration(done - 1) / interval + 1e-9)
