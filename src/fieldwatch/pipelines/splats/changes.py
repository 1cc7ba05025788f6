"""Where the number of Gaussians changes: growth, the opacity reset, SuGaR's prune; each leaves an event."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch import Parts, Run, Step
from fieldwatch.pipelines.splats.config import SplatsConfig, growth_cap, prune_below
from fieldwatch.pipelines.splats.contribution import largest_share
from fieldwatch.pipelines.splats.growth import (
    DensityControl,
    Sampling,
    grow,
    prune,
    resample,
    reset_opacity,
    restart,
    shake,
    transparent,
)
from fieldwatch.pipelines.splats.model import SplatModel
from fieldwatch.pipelines.splats.scene import Scene
from fieldwatch.pipelines.splats.shown import Shown
from fieldwatch.render import ScreenTally

PULLS = {"signed": 2e-4, "absolute": 1e-3}
"""Gradients on the image from which Gaussians grow: 3DGS's, and what suits AbsGS's on short runs."""
LEAST_LEFT = 0.02
"""Share of the Gaussians that has to stay when the transparent ones go: with fewer, opacities have not settled yet."""
LARGE_AFTER = 3000
"""Iteration after which Gaussians that are too large are pruned (3DGS: after the first opacity reset)."""


class Changes:
    """Growth and pruning of one run. Every method that changes Gaussians says so, and records an event.

    Args:
        config: settings.
        scene: what is trained on, and the plan.
        model: whose Gaussians change.
    """

    def __init__(self, config: SplatsConfig, scene: Scene, model: SplatModel) -> None:
        options = config.growth_options
        self._scene, self._model, self._growth = scene, model, options.growth
        cap = growth_cap(config)
        longer_side = max(max(camera.width, camera.height) for camera in scene.photos.cameras)
        self._below, self._least_light = prune_below(config), config.surface.prune_hidden
        self._control = DensityControl(
            pull=options.growth_pull or PULLS[options.growth_gradient],
            split_radius=options.split_size * longer_side or None,
            least_opacity=options.least_opacity,
            twins=options.growth_twins,
            large_after=max(round(LARGE_AFTER * scene.plan.scale), 1),
            cap=cap,
        )
        self._sampling = Sampling() if cap is None else Sampling(cap=cap)
        self._absolute = options.growth_gradient == "absolute"
        self.tally = ScreenTally(len(model.gaussians), scene.device)

    def looks(self, step: int) -> bool:
        """Whether this step's gradients on the image count for growth."""
        growth = self._scene.plan.growth
        return growth is not None and self._growth == "adaptive" and growth.collects(step)

    def magnitudes(self, step: int) -> bool:
        """Whether absolute gradients have to be summed at this step."""
        return self._absolute and self.looks(step)

    def fresh_tally(self, step: int) -> ScreenTally | None:
        """Make what a step's views are to be added to; None where growth does not look at this step."""
        return ScreenTally(len(self._model.gaussians), self._scene.device) if self.looks(step) else None

    def look(self, shown: Shown) -> None:
        """Take note of what pulled at the Gaussians in a step; of all its views."""
        if shown.tally is not None:
            self.tally.pulls += shown.tally.pulls
            self.tally.sightings += shown.tally.sightings
            torch.maximum(self.tally.radii, shown.tally.radii, out=self.tally.radii)

    def shake(self, step: int, rate: float) -> None:
        """Add the noise of MCMC growth, after the update."""
        if self._growth == "mcmc" and self._scene.plan.acts("opacity", step):
            shake(self._model.gaussians, self._sampling, rate)

    def apply(self, run: Run, step: Step, looks: Parts | None = None) -> bool:
        """Grow, reset or prune, if due after this step; return whether Gaussians came, went or moved.

        Args:
            run: whose processes decide alike.
            step: the present one.
            looks: in how many bands the training views are drawn where the prune looks at them; None: in one.
        """
        plan, changed = self._scene.plan, False
        growth = plan.growth
        if growth is not None and growth.grows_after(step.index):
            with step.span("densify"):
                self._grow(run, step.index, growth.growth_until)
            changed = True
        if growth is not None and self._growth == "adaptive" and growth.resets_after(step.index):
            run.event("reset", lowered=reset_opacity(self._model.gaussians))
        if step.index == plan.prune_after:
            self._prune(run, looks or Parts("evaluation", most=1))
            changed = True
        mip = self._model.mip
        if mip is not None and (changed or step.every(plan.neighbours_every)):
            mip.renew(self._model.gaussians.means)
        return changed

    def _grow(self, run: Run, step: int, until: int) -> None:
        gaussians, cap = self._model.gaussians, run.growth_cap
        if self._growth == "mcmc":
            record = resample(gaussians, self._sampling, cap=cap)
        else:
            record = grow(gaussians, self.tally, self._control, step=step, extent=self._scene.extent, cap=cap)
        run.event("growth", **record.facts(until))

    def _prune(self, run: Run, looks: Parts) -> None:
        """Remove transparent Gaussians; refused, and said, where too few would stay to go on with."""
        gaussians = self._model.gaussians
        before = len(gaussians)
        clear, hidden = transparent(gaussians, self._below), self._hidden(run, looks)
        doomed = clear | hidden
        facts = {"transparent": int(clear.sum()), "hidden": int((hidden & ~clear).sum()), "below": self._below}
        removed = int(doomed.sum())
        if before - removed < LEAST_LEFT * before:
            run.event("prune", before=before, after=before, removed=0, refused=removed, **facts)
            return
        gaussians.refuse_not_finite()
        prune(gaussians, doomed)
        restart(self.tally, len(gaussians))
        run.event("prune", before=before, after=len(gaussians), removed=removed, refused=0, **facts)

    def _hidden(self, run: Run, looks: Parts) -> Bool[Tensor, " n"]:
        """Tell which Gaussians add next to nothing to any training photo; every process looks at some of those."""
        if not self._least_light:
            return torch.zeros(len(self._model.gaussians), dtype=torch.bool, device=self._scene.device)
        ranks, views = run.ranks, self._scene.training_views

        def own() -> Float[Tensor, " n"]:
            with self._model.in_parts(looks.count):
                return largest_share(self._model, views[ranks.rank :: ranks.world])

        found = run.attempts.result(looks, own)
        rows = found.new_zeros(ranks.world, len(found))  # sums know no maximum: each has a row of its own
        rows[ranks.rank] = found
        ranks.sum([rows])
        return rows.amax(0) < self._least_light

    def state_dict(self) -> dict[str, Tensor]:
        """Return what growth has seen since the last time."""
        return self.tally.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take it over."""
        self.tally.load_state_dict(state)
