"""What keeps a run alive: bad updates are refused, gradients clipped, divergence declared."""

from fieldwatch.guard.clipping import Clip, clip_gradients
from fieldwatch.guard.refusals import Refusals, Streak, describe
from fieldwatch.guard.update import guarded_step
from fieldwatch.guard.verdict import Diverged, Verdict

__all__ = ["Clip", "Diverged", "Refusals", "Streak", "Verdict", "clip_gradients", "describe", "guarded_step"]
