"""Progress of many scenes: a live table in a terminal, one line per change in a log file."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live as LiveTable
from rich.table import Table
from rich.text import Text

from fieldwatch.base import number
from fieldwatch.many import PlannedScene, SceneStatus

COLORS = {"healthy": "green", "warnings": "yellow", "findings": "bold yellow", "stopped": "yellow", "running": "cyan"}
FAILED = "bold red"
ROWS = 40
"""Number of scenes in the live table; finished scenes are left out first."""
LINE_EVERY = 30.0
"""Seconds between two lines about a running scene whose state does not change."""


def print_plan(console: Console, scenes: Sequence[PlannedScene], out: Path) -> None:
    """Print the plan: resources and command of each scene."""
    for scene in scenes:
        parts = [f"{scene.cpus:g} cpus"]
        parts += [f"{scene.gpus:g} gpus"] if scene.gpus else []
        parts += [f"{scene.memory_gib:g} GiB"] if scene.memory_gib else []
        parts += [f"{scene.retries} retries"]
        parts += [f"at most {scene.timeout:g} s"] if scene.timeout else []
        console.print(Text.assemble((scene.name, "bold"), f"  {', '.join(parts)}"), soft_wrap=True)
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in scene.env.items())
        line = shlex.join(("fieldwatch", *scene.command(out / scene.name)))
        console.print(Text(f"    {variables}{line}"), soft_wrap=True)
    console.print(f"{len(scenes)} scenes, nothing was started (--dry-run)")


class SceneReporter:
    """Displays the state of all scenes. Use it as a context manager, and call it with every update.

    Args:
        console: console to print to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._table = LiveTable(console=console, auto_refresh=False) if console.is_terminal else None
        self._printed: dict[str, tuple[str, int]] = {}
        self._rendered_at = 0.0
        self._lines: dict[str, float] = {}
        self._speeds: dict[str, AttemptSpeed] = {}

    def __enter__(self) -> Self:
        """Start the live table."""
        if self._table is not None:
            self._table.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the last state on the screen."""
        if self._table is not None:
            self._table.stop()

    def __call__(self, statuses: Sequence[SceneStatus]) -> None:
        """Display the current state of the scenes."""
        now = time.monotonic()
        # Speeds are estimated from the updates.
        for status in statuses:
            if status.state == "running":
                self._speeds.setdefault(status.scene.name, AttemptSpeed()).at(
                    status.live.step, now, len(status.attempts)
                )
        if self._table is not None:
            # At most two renders per second, but always the final state.
            if now - self._rendered_at > 0.5 or not any(status.open for status in statuses):
                self._table.update(self._status_table(statuses), refresh=True)
                self._rendered_at = now
            return
        for status in statuses:
            self._line(status, now)

    def print_summary(self, statuses: Sequence[SceneStatus]) -> None:
        """Print the result of every scene, and the cause of every failed attempt."""
        # A live table already shows the final state; a log file has none yet.
        if self._table is None:
            self._console.print(self._status_table(statuses, len(statuses)))
        for status in statuses:
            for attempt in status.attempts:
                if attempt.cause:
                    line = f"  {status.scene.name}, try {attempt.number}: {attempt.cause}"
                    self._console.print(Text(line), soft_wrap=True)

    def _line(self, status: SceneStatus, now: float) -> None:
        name = status.scene.name
        state = (status.state, len(status.attempts))
        # A line per change of state, and one every LINE_EVERY seconds as a sign of life.
        quiet = now - self._lines.get(name, now) < LINE_EVERY or status.state != "running"
        if self._printed.get(name, ("waiting", 0)) == state and quiet:
            self._lines.setdefault(name, now)
            return
        self._printed[name] = state
        self._lines[name] = now
        last = status.attempts[-1] if status.attempts and status.state != "running" else None
        why = f": {last.cause}" if last is not None and last.cause else ""
        line = f"{name}: {status.state}, {_steps(status)}, try {_attempt_number(status)}{why}"
        self._console.print(Text(line), soft_wrap=True)

    def _status_table(self, statuses: Sequence[SceneStatus], rows: int = ROWS) -> Table:
        table = Table()
        for column in ("scene", "state", "step", "time left", "loss", "tries"):
            table.add_column(column, justify="left" if column in ("scene", "state") else "right")
        # The sort is stable: open scenes first; the table then keeps the order of the plan.
        listed = sorted(statuses, key=lambda status: not status.open)[:rows]
        for status in [status for status in statuses if status in listed]:
            color = COLORS.get(status.state, "" if status.open else FAILED)
            loss = status.live.loss
            remaining = self._speeds[status.scene.name].remaining(status) if status.scene.name in self._speeds else "-"
            table.add_row(
                status.scene.name,
                Text(status.state, color),
                _steps(status),
                remaining if status.open else "-",
                number(loss),
                f"{_attempt_number(status)} of {status.scene.retries + 1}",
            )
        if len(statuses) > len(listed):
            done = sum(not status.open for status in statuses)
            table.caption = f"{len(listed)} of {len(statuses)} scenes are listed; {done} are finished"
        return table


class AttemptSpeed:
    """Speed of an attempt, from which the remaining time is estimated."""

    def __init__(self) -> None:
        # Step and time of the first and of the latest update of this attempt.
        self._tries = -1
        self._first = (0, 0.0)
        self._last = (0, 0.0)

    def at(self, step: int | None, now: float, tries: int) -> None:
        """Record the current step; a new attempt restarts the measurement."""
        if step is None:
            return
        # A retry resumes from an earlier checkpoint: the step decreases.
        if tries != self._tries or step < self._first[0]:
            self._tries = tries
            self._first = (step, now)
        self._last = (step, now)

    def remaining(self, status: SceneStatus) -> str:
        """Return the estimated time until the last step, as m:ss."""
        (first, began) = self._first
        (step, now) = self._last
        if status.live.total is None or step <= first:
            return "-"
        minutes, seconds = divmod(round((status.live.total - step) * (now - began) / (step - first)), 60)
        return f"{minutes}:{seconds:02}"


def _steps(status: SceneStatus) -> str:
    step = status.live.step
    total = status.live.total
    return "-" if step is None else f"step {step:,}" + (f" of {total:,}" if total else "")


def _attempt_number(status: SceneStatus) -> int:
    # An attempt is appended when it ends; a running one counts, too.
    return len(status.attempts) + (status.state in ("queued", "running"))
