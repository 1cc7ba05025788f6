"""Optimizers and learning rates of a normals run: Adam for the field and, if they are optimized, for the poses."""

from torch.optim import Optimizer

from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule
from fieldwatch.recon.render.sdf_gpu import OneLaunchAdam

TABLE_BETAS = (0.9, 0.99)
TABLE_EPS = 1e-15
"""Adam's settings for the hash table, most of whose rows have no gradient in most steps (Mueller 2022, section 4)."""


class NormalsOptimizers:
    """Optimizers and learning rates of a run, and the other model settings that follow the schedule.

    Args:
        config: settings of the run.
        model: model to train, on its device.
        plan: schedule of the run.

    Attributes:
        rate_factor: multiplier of all learning rates in addition to the schedule; a rollback halves it.
    """

    def __init__(self, config: NormalsConfig, model: NormalsModel, plan: NormalsSchedule) -> None:
        self._config = config
        self._model = model
        self._plan = plan
        self.rate_factor = 1.0
        rates = config.rates
        groups = model.groups()
        # The deviation is absent if the sharpness is scheduled.
        network = [*groups["network"], *groups.get("deviation", [])]
        table = {"params": groups["table"], "betas": TABLE_BETAS, "eps": TABLE_EPS, "name": "table"}
        # In the order of the parameter groups below, whose learning rates are set in every step.
        self._base = [rates.lr_table or rates.lr, rates.lr]
        # Fused: on a GPU the kernel itself then skips a refused update, without a device-to-host sync (decision 0004).
        parameters = [table, {"params": network, "name": "network"}]
        self.field = OneLaunchAdam(parameters, rates.lr)
        learned = model.poses.learned_parameters()
        of_poses = [{"params": learned, "name": "poses"}]
        fused = True if groups["table"][0].is_cuda else None
        self.poses = OneLaunchAdam(of_poses, rates.lr_poses, fused=fused) if learned else None

    def prepare(self, step: int) -> None:
        """Set the learning rates, encoding levels and scheduled sharpness of a step."""
        plan = self._plan
        factor = self.rate_factor * plan.rate_factor(step)
        for group, base in zip(self.field.param_groups, self._base, strict=True):
            group["lr"] = factor * base
        if self.poses is not None:
            self.poses.param_groups[0]["lr"] = factor * plan.pose_rate(step)
            # Frozen poses spare the renderer the backward pass to rays and points.
            self._model.poses.freeze(frozen=not plan.learns_poses(step))
        self._model.sdf.activate(plan.levels(step))
        if self._config.rendering.sharpness == "scheduled":
            # After a resume or rollback this also corrects the restored value.
            self._model.set_sharpness(plan.sharpness(step))

    def active(self, step: int) -> tuple[Optimizer, ...]:
        """Return the optimizers that update parameters at this step."""
        if self.poses is None or not self._plan.learns_poses(step):
            return (self.field,)
        return (self.field, self.poses)

    def clip(self, step: int) -> dict[str, float] | None:
        """Return the maximum gradient norm of each group at a step, or None if nothing is clipped."""
        rates = self._config.rates
        # Poses have a separate limit, and a frozen group has no gradient to clip.
        limits = dict.fromkeys((name for name in self._model.groups() if name != "poses"), rates.clip)
        if self.poses is not None and self._plan.learns_poses(step):
            limits["poses"] = rates.clip_poses
        return {name: limit for name, limit in limits.items() if limit} or None

    def optimizers(self) -> dict[str, Optimizer]:
        """Return all optimizers by their names in checkpoints."""
        optimizers = {"field_optimizer": self.field, "pose_optimizer": self.poses}
        return {name: optimizer for name, optimizer in optimizers.items() if optimizer is not None}
