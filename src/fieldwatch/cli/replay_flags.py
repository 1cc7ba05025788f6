"""Flags of ``fieldwatch replay``; importing them needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Make one step of a run again, in a copy, and look at it: the first NaN, each term's gradient, memory by line.

    Example: fieldwatch replay runs/bunny --step 4711 --do "lr*=0.1" --without eikonal

    For a loop of your own, name its script, and its arguments after two dashes:
    fieldwatch replay my_loop.py runs/mine --step 4711 -- --lr 0.01

    The copy is trained from the nearest checkpoint at or before the step, or from the beginning if there is none, and
    compared with the journal to the bit. The run is only read, and may still be training. Exit codes: 0 once the step
    was made, whatever was found in it; 2 if it cannot be reached; 3 if the loop fails before it.
    """

    target: tyro.conf.Positional[Path]
    """Run folder; or the script (.py) of your own loop, followed by the run folder."""
    run: tyro.conf.Positional[Path | None] = None
    """Run folder, after a script."""
    step: int
    """Step to make again, counted from 0 as in all reports."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Folder for replay.html and replay.json; by default ./replay-RUN-STEP."""
    against: int | None = None
    """Also make this step, and show the difference."""
    do: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """What would have happened with another setting, such as "lr*=0.1", "clip=1", "weight.TERM=0.5"; may be repeated,
    and commas combine several."""
    without: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """What would have happened without this loss term; may be repeated, and commas combine several."""
    dtype: Literal["float32", "float64"] | None = None
    """What would have happened if forward and backward had been computed in this type."""
    ahead: int = 1
    """Steps to train after the step, as trained and with each intervention."""
    start: int | None = None
    """Start from the checkpoint of this step, or from the beginning (0), to compare more steps with the journal; by
    default from the nearest."""
    json: bool = False
    """Print the result as JSON, and nothing else on standard output."""
