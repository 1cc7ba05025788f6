"""Formatting of durations since an event."""

import math
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400


def age(seconds: float) -> str:
    """Format a duration for people: 12 s, 3 min, 2 h 5 min, 4 d."""
    if not math.isfinite(seconds):
        return "a long time"
    # Clocks are adjusted, so a duration may seem negative.
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < 2 * _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d"
