"""`live`: a view of a run in the output of a cell, which a thread updates while the run trains."""

import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, final, runtime_checkable

from fieldwatch.base import InputError
from fieldwatch.base.cell import Html
from fieldwatch.monitor.notebook.output import run_card, run_line
from fieldwatch.monitor.watch import Watcher

SHORTEST = 0.2
"""Shortest time between two updates, seconds."""
_READING = 0.2
# The view may take at most this fraction of the time between two updates, so that the training keeps its speed.
_SHARE = 0.02
_LONGEST = 60.0
_JOIN = 5.0


@runtime_checkable
class InFolder(Protocol):
    """Anything with a folder, such as a run."""

    folder: Path


@final
class LiveView:
    """A view of a run in the output of a cell. Created by :func:`live`.

    The view reads the run folder, in which the run writes its record anyway: it changes nothing about the training.
    """

    def __init__(self, folder: Path, every: float) -> None:
        self.folder = folder
        self._every = every
        self._watcher = Watcher(folder)
        self._closing = threading.Event()
        self._shown = _Shown()
        self._began = False
        self._thread = threading.Thread(target=self._work, name="fieldwatch-live", daemon=True)

    def start(self) -> Self:
        """Show the run, and update the view until the run has ended or the view is closed."""
        self._update()
        self._thread.start()
        return self

    def close(self) -> None:
        """Show the run a last time, and end the updates; may be called repeatedly."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(_JOIN)
        # The end of the run is written after the loop; the thread may have been asleep.
        if not self._thread.is_alive():
            self._update()
            self._watcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _repr_html_(self) -> None:
        """Return nothing: the view is shown already, in the cell that created it."""

    def __repr__(self) -> str:
        return f"live({str(self.folder)!r})"

    def _update(self) -> bool:
        """Show the current state; return whether more is to come."""
        view = self._watcher.refresh(_READING)
        self._began |= not view.state.ended
        self._shown.show(run_card(view), run_line(view))
        # A run of an earlier cell has ended: the one of this cell goes on in its folder.
        return view.reading or not (view.state.ended and self._began)

    def _work(self) -> None:
        try:
            cost = 0.0
            while not self._closing.wait(min(max(self._every, cost / _SHARE), _LONGEST)):
                before = time.thread_time()
                if not self._update():
                    return
                cost = time.thread_time() - before
        except Exception:  # noqa: BLE001  thread border: printed; a view must not end the training
            sys.stderr.write(f"fieldwatch: the live view of {self.folder} ended:\n{traceback.format_exc()}")


class _Shown:
    """An output of a cell that can be replaced; without a notebook, lines on standard output."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = ""

    def show(self, html: Html, line: str) -> None:
        # The same text again would only grow the traffic to the browser.
        if html == self._last:
            return
        self._last = html
        bundle = {"text/html": str(html), "text/plain": line}
        if self._handle is not None:
            self._handle.update(bundle, raw=True)
            return
        display = _display()
        if display is None:
            sys.stdout.write(f"{line}\n")
        else:
            self._handle = display(bundle, raw=True, display_id=True)


def _display() -> Any:
    """Return IPython's `display` inside of a notebook; None outside."""
    # Only a notebook has imported IPython: whoever has no notebook does not need the package.
    shell = sys.modules.get("IPython")
    if shell is None or shell.get_ipython() is None:
        return None
    return shell.display.display


def live(run: InFolder | Path | str, *, every: float = 2.0) -> LiveView:
    """Show a run in the output of this cell, and update it while the run trains; nothing waits for it.

    Without a notebook, it prints a line per update. The view ends with the run, with the block of a ``with`` statement,
    or with ``close()``::

        with live("runs/bear"), Run("runs/bear") as run:
            ...

    Args:
        run: a run, or a run folder, which need not exist yet.
        every: seconds between two updates; longer if an update takes more than a fiftieth of them.

    Raises:
        InputError: ``every`` is too short.
    """
    if not every >= SHORTEST:
        raise InputError(f"live(every={every:g}): expected {SHORTEST} or more seconds between two updates, e.g. 2")
    folder = run if isinstance(run, str | Path) else run.folder
    return LiveView(Path(folder), every).start()
