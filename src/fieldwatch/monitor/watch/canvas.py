"""Bars, sparklines and lines of fields, in letters that the terminal knows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from fieldwatch.monitor.watch.envelopes import BAD, HIGH, LOW
from fieldwatch.monitor.watch.text_format import sanitized

StyledText = tuple[str, str]
"""A piece of a line that is shown whole or not at all, and its style."""

LEVELS: Final = "▁▂▃▄▅▆▇█"
ASCII_LEVELS: Final = "_.-~=+*#"
FILLS: Final = "█▓▒░"
ASCII_FILLS: Final = "#=+-o%"
COLOURS: Final = ("cyan", "magenta", "yellow", "green", "blue", "red")
NOT_FINITE: Final = "!"
_ODD: Final = 1.5
"""A value so many usual ranges of a cell away from its neighbours' middle is shown itself."""
_LOG_FROM: Final = 30.0
"""Greatest over least value from which a sparkline of positive values has a logarithmic scale."""


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """How one terminal is drawn on.

    Attributes:
        width: columns.
        ascii_only: whether it knows nothing but ASCII.
    """

    width: int
    ascii_only: bool = False

    def text(self, text: object) -> str:
        """Return a stranger's text so that it can only be read."""
        return sanitized(text, ascii_only=self.ascii_only)

    def truncated(self, text: object, width: int) -> str:
        """Return a stranger's text in at most ``width`` columns; what is left out at its end is marked."""
        clean = self.text(text)
        if cell_len(clean) <= width:
            return clean
        mark = "~" if self.ascii_only else "…"
        return set_cell_size(clean, max(0, width - 1)).rstrip() + mark if width > 0 else ""

    def end_of(self, text: object, width: int) -> str:
        """Return the end of a stranger's text: paths differ there."""
        clean = self.text(text)
        if cell_len(clean) <= width:
            return clean
        end = clean[-max(1, width - 1) :]
        # Wide letters (CJK) take two columns each.
        while cell_len(end) > width - 1:
            end = end[1:]
        return ("~" if self.ascii_only else "…") + end

    def padded(self, text: object, width: int) -> str:
        """Return a stranger's text in exactly ``width`` columns; of a tag that is too long the first parts go."""
        text = self.text(text)
        # Tags differ in their last parts, so the first ones go.
        while cell_len(text) > width and "/" in text:
            text = text.partition("/")[2]
        return set_cell_size(self.truncated(text, width), width)

    def line(self, pieces: Sequence[StyledText], *, width: int | None = None, between: str = "  ") -> Text:
        """Return a line of as many of the pieces as fit, in order; none of them is cut.

        Where there is a whole line, its first piece is shown as far as it goes.

        Args:
            pieces: the pieces, what matters first; empty ones are left out.
            width: columns there are; None: all.
            between: what stands between two pieces.
        """
        remaining = self.width if width is None else width
        line = Text(no_wrap=True, end="")
        for text, style in pieces:
            if not text:
                continue
            needed = cell_len(text) + (len(between) if line else 0)
            if needed <= remaining:
                line.append(between if line else "")
                line.append(text, style)
                remaining -= needed
            elif not line and width is None:
                line.append(self.truncated(text, remaining), style)
                break
        return line

    def wrapped(self, text: str, width: int, most: int) -> list[str]:
        """Return a stranger's text in at most ``most`` lines, broken between words; no number is cut in two."""
        lines = list[str]()
        current = ""
        for word in self.text(text).split(" "):
            longer = f"{current} {word}" if current else word
            if cell_len(longer) <= width:
                current = longer
                continue
            if current:
                lines.append(current)
            current = self.truncated(word, width)
        lines.append(current)
        if len(lines) > most:
            mark = " ..." if self.ascii_only else " …"
            lines = lines[:most]
            while cell_len(lines[-1] + mark) > width and " " in lines[-1]:
                lines[-1] = lines[-1].rpartition(" ")[0]
            lines[-1] += mark
        return lines

    def bar(self, share: float | None, cells: int) -> tuple[str, str]:
        """Return the filled and the empty part of a bar; what is more than nothing fills a cell."""
        fraction = 0.0 if share is None or not math.isfinite(share) else min(1.0, max(0.0, share))
        filled = max(round(cells * fraction), int(fraction > 0 and cells > 0))
        full, empty = ("#", "-") if self.ascii_only else ("█", "░")
        return full * filled, empty * (cells - filled)

    def fill(self, position: int) -> StyledText:
        """Return what the part at this place of a stacked bar is filled with: differs without colours too."""
        fills = ASCII_FILLS if self.ascii_only else FILLS
        return fills[position % len(fills)], COLOURS[position % len(COLOURS)]

    def stacked_bar(self, shares: Sequence[float], cells: int) -> list[StyledText]:
        """Return a bar of several parts; each share's sign is left out."""
        sizes = np.abs(np.array([share if math.isfinite(share) else 0.0 for share in shares]))
        if not sizes.sum():
            return []
        edges = [0, *(round(cells * part) for part in (np.cumsum(sizes) / sizes.sum()).tolist())]
        counts = [end - start for start, end in pairwise(edges)]
        return [(self.fill(position)[0] * count, self.fill(position)[1]) for position, count in enumerate(counts)]

    def sparkline(self, trend: NDArray[np.float64], cells: int) -> list[StyledText]:
        """Return a sparkline of at most so many cells; a single odd step among a million shows in its cell.

        Each cell shows the middle of its least and greatest value, or the one of them that is far from what the cells
        around it show; on a logarithmic scale where the values need one. Where one was not finite there is a ``!``.
        """
        # Nothing finite to draw: only the mark for values that were not finite, if there were any.
        if cells < 1 or not trend.shape[1] or not np.isfinite(trend[LOW]).any():
            bad = bool(trend.shape[1]) and bool(np.nansum(trend[BAD]))
            return [(NOT_FINITE, "bold red")] if bad and cells > 0 else []
        low, high, bad = condensed(trend, cells)
        levels = _levels(low, high)
        signs = ASCII_LEVELS if self.ascii_only else LEVELS
        pieces: list[StyledText] = []
        for level, not_finite in zip(levels, bad, strict=True):
            if not_finite:
                pieces.append((NOT_FINITE, "bold red"))
            else:
                pieces.append((" " if level < 0 else signs[level], "cyan"))
        return _merged(pieces)


def condensed(trend: NDArray[np.float64], cells: int) -> NDArray[np.float64]:
    """Return ``[3, m]``, ``m`` at most ``cells``: the stretches put together; what lies before the first stays empty.

    A cell in which nothing was recorded repeats the one before.
    """
    count = trend.shape[1]
    starts = (np.arange(min(cells, count)) * count) // min(cells, count)
    low = np.fmin.reduceat(trend[LOW], starts)
    high = np.fmax.reduceat(trend[HIGH], starts)
    bad = np.fmax.reduceat(trend[BAD], starts)
    known = np.flatnonzero(np.isfinite(low))
    # Fill forward: a cell without a record repeats the last one that has any.
    before = np.searchsorted(known, np.arange(len(low)), side="right") - 1
    take = np.where(before >= 0, known[before], 0)
    low, high = (np.where(before >= 0, values[take], np.nan) for values in (low, high))
    return np.stack((low, high, np.where(np.isfinite(bad), bad, 0.0)))


def _levels(low: NDArray[np.float64], high: NDArray[np.float64]) -> list[int]:
    """Return the level of each cell, 0 to 7; -1 where there is nothing."""
    known = np.isfinite(low)
    if low[known].min() > 0 and high[known].max() / low[known].min() > _LOG_FROM:
        low = np.log(low)
        high = np.log(high)
    # Halves are added, since the sum of two large values could overflow.
    middle = low / 2 + high / 2
    around = np.stack([_shifted(middle, by) for by in range(-2, 3)])
    # Median of five cells; sort puts NaN last, and the index counts only what is finite.
    usual = np.sort(around, axis=0)[(np.isfinite(around).sum(axis=0) - 1) // 2, np.arange(len(low))]
    limit = _ODD * float(np.median((high - low)[known]))
    up = high - usual
    down = usual - low
    values = np.where((up > limit) & (up >= down), high, np.where(down > limit, low, middle))
    least = float(values[known].min())
    most = float(values[known].max())
    half_range = most / 2 - least / 2
    scaled = (values / 2 - least / 2) / half_range if half_range > 0 else np.where(known, 0.0, np.nan)
    return [int(min(7, max(0, value * 8))) if math.isfinite(value) else -1 for value in scaled.tolist()]


def _shifted(values: NDArray[np.float64], by: int) -> NDArray[np.float64]:
    positions = np.arange(len(values)) + by
    inside = (positions >= 0) & (positions < len(values))
    return np.where(inside, values[np.clip(positions, 0, len(values) - 1)], np.nan)


def _merged(pieces: Sequence[StyledText]) -> list[StyledText]:
    joined: list[StyledText] = []
    for text, style in pieces:
        if joined and joined[-1][1] == style:
            joined[-1] = joined[-1][0] + text, style
        else:
            joined.append((text, style))
    return joined
