"""Flags of every command that opens a run; no torch is needed for them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tyro

from fieldwatch.cli.output import BadInput


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What every command has that opens a run."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    checkpoint: str = "best"
    """best (by held-out PSNR, or by the mean angular error), last, or a step."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to draw."""
    json: bool = False
    """Print what was found as JSON, and nothing else on standard output."""


def refuse_set(chosen: Any, names: Sequence[str], why: str) -> None:
    """Refuse flags that are set and mean nothing here.

    Args:
        chosen: the command's arguments; a dataclass.
        names: of fields that have to stand at their default.
        why: they mean nothing.

    Raises:
        BadInput: names the first flag that is set.
    """
    usual = {each.name: each.default for each in fields(chosen)}
    for name in names:
        if getattr(chosen, name) != usual[name]:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(chosen, name)}: {why}; leave the flag out")
