"""Runs in notebooks: a run as the output of a cell, and a view that follows it while it trains; needs no torch."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.monitor.notebook.live_view import LiveView, live
    from fieldwatch.monitor.notebook.output import run_card, run_line

__all__ = ["LiveView", "live", "run_card", "run_line"]

__getattr__, __dir__ = lazy_names(__name__)
