"""Numbers, times and strangers' texts as words that a terminal can take."""

import math
from typing import Final

MINUTE = 60
HOUR = 3600
DAY = 86400
_GIB: Final = 1024.0
NOTHING: Final = "-"


def number(value: float | None) -> str:
    """Return a value with three digits, whole numbers in full up to ten millions: 0.00118, 33.0, 60,000, 1.23e-07."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return repr(float(value))
    size = abs(value)
    if value == int(value) and size < 1e7:
        return f"{int(value):,}"
    if not 1e-3 <= size < 1e6:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(size)))}f}"


def share(value: float | None) -> str:
    """Return a share as whole percent; nothing where it is not known or not finite."""
    return "" if value is None or not math.isfinite(value) else f"{100 * value:.0f}%"


def mebibytes(value: float | None) -> str:
    """Return memory given in MiB: 464 MiB, 22.8 GiB."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.0f} MiB" if abs(value) < _GIB else f"{value / _GIB:,.1f} GiB"


def clock(seconds: float) -> str:
    """Return a length of time as a clock shows it: 0:09, 1:02:03, 2 d 3:04:05."""
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
    r"""Return a stranger's text so that it can only be read, never obeyed: escapes and controls as ``\x1b``.

    Args:
        text: anything; line breaks become blanks.
        ascii_only: the terminal knows no other letters; they are shown as ``\u4e2d``.
    """
    line = " ".join(str(text).split())
    clean = "".join(letter if letter.isprintable() else _escaped(letter) for letter in line)
    return clean.encode("ascii", "backslashreplace").decode() if ascii_only else clean


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
