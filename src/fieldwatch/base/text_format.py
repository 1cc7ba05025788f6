"""Format numbers, sizes, durations, fractions and dates for people.

Terminal views, pages and messages all use these functions, so that a value reads the same everywhere. The pages' script
``fieldwatch/report/page/assets/text_format.js`` implements the same functions; tests/base/test_text_format.py runs one
table of cases through both. Files that other programs read have their own, fixed formats.
"""

import math
import re
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

NOTHING: Final = "-"
"""Text of a value that is unknown: None or NaN."""
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
"""Names of the powers of 1024 bytes."""
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY_MINUTES: Final = 24 * 60
_YEAR_10000: Final = 253_402_300_800
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:\d\d)?")


def number(value: float | None, digits: int = 4, *, signed: bool = False) -> str:
    """Format a number: ``0.1235``, ``60,000``, ``1.235e-07``.

    Integers below 1e9 are written in full, and so are the digits before the decimal point of numbers below 1e6. Other
    numbers of at least 1e6, and those below 1e-4, have an exponent.

    Args:
        value: the number; ``-`` for None and NaN.
        digits: maximum number of significant digits; trailing zeros are dropped.
        signed: whether positive numbers have a plus sign.
    """
    if value is None or math.isnan(value):
        return NOTHING
    size = abs(float(value))
    sign = "-" if value < 0 else "+" if signed and value else ""
    if math.isinf(size):
        return f"{sign}inf"
    if size.is_integer() and size < 1e9:
        return f"{sign}{size:,.0f}"
    if size >= 1e6 or size < 1e-4:
        mantissa, exponent = _scientific(size, digits)
        return f"{sign}{_without_zeros(mantissa)}e{exponent:+03d}"
    places = digits - 1 - Decimal(size).adjusted()
    return sign + _without_zeros(_fixed(size, max(places, 0)))


def nbytes(count: float | None, decimals: int = 1, *, unit: str | None = None, signed: bool = False) -> str:
    """Format a number of bytes in binary units: ``512 B``, ``1.5 KiB``, ``22.8 GiB``.

    Args:
        count: number of bytes; ``-`` for None and NaN.
        decimals: number of decimals; whole bytes have none.
        unit: one of `UNITS`, for columns of one unit; the largest unit in which the number is at least 1 if None.
        signed: whether positive sizes have a plus sign.
    """
    if count is None or not math.isfinite(count):
        return NOTHING
    size = abs(float(count))
    sign = "-" if count < 0 else "+" if signed and count else ""
    power = 0
    if unit is not None:
        power = UNITS.index(unit)
        size /= 1024.0**power
    else:
        # Move on to the next unit also where rounding would show "1,024.0 KiB".
        while size >= 1024 - 0.5 * 10.0**-decimals and power < len(UNITS) - 1:
            size /= 1024
            power += 1
    return f"{sign}{_fixed(size, decimals if power else 0)} {UNITS[power]}"


def mebibytes(value: float | None, decimals: int = 1, *, unit: str | None = None, signed: bool = False) -> str:
    """Format memory that is given in MiB like `nbytes`: ``464.0 MiB``, ``22.8 GiB``."""
    return nbytes(None if value is None else value * 2**20, decimals, unit=unit, signed=signed)


def percent(fraction: float | None, decimals: int = 1, *, signed: bool = False) -> str:
    """Format a fraction of 1 in percent: ``12.3%``; ``-`` for None and values that are not finite."""
    if fraction is None or not math.isfinite(fraction):
        return NOTHING
    sign = "-" if fraction < 0 else "+" if signed and fraction else ""
    return f"{sign}{_fixed(abs(100 * float(fraction)), decimals)}%"


def duration(seconds: float | None) -> str:  # noqa: PLR0911  one return per unit
    """Format a duration in at most two units: ``12 us``, ``4.5 s``, ``2 min 3 s``, ``1 h 20 min``, ``2 d 3 h``."""
    if seconds is None or math.isnan(seconds):
        return NOTHING
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if math.isinf(seconds):
        return "inf"
    # The limits are where three digits round up to the next unit.
    if seconds < 59.95:
        for limit, factor, unit in ((0.9995e-3, 1e6, "us"), (0.9995, 1e3, "ms")):
            if 0 < seconds < limit:
                return f"{number(seconds * factor, 3)} {unit}"
        return f"{number(seconds, 3)} s"
    whole = math.floor(seconds + 0.5)
    if whole < _HOUR:
        return _two_units(whole, _MINUTE, "min", "s")
    minutes = math.floor(seconds / 60 + 0.5)
    if minutes < _DAY_MINUTES:
        return _two_units(minutes, 60, "h", "min")
    return _two_units(math.floor(seconds / 3600 + 0.5), 24, "d", "h")


def moment(time: float | str | None) -> str:
    """Format a point in time in UTC: ``2026-01-31 12:00:00 UTC``.

    Args:
        time: seconds since 1970 or an ISO 8601 text, in UTC unless it names an offset; ``-`` for None, an empty text
            and numbers outside the years 1970 to 9999. A text that is not a time is returned as it is.
    """
    if isinstance(time, str):
        match = _MOMENT.fullmatch(time)
        if match is None:
            return time or NOTHING
        try:
            date = datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3] or 'Z'}")
        except ValueError:
            return time
        return _utc(date)
    if time is None or not 0 < time < _YEAR_10000:
        return NOTHING
    return _utc(datetime.fromtimestamp(math.floor(time), UTC))


def _utc(date: datetime) -> str:
    return date.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _two_units(count: int, base: int, large: str, small: str) -> str:
    whole, rest = divmod(count, base)
    return f"{whole:,} {large} {rest} {small}" if rest else f"{whole:,} {large}"


def _fixed(size: float, decimals: int) -> str:
    # Like JavaScript's toFixed, ties round up: format() rounds them to even, and 0.125 would read differently there.
    return f"{Decimal(size).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP):,}"


def _scientific(size: float, digits: int) -> tuple[str, int]:
    exact = Decimal(size)
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_HALF_UP)
    exponent = rounded.adjusted()
    return f"{rounded.scaleb(-exponent):f}", exponent


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
