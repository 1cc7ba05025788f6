"""Flags of every command that opens a run; no torch is needed for them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tyro

from fieldwatch.cli.output import BadInput


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """Flags of every command that opens a run."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    checkpoint: str = "best"
    """Checkpoint: best (by held-out PSNR, or mean angular error), last, or a step."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to render."""
    json: bool = False
    """Print the result as JSON, and nothing else on standard output."""


def refuse_set(chosen: Any, names: Sequence[str], why: str) -> None:
    """Refuse flags that are set although they have no effect here.

    Args:
        chosen: the command's arguments; a dataclass.
        names: fields that must have their default.
        why: reason for the refusal.

    Raises:
        BadInput: names the first flag that is set.
    """
    # A flag that is given with its default value cannot be told from one that is not given.
    usual = {each.name: each.default for each in fields(chosen)}
    for name in names:
        if getattr(chosen, name) != usual[name]:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(chosen, name)}: {why}; leave the flag out")
