"""Layout of the view of a run for a terminal of any size."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rich.text import Text

from fieldwatch.monitor.watch.canvas import Canvas
from fieldwatch.monitor.watch.run_view import RunView
from fieldwatch.monitor.watch.sections import (
    RankedLine,
    events,
    findings,
    gradients,
    heading,
    losses,
    machine,
    memory,
    progress,
    qualities,
    saved,
    speed,
)

Section = Callable[[RunView, Canvas], Iterator[RankedLine]]
WIDE: Final = 120
"""Number of columns from which the view has two columns."""
LEAST: Final = 20
# Spaces between the two columns.
_GAP: Final = 3
_TOP: Final[tuple[Section, ...]] = (heading, progress)
_LEFT: Final[tuple[Section, ...]] = (losses, gradients, speed)
_RIGHT: Final[tuple[Section, ...]] = (qualities, memory, machine, saved)
_BOTTOM: Final[tuple[Section, ...]] = (findings, events)


def render_run(view: RunView, *, width: int = 80, height: int = 24, ascii_only: bool = False) -> Text:
    """Render a run as text of at most ``height`` lines and ``width`` columns.

    If it does not fit, whole lines are omitted, the least important ones first; numbers are never truncated.

    Args:
        view: state of the run.
        width: number of columns, at least 20.
        height: number of lines, at least 1.
        ascii_only: whether the terminal supports only ASCII.
    """
    width = max(width, LEAST)
    canvas = Canvas(width=width, ascii_only=ascii_only)
    lines = _wide(view, canvas, height) if width >= WIDE else _narrow(view, canvas, height)
    # A line that is too wide would wrap and push out the following ones.
    fitting = [line for line in lines if line.cell_len <= width]
    return Text("\n", end="", no_wrap=True).join(fitting[: max(1, height)])


def _narrow(view: RunView, canvas: Canvas, height: int) -> list[Text]:
    order = (*_TOP, losses, gradients, qualities, memory, speed, machine, saved, *_BOTTOM)
    return _most_important([list(section(view, canvas)) for section in order], height)


def _wide(view: RunView, canvas: Canvas, height: int) -> list[Text]:
    # Sections in columns are rendered for half of the width.
    half = Canvas(width=(canvas.width - _GAP) // 2, ascii_only=canvas.ascii_only)
    top = _most_important([list(section(view, canvas)) for section in _TOP], max(1, height // 2))
    below = [list(section(view, canvas)) for section in _BOTTOM]
    sides = [[list(section(view, half)) for section in part] for part in (_LEFT, _RIGHT)]
    column_height = max(0, height - len(top) - 2)
    needed = max(sum(len(lines) + 1 for lines in side if lines) for side in sides)
    # Findings and events get up to a third of the height even if the columns could use all of it.
    bottom_height = min(column_height // 3, sum(len(lines) + 1 for lines in below))
    columns = [_most_important(side, column_height - max(column_height - needed, bottom_height)) for side in sides]
    rows = max(map(len, columns))
    left, right = ([*column, *[Text("")] * (rows - len(column))] for column in columns)
    rows_of_both = [_side_by_side(one, other, half.width) for one, other in zip(left, right, strict=True)]
    blank = [Text("")] if rows else []
    return [*top, *blank, *rows_of_both, *blank, *_most_important(below, height - len(top) - rows - 2 * len(blank))]


def _side_by_side(left: Text, right: Text, width: int) -> Text:
    if not right:
        return left
    line = left.copy()
    line.append(" " * (width + _GAP - line.cell_len))
    return line.append_text(right)


def _most_important(sections: Iterable[list[RankedLine]], height: int) -> list[Text]:
    """Return the lines with the lowest ranks in the order of the sections, with blank lines if there is space."""
    filled = [lines for lines in sections if lines]
    # Lines are selected by rank over all sections, but shown in the order of the sections.
    ranked = sorted((line.rank, section, at) for section, lines in enumerate(filled) for at, line in enumerate(lines))
    chosen_lines = {(section, at) for _, section, at in ranked[: max(0, height)]}
    blanks = height >= len(ranked) + len(filled)
    chosen: list[Text] = []
    for section, lines in enumerate(filled):
        if blanks and chosen:
            chosen.append(Text(""))
        chosen += [line.text for at, line in enumerate(lines) if (section, at) in chosen_lines]
    return chosen
