"""Watch: a run that another process trains, live in a terminal; nothing is written, and no torch is needed."""

from fieldwatch.monitor.watch.layout import render_run
from fieldwatch.monitor.watch.newest import newest_run
from fieldwatch.monitor.watch.run_view import RunView
from fieldwatch.monitor.watch.watcher import Watcher

__all__ = ["RunView", "Watcher", "newest_run", "render_run"]
