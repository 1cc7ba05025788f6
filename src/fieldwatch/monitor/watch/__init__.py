"""Live view of a run in a terminal, from another process; nothing is written, and torch is not needed."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.monitor.watch.layout import render_run
    from fieldwatch.monitor.watch.newest import newest_run
    from fieldwatch.monitor.watch.run_view import RunView
    from fieldwatch.monitor.watch.watcher import Watcher

__all__ = ["RunView", "Watcher", "newest_run", "render_run"]

__getattr__, __dir__ = lazy_names(__name__)
