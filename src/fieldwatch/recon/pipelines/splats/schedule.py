"""Schedule of a splats run: nominal iterations, as in the papers, converted to steps of this run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fieldwatch import InputError, Phase, Window
from fieldwatch.recon.pipelines.splats.config import SURFACE_TERMS, SplatsConfig, prune_below
from fieldwatch.recon.pipelines.splats.densification import DensificationSchedule

COARSE_START = 7000
"""Iteration at which SuGaR's coarse stage follows 3DGS."""
BUILT_IN_SCALE = 0.2
"""Default number of steps per iteration for the built-in scene."""
MIN_DENSIFICATION_INTERVAL = 20
"""Minimum number of steps between densifications; fewer steps cover too few photos for the statistics."""
MIN_SEARCH_INTERVAL = 20
"""Minimum number of steps between neighbor searches."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Schedule of one run in steps. Steps are 0-based; counts of finished steps start at 1.

    Attributes:
        first: first step.
        total: last step + 1.
        windows: steps at which each loss term acts, by term.
        phases: named ranges of steps.
        densification: schedule of densification; None disables it.
        prune_after: step after which transparent and hidden Gaussians are pruned; None never prunes.
        neighbors_every: number of steps between neighbor searches.
        tests: counts of finished steps at which held-out photos are evaluated, including the end of training.
        saves: counts of finished steps at which an additional checkpoint is saved.
        checkpoint_every: number of steps between checkpoints; None disables periodic checkpoints.
        export_after: step after which stage 0 is exported as a 3DGS folder; None if the run has no stage 0.
        exported_as: iteration under which stage 0 is exported.
        degree_every: number of steps between increases of the SH degree; 0 uses all degrees from the start.
        scale: number of steps per iteration.
        notes: messages for the user.
    """

    first: int
    total: int
    windows: dict[str, Window]
    phases: tuple[Phase, ...]
    densification: DensificationSchedule | None
    prune_after: int | None
    neighbors_every: int
    tests: frozenset[int]
    saves: frozenset[int]
    checkpoint_every: int | None
    export_after: int | None
    exported_as: int
    degree_every: int
    scale: float
    notes: tuple[str, ...]

    def acts(self, term: str, step: int) -> bool:
        """Return whether a loss term acts at a step."""
        return term in self.windows and step in self.windows[term]

    def evaluates_or_exports_after(self, step: int) -> bool:
        """Return whether the model is evaluated or exported after this step."""
        return step + 1 in self.tests or step == self.export_after

    def due_after(self, step: int, rule: Callable[[int], bool]) -> bool:
        """Return whether a change of the Gaussians is due after this step.

        If the model is evaluated or exported after a step at which the change is due, the change is deferred to the
        next step: after a densification or reset, the model needs some hundred steps to recover and should be neither
        scored nor used as the start of another training.

        Args:
            step: current step, 0-based.
            rule: function that returns whether the change is scheduled after a step, such as
                `DensificationSchedule.densifies_after`.
        """
        if self.evaluates_or_exports_after(step):
            return False
        # Due at this step, or deferred from the directly preceding steps that were all evaluated or exported.
        while not rule(step):
            step -= 1
            if step < self.first or not self.evaluates_or_exports_after(step):
                return False
        return True

    def searches_after(self, step: int) -> bool:
        """Return whether a neighbor search starts in the background after this step."""
        return self.compares_neighbors(step) and (step + 1) % self.neighbors_every == 0

    def compares_neighbors(self, step: int) -> bool:
        """Return whether a loss term that uses neighbors acts at a step."""
        return any(self.acts(name, step) for name, term in SURFACE_TERMS.items() if term.compares_neighbors)


class NothingToTrainError(InputError):
    """The schedule contains no training step."""


def make_plan(config: SplatsConfig, loaded: int | None) -> Plan:
    """Convert the nominal iterations of a config to a plan in steps.

    Args:
        config: settings of the run.
        loaded: iteration of the loaded checkpoint; None if training starts from the point cloud.

    Raises:
        NothingToTrainError: The plan contains no step; the message names the setting to change.
    """
    scale = config.schedule_scale
    if scale is None:
        scale = BUILT_IN_SCALE if config.data is None and config.checkpoint_path is None else 1.0
    beyond = _loaded_after_end(config, loaded)
    if beyond:
        config = replace(config, schedule_origin="relative")
    to_steps = _IterationsToSteps(scale=scale, shift=_shift(config, loaded))
    # An end before the coarse stage only makes sense as a number of iterations after those of the checkpoint.
    from_loaded = loaded is not None and config.coarse_iterations < config.surface.surface_from
    end_to_steps = _IterationsToSteps(scale=scale, shift=loaded or 0) if from_loaded else to_steps
    first = to_steps.loaded(loaded)
    total = end_to_steps.steps(config.coarse_iterations)
    if total <= first:
        raise NothingToTrainError(_nothing_to_train_message(config, loaded, scale))
    return Plan(
        first=first,
        total=total,
        windows=_windows(config, to_steps, first, total, densifies=loaded is None),
        phases=_phases(config, to_steps, first, total),
        # A loaded model is not densified again: SuGaR's coarse stage starts after densification.
        densification=_densification(config, to_steps, first, total) if loaded is None else None,
        prune_after=_prune_after(config, to_steps, first, total),
        neighbors_every=max(round(config.surface.neighbors_every * scale), MIN_SEARCH_INTERVAL),
        # Test iterations are counted like the end of training; milestones always follow the schedule.
        tests=_within(end_to_steps, config.test_iterations, first, total) | {total},
        saves=_within(to_steps, config.checkpoint_milestones, first + 1, total),
        checkpoint_every=max(round(config.checkpoint_interval * scale), 1) if config.checkpoint_interval else None,
        export_after=_export_after(config, to_steps, total) if loaded is None else None,
        # The nominal iteration, by which other tools find the export.
        exported_as=min(config.surface.surface_from, config.coarse_iterations),
        degree_every=round(config.degree_every * scale),
        scale=scale,
        notes=(
            *_notes(config, loaded, to_steps, from_loaded=from_loaded),
            *([_relative_note(config, loaded)] if beyond else []),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _IterationsToSteps:
    """Conversion of nominal iterations to steps: `(iteration + shift) * scale`, rounded."""

    scale: float
    shift: int = 0

    def steps(self, iteration: int) -> int:
        return round((iteration + self.shift) * self.scale)

    def loaded(self, iteration: int | None) -> int:
        return round((iteration or 0) * self.scale)


def _loaded_after_end(config: SplatsConfig, loaded: int | None) -> bool:
    """Return whether an automatically selected checkpoint is from an iteration at or after the schedule's end."""
    ends_later = config.coarse_iterations >= config.surface.surface_from
    chosen = config.iteration_to_load is not None or config.schedule_origin == "relative"
    return loaded is not None and not chosen and ends_later and loaded >= config.coarse_iterations


def _relative_note(config: SplatsConfig, loaded: int | None) -> str:
    return (
        f"the checkpoint has no iteration before --coarse-iterations {config.coarse_iterations}: iteration {loaded} is "
        f"treated as {config.surface.surface_from}, followed by the coarse stage (--schedule-origin relative)"
    )


# With this shift, iteration `surface_from` becomes the step of the loaded iteration.
def _shift(config: SplatsConfig, loaded: int | None) -> int:
    return loaded - config.surface.surface_from if loaded is not None and config.schedule_origin == "relative" else 0


def _nothing_to_train_message(config: SplatsConfig, loaded: int | None, scale: float) -> str:
    end = config.coarse_iterations
    if loaded is None:
        return (
            f"--coarse-iterations {end} at --schedule-scale {scale:g} is less than one step: their product must be 1 "
            "or more"
        )
    return (
        f"nothing to train: the checkpoint is from iteration {loaded} and training ends at --coarse-iterations {end}; "
        f"raise --coarse-iterations above {loaded}, or add --schedule-origin relative to run the whole coarse stage "
        "from the checkpoint"
    )


def _windows(
    config: SplatsConfig, to_steps: _IterationsToSteps, first: int, total: int, *, densifies: bool
) -> dict[str, Window]:
    windows = {"rendering": Window(first, total - 1)}
    if config.growth_options.growth == "mcmc" and densifies:
        last = _densified_until(config, to_steps, total) - 1
        windows |= dict.fromkeys(("opacity", "scale"), Window(first, last))
    options = vars(config.surface)
    for name, term in SURFACE_TERMS.items():
        if config.regularization not in term.regularizations:
            continue
        # A run from a checkpoint may start in the middle of a window.
        opening = max(to_steps.steps(options[term.begins]), first)
        closing = total if term.ends is None else min(to_steps.steps(options[term.ends]), total)
        # A term that never acts gets no window, so that no health rule expects its metrics.
        if options[term.weight] > 0 and opening < closing:
            windows[name] = Window(opening, closing - 1)
    return windows


def _phases(config: SplatsConfig, to_steps: _IterationsToSteps, first: int, total: int) -> tuple[Phase, ...]:
    """Return stage 0 and the stages of the surface terms, without those outside the run."""
    if config.regularization == "none":
        return (Phase("3dgs", Window(first, total - 1)),)
    borders = [0, to_steps.steps(config.surface.surface_from), to_steps.steps(config.surface.prune_at), total]
    second = "planar" if config.regularization == "planar" else "entropy"
    # `borders` is one longer than the names: each phase ends where the next one starts.
    named = zip(("3dgs", second, "surface"), borders, borders[1:], strict=False)
    stretches = ((name, max(begin, first), min(end, total)) for name, begin, end in named)
    return tuple(Phase(name, Window(begin, end - 1)) for name, begin, end in stretches if begin < end)


def _densification(
    config: SplatsConfig, to_steps: _IterationsToSteps, first: int, total: int
) -> DensificationSchedule | None:
    options = config.growth_options
    last = _densified_until(config, to_steps, total)
    begin = max(to_steps.steps(options.growth_from), first + 1)
    if options.growth == "none" or begin > last:
        return None
    # At most `last`, so that a run shorter than the minimum interval densifies once, after `last`, instead of never.
    every = min(max(round(options.growth_every * to_steps.scale), MIN_DENSIFICATION_INTERVAL), last)
    resets = max(round(options.reset_every * to_steps.scale), 1) if options.reset_every else 0
    return DensificationSchedule(first=begin, last=last, every=every, reset_every=resets)


def _densified_until(config: SplatsConfig, to_steps: _IterationsToSteps, total: int) -> int:
    """Return the last update with densification, at the latest the start of the surface terms."""
    until = config.growth_options.growth_until
    if config.regularization != "none":
        until = min(until, config.surface.surface_from)
    # At least 1: a schedule counts finished updates.
    return max(min(to_steps.steps(until), total), 1)


def _prune_after(config: SplatsConfig, to_steps: _IterationsToSteps, first: int, total: int) -> int | None:
    if config.regularization == "none" or not (
        prune_below(config) or config.surface.prune_hidden or config.growth_options.prune_floaters
    ):
        return None
    at = to_steps.steps(config.surface.prune_at)
    # Not after the last step: the remaining Gaussians need further steps to adapt.
    return at - 1 if first < at < total else None


# A run that ends before the coarse stage exports its last step.
def _export_after(config: SplatsConfig, to_steps: _IterationsToSteps, total: int) -> int:
    return min(to_steps.steps(config.surface.surface_from), total) - 1


def _within(to_steps: _IterationsToSteps, iterations: Sequence[int], first: int, total: int) -> frozenset[int]:
    return frozenset(step for step in map(to_steps.steps, iterations) if first <= step <= total)


def _notes(config: SplatsConfig, loaded: int | None, to_steps: _IterationsToSteps, *, from_loaded: bool) -> list[str]:
    notes: list[str] = []
    if from_loaded:
        notes.append(
            f"--coarse-iterations {config.coarse_iterations} is before the coarse stage: it and the test iterations "
            f"are counted from the loaded iteration {loaded}"
        )
    surface = config.surface
    at = surface.prune_at + to_steps.shift
    if config.regularization != "none" and loaded is not None and loaded >= at and prune_below(config):
        remedy = (
            "Gaussians are pruned at the start (--prune-on-load)"
            if config.prune_on_load
            else "add --prune-on-load to prune at the start"
        )
        notes.append(
            f"loaded iteration {loaded} is after the prune at {at}, so the prune and the entropy term are skipped; "
            f"{remedy}, or use --schedule-origin relative for the whole coarse stage"
        )
    if to_steps.scale != 1:
        notes.append(f"each iteration of the schedule counts as {to_steps.scale:g} steps (--schedule-scale)")
    return notes
