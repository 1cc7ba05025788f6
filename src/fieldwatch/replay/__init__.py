"""Replay: make one step of a run again, in a copy, and look at it."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.replay.look import look_at_step
    from fieldwatch.replay.scratch import check_step, known_checkpoints
    from fieldwatch.replay.variants import Change, DType, Variant, variants_of

__all__ = ["Change", "DType", "Variant", "check_step", "known_checkpoints", "look_at_step", "variants_of"]

__getattr__, __dir__ = lazy_names(__name__)
