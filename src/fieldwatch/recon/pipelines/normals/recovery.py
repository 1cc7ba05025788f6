"""Recovery from a lost surface: rebuild the grid, roll back to the last good state, or stop the run."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from fieldwatch import Diverged, Run, Step
from fieldwatch.recon.pipelines.normals.config import RecoveryOptions
from fieldwatch.recon.pipelines.normals.delayed_counts import DelayedNumbers
from fieldwatch.recon.pipelines.normals.learning import NormalsOptimizers
from fieldwatch.recon.pipelines.normals.loss_monitor import LossMonitor
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.render import Cells, CollapseDetector

JUDGE_EVERY = 5
"""Steps between checks of losses and refusals, so that refusals are handled before the run's limit of ten in a row."""
JUDGE_EVERY_ON_GPU = 4
"""The same on a GPU, whose numbers arrive a step later: the nine refusals that are the most before a rollback include
the four that a check just misses, those until the next check, and that of the step in which its numbers arrive."""
REFUSED = 5
"""Number of consecutive refused updates that is more than a bad batch."""
JUMP = 10.0
"""Ratio of a loss to its usual value above which the surface is lost; a bad batch stays below it and passes."""
LATTICE = 16
"""Lattice points along each axis at which statistics of the field are computed."""
FIELD_EVERY = 100
"""Steps between records of the field statistics, as in PMNI's log."""
GUARD = "Guard/refused"
"""Tag under which the toolkit records refused updates."""
SURFACE = 0.5
"""Minimum occupancy of a cell that contains a part of the surface."""


class FieldStatistics(NamedTuple):
    """Minimum, maximum and mean of a field on a lattice of points, and the fraction of points inside."""

    lowest: float
    highest: float
    mean: float
    inside: float


class Recovery:
    """Watches a run for a lost surface, and recovers it.

    It detects: rays in the mask without samples from the grid for `collapse_patience` consecutive steps; a grid in
    which no cell can hold the surface, or none is outside of it; a loss above `JUMP` times its usual value for as many
    steps; and `REFUSED` consecutive refused updates. For the first two, the grid is rebuilt from the field, up to
    `rebuilds` times. If that does not help, and for the other two, the run is rolled back to the last good state with
    halved learning rates, up to `rollbacks` times. Then the run stops with a diagnosis. A new good state resets these
    counts.

    Rays without samples at the start of a run do not mean a lost surface: the surface is then a sphere, smaller than
    many objects, and grows by the stratified samples of empty rays. They count only after the first calm stretch.

    A good state is a copy of the model and its optimizers, kept in memory every `good_every` steps while nothing is
    wrong; each one also doubles learning rates that were halved. The step count and the ray generator are not rolled
    back, so other rays are sampled after a rollback.

    Args:
        options: bounds and counts.
        model: model to watch.
        learning: its optimizers and learning rates.
        good_every: steps between good states.
    """

    def __init__(
        self, options: RecoveryOptions, model: NormalsModel, learning: NormalsOptimizers, good_every: int
    ) -> None:
        self._options = options
        self._model = model
        self._learning = learning
        self._good_every = max(good_every, 1)
        self._starved = CollapseDetector(options.collapse_share, options.collapse_patience)
        self._losses = LossMonitor(JUMP)
        # Computed once: the cells of the grid do not change during a run.
        self._within = _within_the_sphere(model.grid.config.cells, model.grid.values.device)
        self._one_within = int(self._within.byte().argmax())
        self._good = self._snapshot()
        self._good_step = 0
        self._calm_steps = 0
        self._counts_from = 0
        self._saturation_reported = False
        self._had_samples = False
        self._occupied = 1.0
        self._lost = ""
        self._grid_numbers = DelayedNumbers()
        self._attempts = {"rebuilds": 0, "rollbacks": 0}
        self.total = {"rebuilds": 0, "rollbacks": 0}

    def after_update(self, run: Run, step: Step, *, starved: float) -> None:
        """Check a step after `step.update`, and recover if necessary.

        Args:
            run: run, for the events.
            step: step, which records the recovery metrics.
            starved: fraction of the rays in the mask that the grid gave no samples.

        Raises:
            Diverged: recovery failed; the message has the diagnosis, the attempts and advice.
        """
        grid = self._model.grid
        self._losses.judge_arrived()
        self._losses.observe(*_losses_of(step))
        # Only after grid updates: in between, its values are unchanged, and reading them would sync with the device.
        # A GPU's numbers arrive a step later, when the host need not wait for them.
        arrived = self._grid_numbers.take()
        if arrived is not None:
            self._judge_grid(*arrived)
            self._report_saturation(run, step.index)
        if step.index % grid.config.every == 0:
            if grid.faults is None:
                self._check_grid(run, step.index)
            else:
                self._grid_numbers.put(self._numbers_of_grid(grid.faults))
        if step.every(JUDGE_EVERY_ON_GPU if grid.values.is_cuda else JUDGE_EVERY):
            self._losses.judge()
        starving = self._starved.observe(starved) and self._had_samples
        troubled = self._starved.bad_steps or self._losses.high or self._losses.refused or self._lost
        self._calm_steps = 0 if troubled or starving else self._calm_steps + 1
        # After `starving` is set, so that the step that completes the first calm stretch is not judged by it.
        self._had_samples |= self._calm_steps >= self._options.collapse_patience
        # The text is the cause; multiplied by False it is empty, which means no cause.
        self._answer(run, step.index, starving=f"{starved:.0%} of the rays in the mask had no samples" * starving)
        # After `_answer`, which ends the calm stretch: a state that needed recovery is not kept as good.
        if self._is_good(step.index):
            self._good = self._snapshot()
            self._good_step = step.index + 1
            self._counts_from = step.index + 1
            self._attempts = dict.fromkeys(self._attempts, 0)
            self._learning.rate_factor = min(2 * self._learning.rate_factor, 1.0)
        self._record(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, the learning rate factor and the good state itself."""
        counts = {"good_step": self._good_step, "calm": self._calm_steps, "since": self._counts_from}
        flags = {"told": self._saturation_reported, "served": self._had_samples}
        return {
            "starved": self._starved.state_dict(),
            "losses": self._losses.state_dict(),
            "good": self._good,
            "counts": counts,
            "flags": flags,
            "grid": {"occupied": self._occupied, "lost": self._lost} | self._grid_numbers.state_dict(),
            "tries": dict(self._attempts),
            "total": dict(self.total),
            "factor": self._learning.rate_factor,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state and the learning rate factor."""
        self._starved.load_state_dict(state["starved"])
        self._losses.load_state_dict(state["losses"])
        self._good = _copied(state["good"])
        counts = state["counts"]
        self._good_step, self._calm_steps, self._counts_from = (
            int(counts[name]) for name in ("good_step", "calm", "since")
        )
        self._saturation_reported, self._had_samples = (bool(state["flags"][name]) for name in ("told", "served"))
        self._occupied = float(state["grid"]["occupied"])
        self._lost = str(state["grid"]["lost"])
        self._grid_numbers.load_state_dict(state["grid"])
        self._attempts = dict(state["tries"])
        self.total = dict(state["total"])
        self._learning.rate_factor = float(state["factor"])

    def _answer(self, run: Run, index: int, *, starving: str) -> None:
        # Causes that a new grid cannot fix take precedence over those it may fix.
        cause = self._cause_for_rollback()
        if cause:
            self._roll_back(run, index, cause)
        elif starving or self._lost:
            self._rebuild(run, index, starving or self._lost)

    def _cause_for_rollback(self) -> str:
        """Return a cause that a new grid does not fix, or an empty text."""
        losses = self._losses
        if losses.refused >= REFUSED:
            return f"{losses.refused} updates in a row were refused because a loss or gradient was not finite"
        if losses.high >= self._options.collapse_patience:
            return f"the loss was {losses.worst:.3g} times its usual value, above {JUMP:g} for {losses.high} steps"
        return ""

    def _rebuild(self, run: Run, index: int, cause: str) -> None:
        """Rebuild the grid; roll back if the rebuilds are used up, or if the field itself has no surface."""
        if self._attempts["rebuilds"] >= self._options.rebuilds:
            self._roll_back(run, index, cause)
            return
        before = self._occupied
        self._rebuild_from_field()
        self._count("rebuilds", index)
        run.event("grid_rebuilt", cause=cause, before=before, after=self._occupied, mended=not self._lost)
        if self._lost:
            self._roll_back(run, index, self._lost)

    def _roll_back(self, run: Run, index: int, cause: str) -> None:
        if self._attempts["rollbacks"] >= self._options.rollbacks:
            raise Diverged(self._diagnosis(run, index, cause), index)
        self._restore()
        # The rays are drawn again, but the same learning rate would probably lose the surface again.
        self._learning.rate_factor *= 0.5
        # The grid of the good state may already have been about to lose the surface.
        self._rebuild_from_field()
        self._count("rollbacks", index)
        facts = {"from": index + 1, "to": self._good_step, "rate_factor": self._learning.rate_factor}
        run.event("rolled_back", cause=cause, **facts)

    def _count(self, kind: str, index: int) -> None:
        self._attempts[kind] += 1
        self.total[kind] += 1
        self._calm_steps = 0
        self._counts_from = index + 1
        self._losses.reset()
        self._starved.bad_steps = 0

    def _is_good(self, index: int) -> bool:
        """Return whether to keep the state after this step: one is due, the run is calm, all values are finite."""
        # In this order, because `_finite` syncs with the device: it runs only when a good state is due.
        due = index + 1 - self._counts_from >= self._good_every and self._calm_steps >= self._options.collapse_patience
        return due and _finite(self._model)

    def _snapshot(self) -> dict[str, Any]:
        optimizers = {name: optimizer.state_dict() for name, optimizer in self._learning.optimizers().items()}
        return _copied({"model": self._model.state_dict(), "optimizers": optimizers})

    def _restore(self) -> None:
        good = _copied(self._good)  # an optimizer keeps writing to the tensors it loads
        self._model.load_state_dict(good["model"])
        for name, optimizer in self._learning.optimizers().items():
            optimizer.load_state_dict(good["optimizers"][name])

    def _rebuild_from_field(self) -> None:
        model = self._model
        model.grid.rebuild(model.sdf, model.deviation)
        self._grid_numbers.take()  # they are of the grid before
        self._read_grid()

    def _check_grid(self, run: Run, index: int) -> None:
        """Read the grid after an update, and report once if it is saturated."""
        self._read_grid()
        self._report_saturation(run, index)

    def _report_saturation(self, run: Run, index: int) -> None:
        # During the warm-up the grid is full on purpose.
        settled = index >= self._model.grid.config.warmup
        if settled and self._occupied > self._options.saturated_share and not self._saturation_reported:
            self._saturation_reported = True
            run.event("grid_saturated", occupied=self._occupied, bound=self._options.saturated_share)

    @torch.no_grad()
    def _numbers_of_grid(self, faults: Int32[Tensor, "1"]) -> Float[Tensor, "4"]:
        """Return largest and smallest value within the sphere, the share of occupied cells, and fault bits."""
        grid = self._model.grid
        values = grid.values.view(-1)
        # In place of cells beyond the sphere, a value from within it.
        lowest, highest = torch.where(self._within, values, values[self._one_within]).aminmax()
        return torch.cat([highest[None], lowest[None], grid.occupied_fraction[None], faults])

    def _read_grid(self) -> None:
        # Corners of the box are never reached by rays, and their occupancy is arbitrary.
        grid = self._model.grid
        values = grid.values.view(-1)[self._within]
        # A single device-to-host transfer for all three values.
        self._judge_grid(*torch.stack([values.max(), values.min(), grid.occupied_fraction]).tolist())

    def _judge_grid(self, highest: float, lowest: float, occupied: float, faults: float = 0) -> None:
        if faults:
            raise ValueError("the field has values that are not finite in the grid's box: those cells were not changed")
        self._occupied = occupied
        self._lost = ""
        if highest < SURFACE:
            self._lost = "no cell of the grid can hold the surface"
        elif lowest >= SURFACE:
            self._lost = "no cell of the grid is outside of the surface"

    def _record(self, step: Step) -> None:
        numbers = {
            "Recovery/rebuilds": self.total["rebuilds"],
            "Recovery/rollbacks": self.total["rollbacks"],
            "Recovery/rate_factor": self._learning.rate_factor,
        }
        if step.every(FIELD_EVERY):
            tags = ("Statistics/sdf_min", "Statistics/sdf_max", "Statistics/sdf_mean")
            # Tensors of a GPU are recorded without a read: the writer reads them later.
            step.record(dict(zip(tags, field_numbers(self._model).unbind()[:3], strict=True)))
        step.record(numbers)

    def _diagnosis(self, run: Run, index: int, cause: str) -> str:
        model = self._model
        total = self.total
        statistics = field_statistics(self._model)
        last = max(run.checkpoints.steps(), default=0)
        return (
            f"step {index}: {cause}. Diagnosis: {_meaning(statistics)}; f ranges from {statistics.lowest:.3g} to "
            f"{statistics.highest:.3g} in the box, {statistics.inside:.1%} of it inside, {self._occupied:.1%} of the "
            f"grid is occupied, s = {model.sharpness:.4g}. Attempts: {total['rebuilds']} grid rebuilds, "
            f"{total['rollbacks']} rollbacks to the last good state (after {self._good_step} steps), learning rates at "
            f"{self._learning.rate_factor:g} of the schedule. Check masks and cameras (`fieldwatch doctor --data`), "
            "then train with a lower --lr, a higher mask weight in the first stages, or a later --poses-from. The last "
            f"checkpoint is at step {last} (`fieldwatch resume {run.folder}`)"
        )


def field_statistics(model: NormalsModel) -> FieldStatistics:
    """Return statistics of the field on a lattice of points in its box."""
    return FieldStatistics(*field_numbers(model).tolist())


@torch.no_grad()
def field_numbers(model: NormalsModel) -> Float[Tensor, "4"]:
    """Return minimum, maximum and mean of the field on a lattice of points in its box, and the fraction inside."""
    box = model.grid.config.cells
    device = model.grid.values.device
    lattice = Cells(resolution=LATTICE, low=box.low, high=box.high)
    points = lattice.centers(torch.arange(lattice.count, device=device))
    if points.is_cuda and model.sdf.fits_gpu(points):
        # The lattice is inside the box: its fault bits need no read.
        values, _ = model.sdf.on_gpu(points, None, torch.zeros(1, dtype=torch.int32, device=device), sloped=False)
    else:
        values = model.sdf(points)
    inside = (values < 0).to(values.dtype).mean()
    return torch.stack([values.min(), values.max(), values.mean(), inside])


def _meaning(statistics: FieldStatistics) -> str:
    # Comparisons with NaN are false, so `lowest > highest` would miss it.
    if not statistics.lowest <= statistics.highest:
        return "the field is not finite"
    if statistics.lowest > 0:
        return "the field is positive everywhere, the surface is gone"
    if statistics.highest < 0:
        return "the field is negative everywhere, it has turned inside out"
    return "the field has a surface, but not where the rays are sampled"


def _losses_of(step: Step) -> tuple[dict[str, float], dict[str, Tensor], Tensor]:
    """Return weights and values of a step's terms, and whether `step.update` refused the update."""
    terms = step.terms
    values = {name: value for name, (_, value) in terms.items()}
    weights: dict[str, float] = {}
    on_device: dict[str, Tensor] = {}
    for name, (weight, _) in terms.items():
        if isinstance(weight, Tensor):
            on_device[name] = weight
        else:
            weights[name] = weight
    if on_device:  # summed over ranks; one host read for all
        weights |= zip(on_device, torch.stack(list(on_device.values())).tolist(), strict=True)
    return weights, values, step.values[GUARD]


def _within_the_sphere(cells: Cells, device: torch.device) -> Bool[Tensor, " cells"]:
    """Return the cells that rays can reach; corners of the box are outside the scene's sphere and never trained."""
    return cells.centers(torch.arange(cells.count, device=device)).norm(dim=-1) < 1


def _finite(model: NormalsModel) -> bool:
    return bool(torch.stack([torch.isfinite(parameter).all() for parameter in model.parameters()]).all())


def _copied(tree: Any) -> Any:
    """Return a deep copy of a tree of mappings, lists and tensors."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, Mapping):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_copied(value) for value in tree)
    return tree
