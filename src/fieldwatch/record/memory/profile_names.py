"""The two tag prefixes of the tensor profile; a run records one of them."""

from collections.abc import Container
from typing import Final, Literal

ProfileNames = Literal["TensorProfiling", "Memory"]

PROFILE_ROOTS: Final[tuple[ProfileNames, ProfileNames]] = ("TensorProfiling", "Memory")
"""Prefixes of the tags; the first is the default."""


def profile_tag(tag: str, recorded: Container[str]) -> str:
    """Return a tensor-profile tag with the prefix under which a run recorded it.

    Args:
        tag: tag with the default prefix, ``TensorProfiling/...``; all other tags are returned unchanged.
        recorded: tags that the run recorded.
    """
    renamed = under_other_name(tag)
    return renamed if tag not in recorded and renamed in recorded else tag


def under_other_name(text: str) -> str:
    """Replace the default prefix by the alternative one, in a tag or in a text that mentions tags."""
    default, alternative = PROFILE_ROOTS
    return text.replace(f"{default}/", f"{alternative}/")
