"""Checks of a user-written loop while it runs: modes, frozen and forgotten parameters, old gradients, detached terms.

They read flags and identities on the host. None of them changes a number of the training or draws a random one.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.run.loop_checks.checks import LoopChecks

__all__ = ["LoopChecks"]

__getattr__, __dir__ = lazy_names(__name__)
