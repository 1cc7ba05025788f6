"""Amounts as people read them."""

from datetime import UTC, datetime

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB")


def amount(size: int | None) -> str:
    """Return bytes in the largest fitting unit of 1024: ``"1.5 MB"``; a dash for None."""
    if size is None:
        return "-"
    value = float(size)
    unit = 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value = value / 1024
        unit = unit + 1
    return f"{size} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def moment(time: int) -> str:
    """Return microseconds since 1970 as a time of day in UTC; a dash where not recorded or impossible."""
    if not 0 < time < 253_402_300_800_000_000:
        return "-"
    return datetime.fromtimestamp(time / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")


def percent(share: float | None) -> str:
    """Return a share of 1 in percent; a dash for None."""
    return "-" if share is None else f"{100 * share:.1f} %"
