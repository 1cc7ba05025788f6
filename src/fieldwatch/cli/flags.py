"""What the training commands' lines have in common: the flags of the original scripts, presets."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fieldwatch.cli.output import BadInput

Config = TypeVar("Config")


def dashed(flag: str) -> str:
    """A long flag with dashes between its words; everything else as it came."""
    return "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag


def renamed(words: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Give flags the name they have here, with or without a value in the same word (``--flag=value``)."""
    split = (word.partition("=") for word in words)
    return [names.get(dashed(flag), names.get(flag, flag)) + equals + value for flag, equals, value in split]


def preset_of(words: Sequence[str], presets: Mapping[str, Callable[[], Config]]) -> Config:
    """The settings that ``--preset NAME`` names, else the default ones.

    Raises:
        BadInput: there is no such preset.
    """
    name = "default"
    for i, word in enumerate(words):
        if word.startswith("--preset="):
            name = word.removeprefix("--preset=")
        elif word == "--preset" and i + 1 < len(words):
            name = words[i + 1]
    if name not in presets:
        raise BadInput(f"--preset {name!r} is not known: expected one of {', '.join(presets)}")
    return presets[name]()
