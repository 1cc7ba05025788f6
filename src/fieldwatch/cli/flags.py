"""Helpers for command lines of trainings: renamed flags of the original scripts, and presets."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fieldwatch.cli.output import BadInput

Config = TypeVar("Config")


def dashed(flag: str) -> str:
    """Return a long flag with dashes instead of underscores; any other word unchanged."""
    return "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag


def renamed(words: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Rename flags, with or without a value in the same word (``--flag=value``)."""
    split = (word.partition("=") for word in words)
    return [names.get(dashed(flag), names.get(flag, flag)) + equals + value for flag, equals, value in split]


def preset_of(words: Sequence[str], presets: Mapping[str, Callable[[], Config]]) -> Config:
    """Return the config that ``--preset NAME`` selects, or the default one.

    Raises:
        BadInput: there is no such preset.
    """
    # By hand, before tyro: the preset determines the defaults that tyro needs. The last one counts.
    name = "default"
    for i, word in enumerate(words):
        if word.startswith("--preset="):
            name = word.removeprefix("--preset=")
        elif word == "--preset" and i + 1 < len(words):
            name = words[i + 1]
    if name not in presets:
        raise BadInput(f"--preset {name!r} is not known: expected one of {', '.join(presets)}")
    return presets[name]()
