"""Optimizers of torch that do not load its compiler."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.optimizers.eager import Adam, EagerOptimizer

__all__ = ["Adam", "EagerOptimizer"]

__getattr__, __dir__ = lazy_names(__name__)
