"""Helpers for command lines of trainings: renamed flags of the original scripts, and presets."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fieldwatch.cli.output import BadInput

Config = TypeVar("Config")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def dashed(flag: str) -> str:
    """Return a long flag with dashes instead of underscores; any other word unchanged."""
    return "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag


def renamed(words: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Rename flags, with or without a value in the same word (``--flag=value``)."""
    split = (word.partition("=") for word in words)
    return [names.get(dashed(flag), names.get(flag, flag)) + equals + value for flag, equals, value in split]


def with_current_preset(words: Sequence[str], former: Mapping[str, str]) -> list[str]:
    """Replace former names of presets after ``--preset``.

    Args:
        words: command line.
        former: current names of presets by their former names.
    """
    current: list[str] = []
    for word in words:
        flag, equals, name = word.partition("=")
        if flag == "--preset" and equals:
            current.append(f"--preset={former.get(name, name)}")
        elif current and current[-1] == "--preset":
            current.append(former.get(word, word))
        else:
            current.append(word)
    return current


def seconds_of(flag: str, text: str) -> float:
    """Return a time such as ``90s``, ``10m`` or ``1.5h`` in seconds; a number alone is one of seconds.

    Raises:
        BadInput: the text is no such time, or not greater than 0.
    """
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match is not None else 0.0
    if not seconds > 0:
        raise BadInput(f"{flag} {text!r}: expected a time greater than 0, such as 90s, 10m or 1h")
    return seconds


def preset_of(words: Sequence[str], presets: Mapping[str, Callable[[], Config]], *, default: str = "default") -> Config:
    """Return the config that ``--preset NAME`` selects, or the default one.

    Args:
        words: command line.
        presets: functions that return a config, by name.
        default: name of the preset without ``--preset``.

    Raises:
        BadInput: there is no such preset.
    """
    # By hand, before tyro: the preset determines the defaults that tyro needs. The last one counts.
    name = default
    for i, word in enumerate(words):
        if word.startswith("--preset="):
            name = word.removeprefix("--preset=")
        elif word == "--preset" and i + 1 < len(words):
            name = words[i + 1]
    if name not in presets:
        raise BadInput(f"--preset {name!r} is not known: expected one of {', '.join(presets)}")
    return presets[name]()
