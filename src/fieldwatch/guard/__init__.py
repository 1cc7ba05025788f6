"""What keeps a run alive: bad updates are refused, gradients clipped, divergence declared."""

from fieldwatch.guard.clipping import Clip, clip_gradients
from fieldwatch.guard.divergence import Rollback, Trouble
from fieldwatch.guard.refusals import SKIPPED, Refusals, Streak, describe
from fieldwatch.guard.spikes import Spikes
from fieldwatch.guard.state import name_poisoned, rate_tensors, state_sizes, usable
from fieldwatch.guard.update import forget_steps, guarded_step, prefer_fused
from fieldwatch.guard.verdict import Diverged, Verdict

__all__ = [
    "SKIPPED",
    "Clip",
    "Diverged",
    "Refusals",
    "Rollback",
    "Spikes",
    "Streak",
    "Trouble",
    "Verdict",
    "clip_gradients",
    "describe",
    "forget_steps",
    "guarded_step",
    "name_poisoned",
    "prefer_fused",
    "rate_tensors",
    "state_sizes",
    "usable",
]
