"""Memory forecast: when memory runs out as the model grows, and growth that the model does not explain (leaks)."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.health.forecast.exhaustion import Forecast, forecast
    from fieldwatch.health.forecast.fit import MemoryModel
    from fieldwatch.health.forecast.growth import Growth
    from fieldwatch.health.forecast.leak import Leak, find_leaks
    from fieldwatch.health.forecast.trace import GrowthTrace, MemoryTrace, capacity

__all__ = [
    "Forecast",
    "Growth",
    "GrowthTrace",
    "Leak",
    "MemoryModel",
    "MemoryTrace",
    "capacity",
    "find_leaks",
    "forecast",
]

__getattr__, __dir__ = lazy_names(__name__)
