"""Progress bar of commands that render many frames."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def counting_frames(console: Console, title: str, total: int) -> Iterator[Callable[[], None]]:
    """Display a progress bar; the yielded function is called after each frame."""
    columns = (
        TextColumn(f"[bold]{title}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Transient: the bar disappears when the result is printed.
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
