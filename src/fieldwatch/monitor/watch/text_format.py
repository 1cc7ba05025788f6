"""Formatting of clock times and untrusted text for a terminal; `fieldwatch.base` formats numbers and sizes."""

import math
from typing import Final

from fieldwatch.base import number, percent

MINUTE = 60
HOUR = 3600
DAY = 86400
NOTHING: Final = "-"


def share(value: float | None) -> str:
    """Format a fraction as a whole percentage; empty if it is unknown, since the views leave out empty texts."""
    return "" if value is None or not math.isfinite(value) else percent(value, 0)


def measured(value: float) -> str:
    """Format a measured value with three digits; NaN by its name, because it is what a user looks for."""
    return "nan" if math.isnan(value) else number(value, 3)


def clock(seconds: float) -> str:
    """Format a duration like a clock: 0:09, 1:02:03, 2 d 3:04:05."""
    if not math.isfinite(seconds):
        return NOTHING
    whole = max(0, round(seconds))
    days, rest = divmod(whole, DAY)
    hours = rest // HOUR
    minutes = rest % HOUR // MINUTE
    last = rest % MINUTE
    text = f"{hours}:{minutes:02}:{last:02}" if days or hours else f"{minutes}:{last:02}"
    return f"{days} d {text}" if days else text


def sanitized(text: object, *, ascii_only: bool = False) -> str:
    r"""Return untrusted text with control characters and escape sequences replaced by ``\x1b`` and the like.

    Args:
        text: any object; line breaks become spaces.
        ascii_only: whether to replace characters outside ASCII, as in ``\u4e2d``.
    """
    # The text comes from a run's files: an escape sequence in it could control the terminal.
    line = " ".join(str(text).split())
    clean = "".join(letter if letter.isprintable() else _escaped(letter) for letter in line)
    return clean.encode("ascii", "backslashreplace").decode() if ascii_only else clean


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
