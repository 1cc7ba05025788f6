"""Refuse non-finite updates, clip gradients, and detect divergence."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.guard.clipping import Clip, clip_gradients
    from fieldwatch.guard.divergence import Rollback, TrainingDivergence
    from fieldwatch.guard.refusals import SCALER_SKIPPED, SKIPPED, Refusals, Streak, describe_refusal
    from fieldwatch.guard.spikes import Spikes
    from fieldwatch.guard.state import (
        describe_non_finite,
        moment_norms,
        rate_tensors,
        settings_finite,
        state_norms,
    )
    from fieldwatch.guard.update import StateCopy, forget_steps, guarded_step, parameters_finite, prefer_fused
    from fieldwatch.guard.verdict import Diverged, Verdict

__all__ = [
    "SCALER_SKIPPED",
    "SKIPPED",
    "Clip",
    "Diverged",
    "Refusals",
    "Rollback",
    "Spikes",
    "StateCopy",
    "Streak",
    "TrainingDivergence",
    "Verdict",
    "clip_gradients",
    "describe_non_finite",
    "describe_refusal",
    "forget_steps",
    "guarded_step",
    "moment_norms",
    "parameters_finite",
    "prefer_fused",
    "rate_tensors",
    "settings_finite",
    "state_norms",
]

__getattr__, __dir__ = lazy_names(__name__)
