"""Formatting of numbers, times and untrusted text for a terminal."""

import math
from typing import Final

MINUTE = 60
HOUR = 3600
DAY = 86400
_GIB: Final = 1024.0
NOTHING: Final = "-"


def number(value: float | None) -> str:
    """Format a value with three digits; integers in full up to ten million: 0.00118, 33.0, 60,000, 1.23e-07."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return repr(float(value))
    size = abs(value)
    # Counts are shown in full, because their digits are meaningful.
    if value == int(value) and size < 1e7:
        return f"{int(value):,}"
    if not 1e-3 <= size < 1e6:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(size)))}f}"


def share(value: float | None) -> str:
    """Format a fraction as a whole percentage; empty if it is None or not finite."""
    return "" if value is None or not math.isfinite(value) else f"{100 * value:.0f}%"


def mebibytes(value: float | None) -> str:
    """Format memory given in MiB: 464 MiB, 22.8 GiB."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.0f} MiB" if abs(value) < _GIB else f"{value / _GIB:,.1f} GiB"


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
