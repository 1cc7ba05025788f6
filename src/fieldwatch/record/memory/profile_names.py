"""The two names of the tensor profile's tags: a run records one of the two."""

from collections.abc import Container
from typing import Final, Literal

ProfileNames = Literal["TensorProfiling", "Memory"]

PROFILE_ROOTS: Final[tuple[ProfileNames, ProfileNames]] = ("TensorProfiling", "Memory")
"""What the tags begin with; the first is the usual one."""


def profile_tag(tag: str, recorded: Container[str]) -> str:
    """Return a tag of the tensor profile as a run recorded it: under its usual name, or under the other one.

    Args:
        tag: under its usual name, ``TensorProfiling/...``; every other tag is returned as it is.
        recorded: the tags of the run.
    """
    renamed = under_other_name(tag)
    return renamed if tag not in recorded and renamed in recorded else tag


def under_other_name(text: str) -> str:
    """Return a tag, or a text with tags in it, with the other of the two names."""
    usual, other = PROFILE_ROOTS
    return text.replace(f"{usual}/", f"{other}/")
