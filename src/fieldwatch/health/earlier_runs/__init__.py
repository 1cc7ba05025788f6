"""Comparison of a finished run with earlier runs of the same program on the same data."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.health.earlier_runs.candidates import comparable_runs
    from fieldwatch.health.earlier_runs.comparison import EARLIER_RUN, better_earlier_run

__all__ = [
    "EARLIER_RUN",
    "better_earlier_run",
    "comparable_runs",
]

__getattr__, __dir__ = lazy_names(__name__)
