"""Bars, sparklines and lines of fields, in characters that the terminal supports."""

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
"""A piece of a line, which is shown completely or not at all, and its style."""

LEVELS: Final = "▁▂▃▄▅▆▇█"
ASCII_LEVELS: Final = "_.-~=+*#"
FILLS: Final = "█▓▒░"
ASCII_FILLS: Final = "#=+-o%"
COLORS: Final = ("cyan", "magenta", "yellow", "green", "blue", "red")
NOT_FINITE: Final = "!"
_ODD: Final = 1.5
"""Distance of an outlier from the median of the neighboring cells, in typical ranges of a cell."""
_LOG_FROM: Final = 30.0
"""Ratio of maximum to minimum above which a sparkline of positive values has a logarithmic scale."""


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """Properties of a terminal, and helpers to render on it.

    Attributes:
        width: number of columns.
        ascii_only: whether the terminal supports only ASCII.
    """

    width: int
    ascii_only: bool = False

    def text(self, text: object) -> str:
        """Return untrusted text without control characters."""
        return sanitized(text, ascii_only=self.ascii_only)

    def truncated(self, text: object, width: int) -> str:
        """Return untrusted text truncated to ``width`` columns, with an ellipsis at the end if it is longer."""
        clean = self.text(text)
        if cell_len(clean) <= width:
            return clean
        mark = "~" if self.ascii_only else "…"
        return set_cell_size(clean, max(0, width - 1)).rstrip() + mark if width > 0 else ""

    def end_of(self, text: object, width: int) -> str:
        """Return untrusted text truncated at its beginning, because paths differ at their end."""
        clean = self.text(text)
        if cell_len(clean) <= width:
            return clean
        end = clean[-max(1, width - 1) :]
        # Wide characters (CJK) take two columns each.
        while cell_len(end) > width - 1:
            end = end[1:]
        return ("~" if self.ascii_only else "…") + end

    def padded(self, text: object, width: int) -> str:
        """Return untrusted text padded or truncated to exactly ``width`` columns."""
        text = self.text(text)
        # Tags differ in their last parts, so the first ones are dropped.
        while cell_len(text) > width and "/" in text:
            text = text.partition("/")[2]
        return set_cell_size(self.truncated(text, width), width)

    def line(self, pieces: Sequence[StyledText], *, width: int | None = None, between: str = "  ") -> Text:
        """Return a line with as many pieces as fit, in order; pieces are not truncated.

        Only the first piece of a full-width line is truncated if it does not fit.

        Args:
            pieces: pieces in order of importance; empty ones are skipped.
            width: number of available columns; None for the full width.
            between: separator of the pieces.
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
        """Return untrusted text wrapped at spaces to at most ``most`` lines, with an ellipsis if it is longer."""
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
        """Return the filled and the empty part of a bar; any fraction above 0 fills at least one cell."""
        fraction = 0.0 if share is None or not math.isfinite(share) else min(1.0, max(0.0, share))
        filled = max(round(cells * fraction), int(fraction > 0 and cells > 0))
        full, empty = ("#", "-") if self.ascii_only else ("█", "░")
        return full * filled, empty * (cells - filled)

    def fill(self, position: int) -> StyledText:
        """Return the fill of a part of a stacked bar; fills also differ without colors."""
        fills = ASCII_FILLS if self.ascii_only else FILLS
        return fills[position % len(fills)], COLORS[position % len(COLORS)]

    def stacked_bar(self, shares: Sequence[float], cells: int) -> list[StyledText]:
        """Return a bar of several parts with lengths proportional to the absolute values of the shares."""
        sizes = np.abs(np.array([share if math.isfinite(share) else 0.0 for share in shares]))
        if not sizes.sum():
            return []
        # Rounding the cumulative sums keeps the total at `cells`.
        edges = [0, *(round(cells * part) for part in (np.cumsum(sizes) / sizes.sum()).tolist())]
        counts = [end - start for start, end in pairwise(edges)]
        return [(self.fill(position)[0] * count, self.fill(position)[1]) for position, count in enumerate(counts)]

    def sparkline(self, trend: NDArray[np.float64], cells: int) -> list[StyledText]:
        """Return a sparkline of at most ``cells`` cells, in which single outliers remain visible.

        Each cell shows the midpoint of its minimum and maximum, or the one of them that is far from the neighboring
        cells. The scale is logarithmic if the values span a wide range. A cell with a non-finite value shows ``!``.
        """
        # Without finite values, show only the mark for non-finite ones, if there were any.
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
    """Merge the buckets of a trend into ``[3, m]`` with ``m`` at most ``cells``.

    A cell without a record repeats the previous one; cells before the first record remain NaN.
    """
    count = trend.shape[1]
    starts = (np.arange(min(cells, count)) * count) // min(cells, count)
    low = np.fmin.reduceat(trend[LOW], starts)
    high = np.fmax.reduceat(trend[HIGH], starts)
    bad = np.fmax.reduceat(trend[BAD], starts)
    known = np.flatnonzero(np.isfinite(low))
    # Forward fill: a cell without a record repeats the last one that has any.
    before = np.searchsorted(known, np.arange(len(low)), side="right") - 1
    take = np.where(before >= 0, known[before], 0)
    low, high = (np.where(before >= 0, values[take], np.nan) for values in (low, high))
    return np.stack((low, high, np.where(np.isfinite(bad), bad, 0.0)))


def _levels(low: NDArray[np.float64], high: NDArray[np.float64]) -> list[int]:
    """Return the level of each cell, 0 to 7; -1 for empty cells."""
    known = np.isfinite(low)
    if low[known].min() > 0 and high[known].max() / low[known].min() > _LOG_FROM:
        low = np.log(low)
        high = np.log(high)
    # Halves are added, because the sum of two large values could overflow.
    middle = low / 2 + high / 2
    around = np.stack([_shifted(middle, by) for by in range(-2, 3)])
    # Median of five cells: sort puts NaN last, and the index counts only finite values.
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
