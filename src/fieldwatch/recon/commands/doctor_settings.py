"""Check of the settings of a training: rates, weights and thresholds that are far from those of the preset."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from fieldwatch.cli.kit import DataFinding

FAR = 10.0
"""Ratio to the preset's value from which a setting is named; a factor of 3 is an ordinary choice."""
CERTAIN = 100.0
"""Ratio from which a setting is a slip: two orders of magnitude."""
READABLE = 1e6
"""Ratio from which it is written as a power of ten."""
SETTING = "setting"
"""Name of the check."""


def setting_findings(
    config: Any, preset: Any, names: Sequence[str], *, instead: Mapping[str, float] | None = None
) -> list[DataFinding]:
    """Return a warning for each setting that is at least ten times, or at most a tenth of, the preset's value.

    Values of 0 switch something off, and are no magnitude. The farthest setting comes first.

    Args:
        config: settings of the training, a dataclass with further ones in its fields.
        preset: settings from which they were derived; None if they are not known, which checks nothing.
        names: settings whose magnitude decides whether the training works.
        instead: values for settings that the preset leaves open or switches off.
    """
    if preset is None:
        return []
    chosen = dict(_values(config))
    usual = dict(_values(preset))
    found: list[tuple[float, DataFinding]] = []
    for name in names:
        value = chosen.get(name)
        # Also where the preset switches something off: its usual magnitude is that of the papers.
        normal = usual.get(name) or (instead or {}).get(name)
        if value is not None and normal is not None and (ratio := distance(value, normal)) >= FAR:
            found.append((ratio, far_setting(f"--{name.replace('_', '-')}", value, normal, name)))
    return [finding for _, finding in sorted(found, key=lambda pair: -pair[0])]


def distance(value: float, normal: float) -> float:
    """Return the ratio of two values, the larger over the smaller; 1 if one of them is not above 0."""
    # Rounded, so that a tenth counts as a tenth.
    return round(max(value / normal, normal / value), 6) if value > 0 and normal > 0 else 1.0


def far_setting(flag: str, value: float, normal: float, name: str) -> DataFinding:
    """Return the warning about a setting.

    Args:
        flag: the flag, with leading dashes.
        value: chosen value.
        normal: value of the preset.
        name: name of the setting, which tells what its magnitude does.
    """
    ratio = distance(value, normal)
    factor = f"{ratio:,.0f}" if ratio < READABLE else f"{ratio:.0e}"
    relation = f"{factor} times" if value > normal else f"1/{factor} of"
    return DataFinding(
        name=f"{SETTING} {flag}",
        severity="warning",
        message=f"{flag} is {value:g}, {relation} the usual {normal:g}{_consequence(name, high=value > normal)}.",
        remedy=f"Use {flag} {normal:g} unless you have tested this value.",
        certain=ratio >= CERTAIN,
    )


def _consequence(name: str, *, high: bool) -> str:
    if name.endswith("weight") and high:
        return ": the term can dominate the loss"
    if name.startswith("lr"):
        return f": the learning rate may be too {'high' if high else 'low'}"
    return ""


def _values(config: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a config, also those of its parts."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _values(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield field.name, float(value)
