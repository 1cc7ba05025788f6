"""Adapters for frameworks that run the training loop themselves; each is imported, with its framework, at first use."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.adapters.accelerate_tracker import AccelerateTracker
    from fieldwatch.adapters.lightning_callback import LightningCallback
    from fieldwatch.adapters.transformers_callback import TransformersCallback

__all__ = ["AccelerateTracker", "LightningCallback", "TransformersCallback"]

__getattr__, __dir__ = lazy_names(__name__)
