"""``fieldwatch watch RUN``: display a run that another process trains, live in the terminal."""

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import tyro
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import BadInput, print_json, reading_input
from fieldwatch.health import exit_code
from fieldwatch.monitor.watch import RunView, Watcher, newest_run, render_run
from fieldwatch.record import Terminal, read_manifest

LATEST = "latest"
RUNS = Path("runs")
SHORTEST = 0.1
LONGEST = 30.0
SHARE = 0.02
"""Largest fraction of one core used for refreshing: after an expensive refresh the pause is longer."""
PIPED_LINES = 60
"""Height of a view that is printed to a pipe, lines."""
# Longest time per refresh for reading rows, seconds: a long record fills in over several refreshes.
_READING = 0.5
# Lines left for the shell prompt below a view that stays on the screen.
_PROMPT = 2


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Watch a run that another process trains, live; also works on a finished or crashed run. Nothing is written.

    Example: fieldwatch watch runs/bunny

    Displays progress, losses and their fractions, gradients, quality, memory with a forecast, speed, checkpoints and
    findings, in as many lines as the terminal has. It exits when the run ends; Ctrl-C stops watching and does not
    affect the run. If the output is a pipe, one view is printed. NO_COLOR is respected.

    Exit codes: 0 after Ctrl-C; else those of `fieldwatch health`: 0 if nothing is worse than a note, 1 with warnings,
    errors or a run that hangs, 3 if the run failed, diverged or was killed; 2 if there is no such run.
    """

    run: tyro.conf.Positional[str] = LATEST
    """Run folder; by default, or with latest, the most recently written run under runs/."""
    interval: float = 1.0
    """Seconds between refreshes, at least 0.1; increased automatically if they would take more than 2 % of a core."""
    once: bool = False
    """Print one view and exit."""
    json: bool = False
    """Print the current state as one JSON object, and nothing else on standard output."""
    wait: bool = False
    """Wait for a run that does not exist yet, and keep watching after it ends, since it may be resumed."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch watch", arguments=arguments)
    if not (math.isfinite(chosen.interval) and chosen.interval >= SHORTEST):
        raise BadInput(f"--interval {chosen.interval:g}: expected {SHORTEST} or more seconds between refreshes, e.g. 1")
    try:
        with ending_by_signal(), Watcher(_folder(chosen)) as watcher, reading_input():
            return _watch(watcher, chosen)
    except KeyboardInterrupt:
        return 0


def _folder(chosen: Arguments) -> Path:
    """Return the run folder to watch; with ``--wait``, block until there is one.

    Raises:
        BadInput: there is no run, and ``--wait`` is not given.
    """
    if chosen.run != LATEST or Path(LATEST).exists():
        if not chosen.wait:
            with reading_input():
                read_manifest(chosen.run)
        return Path(chosen.run)
    while (newest := newest_run(RUNS)) is None:
        if not chosen.wait:
            raise BadInput(
                f"there is no run under {RUNS.resolve()}: give the run folder, or wait for the first run with --wait"
            )
        time.sleep(chosen.interval)
    return newest


def _watch(watcher: Watcher, chosen: Arguments) -> int:
    console = Terminal(highlight=False)
    # A dumb terminal has no cursor control: a live view would scroll endlessly.
    if chosen.once or chosen.json or not console.is_terminal or console.is_dumb_terminal:
        view = watcher.refresh()
        # Only reached with --wait: without it, a folder that holds no run was refused before.
        while view.state.word == "not started":
            time.sleep(chosen.interval)
            view = watcher.refresh()
        if chosen.json:
            print_json(view.as_json())
        else:
            console.print(_rendered(view, console, whole=True), no_wrap=True, overflow="crop")
        return status_of(view)
    # Ctrl-C may arrive before the first refresh: there must be a view to print.
    last = watcher.refresh(0.0)
    try:
        for last in _live(watcher, console, chosen.interval):
            if last.state.ended and not last.reading and not chosen.wait:
                break
    finally:
        # The live view disappears with the alternate screen: leave the last one on the normal screen.
        console.print(_rendered(last, console, whole=True), no_wrap=True, overflow="crop")
    return status_of(last)


def status_of(view: RunView) -> int:
    """Return the exit code for a view: that of `fieldwatch health`, and at least 1 for a run that hangs."""
    # A hung run may have no finding yet.
    status = exit_code(view.findings, stopped=view.state.broken)
    return max(status, int(view.state.word == "hung"))


def _live(watcher: Watcher, console: Console, interval: float) -> Iterator[RunView]:
    """Refresh the run on the alternate screen; yield each view after it is displayed."""
    with resizing() as resized, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            # Processor time, not wall time: waiting for the disk or the terminal is no load.
            began = time.process_time()
            view = watcher.refresh(_READING)
            live.update(_rendered(view, console), refresh=True)
            cost = time.process_time() - began
            yield view
            # While old rows are still being read, continue at once.
            if not view.reading:
                resized.wait(min(max(interval, cost / SHARE), LONGEST))
            resized.clear()


def _rendered(view: RunView, console: Console, *, whole: bool = False) -> Text:
    """Render a view for the current terminal size; ``whole`` leaves room for the prompt below it."""
    # A pipe has no height.
    height = console.height - _PROMPT * whole if console.is_terminal else PIPED_LINES
    ascii_only = not console.encoding.lower().startswith("utf")
    return render_run(view, width=console.width, height=height, ascii_only=ascii_only)


@contextmanager
def resizing() -> Iterator[threading.Event]:
    """Yield an event that is set when the terminal is resized, so that the view is redrawn at once."""
    event = threading.Event()
    # Windows has no SIGWINCH, and Python allows signal handlers in the main thread only.
    number = getattr(signal, "SIGWINCH", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(number, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(number, before)


@contextmanager
def ending_by_signal() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the terminal leaves the alternate screen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # An exception unwinds rich's screen; the default action of SIGTERM would leave the terminal in it.
    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
