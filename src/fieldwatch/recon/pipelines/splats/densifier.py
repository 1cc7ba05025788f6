"""Densification, the opacity reset and SuGaR's prune: where the number of Gaussians changes; each leaves an event."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch import MicroBatches, Run, Step
from fieldwatch.recon.pipelines.splats.bands import band_count
from fieldwatch.recon.pipelines.splats.config import SplatsConfig, growth_cap, prune_below
from fieldwatch.recon.pipelines.splats.contribution import largest_share, next_to_nothing
from fieldwatch.recon.pipelines.splats.densification import (
    DensityControl,
    Sampling,
    add_sgld_noise,
    grow,
    prune,
    resample,
    reset_opacity,
    restart,
    transparent,
    yardsticks,
)
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.render import DensificationStatistics

PULLS = {"signed": 2e-4, "absolute": 1e-3}
"""Gradients on the image from which Gaussians grow: 3DGS's, and what suits AbsGS's on short runs."""
LEAST_LEFT = 0.02
"""Share of the Gaussians that has to stay when the transparent ones go: with fewer, opacities have not settled yet."""
LARGE_AFTER = 3000
"""Iteration after which Gaussians that are too large are pruned (3DGS: after the first opacity reset)."""


class Densification:
    """Clones, splits, relocates, resets and prunes the Gaussians of one run.

    Every method that changes Gaussians says so, and records an event.

    Args:
        config: settings.
        scene: what is trained on, and the plan.
        model: whose Gaussians change.
    """

    def __init__(self, config: SplatsConfig, scene: Scene, model: SplatModel) -> None:
        options = config.growth_options
        self._scene = scene
        self._model = model
        self._growth = options.growth
        cap = growth_cap(config)
        longer_side = max(max(camera.width, camera.height) for camera in scene.photos.cameras)
        self._below = prune_below(config)
        self._least_light = config.surface.prune_hidden
        self._control = DensityControl(
            pull=options.growth_pull or PULLS[options.growth_gradient],
            split_radius=options.split_size * longer_side or None,
            least_opacity=options.least_opacity,
            largest=options.largest_size or None,
            twins=options.growth_twins,
            large_after=max(round(LARGE_AFTER * scene.plan.scale), 1),
            cap=cap,
        )
        self._sampling = Sampling() if cap is None else Sampling(cap=cap)
        self._absolute = options.growth_gradient == "absolute"
        self.statistics = DensificationStatistics(len(model.gaussians), scene.device)

    def collects(self, step: int) -> bool:
        """Whether this step's view-space gradients count for densification."""
        growth = self._scene.plan.growth
        return growth is not None and self._growth == "adaptive" and growth.collects(step)

    def magnitudes(self, step: int) -> bool:
        """Whether absolute gradients have to be summed at this step."""
        return self._absolute and self.collects(step)

    def new_statistics(self, step: int) -> DensificationStatistics | None:
        """Return empty statistics for the views of a step; None where the step's gradients do not count."""
        return DensificationStatistics(len(self._model.gaussians), self._scene.device) if self.collects(step) else None

    def add(self, statistics: DensificationStatistics | None) -> None:
        """Add the statistics of all views of a step."""
        if statistics is not None:
            self.statistics.gradients += statistics.gradients
            self.statistics.counts += statistics.counts
            torch.maximum(self.statistics.radii, statistics.radii, out=self.statistics.radii)

    def add_sgld_noise(self, step: int, rate: float) -> None:
        """Add the noise of MCMC growth to the means, after the update; nothing with other growth."""
        if self._growth == "mcmc" and self._scene.plan.acts("opacity", step):
            add_sgld_noise(self._model.gaussians, self._sampling, rate)

    def densify_and_prune(self, run: Run, step: Step, evaluation_batches: MicroBatches | None = None) -> bool:
        """Densify, reset opacities or prune, if due after this step; return whether Gaussians came, went or moved.

        After a step whose model is evaluated or exported nothing changes: the change follows one step later.

        Args:
            run: whose processes decide alike.
            step: the present one.
            evaluation_batches: micro-batches in which the prune renders the training views; None: one.
        """
        plan = self._scene.plan
        changed = False
        growth = plan.growth
        if growth is not None and plan.due_after(step.index, growth.grows_after):
            with step.span("densify"):
                self._grow(run, step.index, growth.growth_until)
            changed = True
        resets = growth is not None and self._growth == "adaptive" and plan.due_after(step.index, growth.resets_after)
        if resets:
            run.event("reset", lowered=reset_opacity(self._model.gaussians))
        if plan.due_after(step.index, lambda index: index == plan.prune_after):
            self._prune(run, evaluation_batches or MicroBatches("evaluation", most=1))
            changed = True
        mip = self._model.mip
        if mip is not None and (changed or step.every(plan.neighbours_every)):
            mip.renew(self._model.gaussians.means)
        return changed

    def _grow(self, run: Run, step: int, until: int) -> None:
        gaussians = self._model.gaussians
        cap = run.growth_cap
        if self._growth == "mcmc":
            record = resample(gaussians, self._sampling, cap=cap)
        else:
            lengths = yardsticks(gaussians.means, self._scene.training_views, self._scene.extent)
            record = grow(gaussians, self.statistics, self._control, step=step, yardstick=lengths, cap=cap)
        run.event("growth", **record.facts(until))

    def _prune(self, run: Run, evaluation_batches: MicroBatches) -> None:
        """Remove transparent Gaussians; refused, and said, where too few would stay to go on with."""
        gaussians = self._model.gaussians
        before = len(gaussians)
        clear = transparent(gaussians, self._below)
        hidden = self._hidden(run, evaluation_batches)
        doomed = clear | hidden
        facts = {"transparent": int(clear.sum()), "hidden": int((hidden & ~clear).sum()), "below": self._below}
        removed = int(doomed.sum())
        if before - removed < LEAST_LEFT * before:
            run.event("prune", before=before, after=before, removed=0, refused=removed, **facts)
            return
        gaussians.refuse_not_finite()
        prune(gaussians, doomed)
        restart(self.statistics, len(gaussians))
        run.event("prune", before=before, after=len(gaussians), removed=removed, refused=0, **facts)

    def _hidden(self, run: Run, evaluation_batches: MicroBatches) -> Bool[Tensor, " n"]:
        """Tell which Gaussians add next to nothing to any training photo; every process looks at some of those."""
        if not self._least_light:
            return torch.zeros(len(self._model.gaussians), dtype=torch.bool, device=self._scene.device)
        ranks = run.ranks
        views = self._scene.training_views

        def own() -> Float[Tensor, " n"]:
            return largest_share(self._model, views[ranks.rank :: ranks.world], band_count(evaluation_batches.count))

        found = run.retry(own, evaluation_batches)
        rows = found.new_zeros(ranks.world, len(found))  # sums know no maximum: each has a row of its own
        rows[ranks.rank] = found
        ranks.sum([rows])
        return next_to_nothing(rows.amax(0), self._least_light)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the statistics collected since the last densification."""
        return self.statistics.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take it over."""
        self.statistics.load_state_dict(state)
