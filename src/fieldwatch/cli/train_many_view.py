"""Many scenes on the screen: a table that moves in a terminal, one line per change elsewhere."""

import math
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

from fieldwatch.many import Scene, Standing

COLOURS = {"healthy": "green", "warnings": "yellow", "findings": "bold yellow", "stopped": "yellow", "running": "cyan"}
FAILED = "bold red"
ROWS = 40
"""Scenes shown while they are trained; what is done gives way to what is not."""
LINE_EVERY = 30.0
"""Seconds between two lines about a scene that only goes on."""


def print_plan(console: Console, scenes: Sequence[Scene], out: Path) -> None:
    """Say what would be done."""
    for scene in scenes:
        parts = [f"{scene.cpus:g} cpus"]
        parts += [f"{scene.gpus:g} gpus"] if scene.gpus else []
        parts += [f"{scene.memory_gib:g} GiB"] if scene.memory_gib else []
        parts += [f"{scene.retries} retries"]
        parts += [f"{scene.timeout:g} s at most"] if scene.timeout else []
        console.print(Text.assemble((scene.name, "bold"), f"  {', '.join(parts)}"), soft_wrap=True)
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in scene.env.items())
        line = shlex.join(("fieldwatch", *scene.command(out / scene.name)))
        console.print(Text(f"    {variables}{line}"), soft_wrap=True)
    console.print(f"{len(scenes)} scenes, nothing was started (--dry-run)")


class Told:
    """Tells how all scenes stand. Use it with ``with``, and call it again and again.

    Args:
        console: where to draw.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._table = LiveTable(console=console, auto_refresh=False) if console.is_terminal else None
        self._said: dict[str, tuple[str, int]] = {}
        self._drawn = 0.0
        self._lines: dict[str, float] = {}
        self._speeds: dict[str, Speed] = {}

    def __enter__(self) -> Self:
        """Begin."""
        if self._table is not None:
            self._table.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the last state on the screen."""
        if self._table is not None:
            self._table.stop()

    def __call__(self, standings: Sequence[Standing]) -> None:
        """Take how they stand now."""
        now = time.monotonic()
        for standing in standings:
            if standing.state == "running":
                self._speeds.setdefault(standing.scene.name, Speed()).at(standing.live.step, now, len(standing.tries))
        if self._table is not None:
            if now - self._drawn > 0.5 or not any(standing.open for standing in standings):
                self._table.update(self._picture(standings), refresh=True)
                self._drawn = now
            return
        for standing in standings:
            self._line(standing, now)

    def ending(self, standings: Sequence[Standing]) -> None:
        """Say what every scene came to, and why those that failed did."""
        if self._table is None:
            self._console.print(self._picture(standings, len(standings)))
        for standing in standings:
            for one in standing.tries:
                if one.cause:
                    words = f"  {standing.scene.name}, try {one.number}: {one.cause}"
                    self._console.print(Text(words), soft_wrap=True)

    def _line(self, standing: Standing, now: float) -> None:
        name, what = standing.scene.name, (standing.state, len(standing.tries))
        quiet = now - self._lines.get(name, now) < LINE_EVERY or standing.state != "running"
        if self._said.get(name, ("waiting", 0)) == what and quiet:
            self._lines.setdefault(name, now)
            return
        self._said[name], self._lines[name] = what, now
        last = standing.tries[-1] if standing.tries and standing.state != "running" else None
        why = f": {last.cause}" if last is not None and last.cause else ""
        words = f"{name}: {standing.state}, {_steps(standing)}, try {_try(standing)}{why}"
        self._console.print(Text(words), soft_wrap=True)

    def _picture(self, standings: Sequence[Standing], rows: int = ROWS) -> Table:
        table = Table()
        for column in ("scene", "state", "step", "time left", "loss", "tries"):
            table.add_column(column, justify="left" if column in ("scene", "state") else "right")
        shown = sorted(standings, key=lambda standing: not standing.open)[:rows]
        for standing in [standing for standing in standings if standing in shown]:
            colour = COLOURS.get(standing.state, "" if standing.open else FAILED)
            loss = standing.live.loss
            left = self._speeds[standing.scene.name].left(standing) if standing.scene.name in self._speeds else "-"
            table.add_row(
                standing.scene.name,
                Text(standing.state, colour),
                _steps(standing),
                left if standing.open else "-",
                "-" if loss is None or not math.isfinite(loss) else f"{loss:.4g}",
                f"{_try(standing)} of {standing.scene.retries + 1}",
            )
        if len(standings) > len(shown):
            done = sum(not standing.open for standing in standings)
            table.caption = f"{len(shown)} of {len(standings)} scenes shown; {done} are done"
        return table


class Speed:
    """How fast a try goes on, to say when it will be done."""

    def __init__(self) -> None:
        self._tries, self._first = -1, (0, 0.0)
        self._last = (0, 0.0)

    def at(self, step: int | None, now: float, tries: int) -> None:
        """Take where it is; a new try begins anew."""
        if step is None:
            return
        if tries != self._tries or step < self._first[0]:
            self._tries, self._first = tries, (step, now)
        self._last = (step, now)

    def left(self, standing: Standing) -> str:
        """Time until the last step."""
        (first, began), (step, now) = self._first, self._last
        if standing.live.total is None or step <= first:
            return "-"
        minutes, seconds = divmod(round((standing.live.total - step) * (now - began) / (step - first)), 60)
        return f"{minutes}:{seconds:02}"


def _steps(standing: Standing) -> str:
    step, total = standing.live.step, standing.live.total
    return "-" if step is None else f"step {step:,}" + (f" of {total:,}" if total else "")


def _try(standing: Standing) -> int:
    return len(standing.tries) + (standing.state in ("queued", "running"))
