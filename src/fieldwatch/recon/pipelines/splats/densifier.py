"""Densification, opacity resets and SuGaR's prune during a run. Each change is recorded as an event."""

import torch
from jaxtyping import Bool
from torch import Tensor

from fieldwatch import MicroBatches, Run, Step
from fieldwatch.recon.pipelines.splats.bands import band_count
from fieldwatch.recon.pipelines.splats.config import SplatsConfig, growth_cap, prune_below
from fieldwatch.recon.pipelines.splats.contribution import contributes_little
from fieldwatch.recon.pipelines.splats.densification import (
    DensificationThresholds,
    McmcOptions,
    add_sgld_noise,
    densify,
    prune,
    reference_lengths,
    relocate_and_add,
    reset_opacity,
    reset_statistics,
    transparent,
)
from fieldwatch.recon.pipelines.splats.floaters import Sightings, floaters
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.support import supported_by
from fieldwatch.recon.render import DensificationStatistics

GRADIENT_THRESHOLDS = {"signed": 2e-4, "absolute": 1e-3}
"""Default thresholds of the view-space gradient: signed from 3DGS, absolute tuned for AbsGS on short runs."""
LEAST_LEFT = 0.02
"""Minimum fraction of the Gaussians that must survive the prune; with fewer, opacities have not converged yet."""
MOST_FLOATERS = 0.2
"""Maximum fraction of the Gaussians that are removed as floaters at once."""
LARGE_AFTER = 3000
"""Iteration after which oversized Gaussians are pruned (3DGS: after the first opacity reset)."""


class Densifier:
    """Clones, splits, relocates, resets and prunes the Gaussians of one run, and records an event for each change.

    Args:
        config: settings of the run.
        scene: photos, cameras and schedule.
        model: model whose Gaussians are modified.
    """

    def __init__(self, config: SplatsConfig, scene: Scene, model: SplatModel) -> None:
        options = config.growth_options
        self._scene = scene
        self._model = model
        self._mode = options.growth
        cap = growth_cap(config)
        self._supported = None if cap is not None else supported_by(scene.photos)
        longer_side = max(max(camera.width, camera.height) for camera in scene.photos.cameras)
        self._prune_below = prune_below(config)
        self._prune_hidden = config.surface.prune_hidden
        self._prune_floaters = options.prune_floaters
        self._thresholds = DensificationThresholds(
            gradient=options.growth_pull or GRADIENT_THRESHOLDS[options.growth_gradient],
            # The radius is three standard deviations in pixels; a size of 0 disables the threshold.
            split_radius=options.split_size * longer_side or None,
            least_opacity=options.least_opacity,
            largest_scale=options.largest_size or None,
            clone_opacity=options.growth_twins,
            large_after=max(round(LARGE_AFTER * scene.plan.scale), 1),
            cap=self._supported if cap is None else cap,
        )
        # MCMC always needs a cap: without one in the config, the paper's million applies.
        self._mcmc = McmcOptions() if cap is None else McmcOptions(cap=cap)
        self._absolute = options.growth_gradient == "absolute"
        self.statistics = DensificationStatistics(len(model.gaussians), scene.device)

    def collects_statistics(self, step: int) -> bool:
        """Return whether this step's view-space gradients are used for densification."""
        schedule = self._scene.plan.densification
        return schedule is not None and self._mode == "adaptive" and schedule.collects_statistics(step)

    def needs_absgrad(self, step: int) -> bool:
        """Return whether the rasterizer must sum absolute view-space gradients at this step (AbsGS)."""
        return self._absolute and self.collects_statistics(step)

    def statistics_at(self, step: int, *, alone: bool = False) -> DensificationStatistics | None:
        """Return statistics to which the views of a step are added; None if the step's gradients are not used.

        Args:
            step: current step.
            alone: whether one view is all of the step, which is then added to the sums themselves.
        """
        if not self.collects_statistics(step):
            return None
        return self.statistics if alone else DensificationStatistics(len(self._model.gaussians), self._scene.device)

    def add(self, statistics: DensificationStatistics | None) -> None:
        """Add the statistics of all views of a step, unless they are part of the sums already."""
        if statistics is not None and statistics is not self.statistics:
            # Sums; the mean is taken over the counts when Gaussians are densified.
            self.statistics.gradients += statistics.gradients
            self.statistics.counts += statistics.counts
            # Gradients are averaged over views, but a single view that shows a Gaussian too large is enough.
            torch.maximum(self.statistics.radii, statistics.radii, out=self.statistics.radii)

    def add_sgld_noise(self, step: int, rate: float) -> None:
        """Add the SGLD noise of MCMC densification to the means, after the update; do nothing in other modes."""
        if self._mode == "mcmc" and self._scene.plan.acts("opacity", step):
            add_sgld_noise(self._model.gaussians, self._mcmc, rate)

    def densify_and_prune(self, run: Run, step: Step, evaluation_batches: MicroBatches | None = None) -> bool:
        """Densify, reset opacities or prune if due after this step.

        If the model is evaluated or exported after this step, the change is deferred to the next step.

        Args:
            run: current run; all its ranks make the same decision.
            step: current step.
            evaluation_batches: micro-batches in which the prune renders the training views; None uses one.

        Returns:
            Whether Gaussians were added, removed or relocated.
        """
        plan = self._scene.plan
        changed = False
        schedule = plan.densification
        batches = evaluation_batches or MicroBatches("evaluation", most=1)
        if schedule is not None and plan.due_after(step.index, schedule.densifies_after):
            with step.span("densify"):
                self._densify(run, step.index, schedule.last_step)
                if self._prune_floaters and plan.due_after(step.index, schedule.sweeps_after):
                    self._sweep(run, batches)
            changed = True
        # After the densification, as in 3DGS, whose prune must see the trained opacities. MCMC has no resets.
        if schedule is not None and self._mode == "adaptive" and plan.due_after(step.index, schedule.resets_after):
            with step.span("reset"):
                run.event("reset", lowered=reset_opacity(self._model.gaussians))
        if plan.due_after(step.index, lambda index: index == plan.prune_after):
            with step.span("prune"):
                self._prune(run, batches)
            changed = True
        mip = self._model.mip
        # Immediately after a change, since the filter has one width per row; otherwise periodically, as means move.
        if mip is not None and (changed or step.every(plan.neighbors_every)):
            mip.update(self._model.gaussians.means)
        return changed

    def _densify(self, run: Run, step: int, last_step: int) -> None:
        gaussians = self._model.gaussians
        cap = run.growth_cap
        if self._mode == "mcmc":
            record = relocate_and_add(gaussians, self._mcmc, cap=cap)
        else:
            lengths = reference_lengths(gaussians.means, self._scene.training_views, self._scene.extent)
            record = densify(gaussians, self.statistics, self._thresholds, step=step, reference_length=lengths, cap=cap)
        facts = record.facts(last_step)
        # Not held back by a cap that the user could raise.
        if self._supported is not None and (cap is None or cap >= self._supported):
            facts |= {"held_back": 0, "unsupported": record.held_back}
        run.event("growth", **facts)

    def _sweep(self, run: Run, evaluation_batches: MicroBatches) -> None:
        """Remove floaters only, just after a densification."""
        if self._model.mip is not None:
            # One width per row: rendering needs those of the new rows.
            self._model.mip.update(self._model.gaussians.means)
        floating = self._floating(self._sightings(run, evaluation_batches))
        if bool(floating.any()):  # else there is nothing to record
            nothing = torch.zeros_like(floating)
            self._remove(run, nothing, nothing, floating)

    def _prune(self, run: Run, evaluation_batches: MicroBatches) -> None:
        """Remove transparent, hidden and floating Gaussians."""
        gaussians = self._model.gaussians
        is_transparent = transparent(gaussians, self._prune_below)
        # All are computed before anything is removed, as removal changes what hides what.
        hidden = torch.zeros_like(is_transparent)
        floating = hidden
        if self._prune_hidden or self._prune_floaters:
            sightings = self._sightings(run, evaluation_batches)
            hidden = contributes_little(sightings.light, self._prune_hidden)
            floating = self._floating(sightings)
        self._remove(run, is_transparent, hidden, floating)

    def _remove(
        self, run: Run, is_transparent: Bool[Tensor, " n"], hidden: Bool[Tensor, " n"], floating: Bool[Tensor, " n"]
    ) -> None:
        """Remove Gaussians for one of three reasons; if too few would survive, record that and remove none."""
        gaussians = self._model.gaussians
        before = len(gaussians)
        facts = {
            "transparent": int(is_transparent.sum()),
            "hidden": int((hidden & ~is_transparent).sum()),
            "floaters": int((floating & ~is_transparent & ~hidden).sum()),
            "below": self._prune_below,
        }
        # Kept, because the photos overlap too little to tell; the rule `Floaters` reports the event.
        if facts["floaters"] > MOST_FLOATERS * before:
            facts |= {"floaters": 0, "floaters_kept": facts["floaters"]}
            floating = torch.zeros_like(floating)
        pruned = is_transparent | hidden | floating
        removed = int(pruned.sum())
        # Recorded, not raised: the run continues with all Gaussians, and the rule `PruneRefused` reports the event.
        if before - removed < LEAST_LEFT * before:
            run.event("prune", before=before, after=before, removed=0, refused=removed, **facts)
            return
        # Comparisons with NaN are false, so broken Gaussians would survive unnoticed.
        gaussians.refuse_not_finite()
        prune(gaussians, pruned)
        reset_statistics(self.statistics, len(gaussians))
        run.event("prune", before=before, after=len(gaussians), removed=removed, refused=0, **facts)

    def _floating(self, sightings: Sightings) -> Bool[Tensor, " n"]:
        if not self._prune_floaters:
            return torch.zeros_like(sightings.photos, dtype=torch.bool)
        means = self._model.gaussians.means.detach()
        return floaters(means, sightings.photos, self._scene.training_views, self._prune_floaters)

    def _sightings(self, run: Run, evaluation_batches: MicroBatches) -> Sightings:
        """Return which training photos show each Gaussian; ranks share the photos."""
        views = self._scene.training_views

        # Reads the number of micro-batches at each call: `retry` raises it after an out-of-memory error.
        def of_local_views() -> Sightings:
            return Sightings.of_local(self._model, views, run.ranks, band_count(evaluation_batches.count))

        return run.retry(of_local_views, evaluation_batches).over_ranks(run.ranks)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the statistics accumulated since the last densification."""
        return self.statistics.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the statistics of a checkpoint."""
        self.statistics.load_state_dict(state)
