"""Looking at one step of a run: a copy is trained up to it, and the run itself is only read."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fieldwatch.record import read_history, read_manifest
from fieldwatch.replay.equality import Equality
from fieldwatch.replay.replay import Replay
from fieldwatch.replay.scratch import check_step, copy_run
from fieldwatch.replay.variants import Variant

FORMAT = 1


def look_at_step(  # noqa: PLR0913  the step, and what to do with it
    run: Path,
    step: int,
    loop: Callable[[Path], Any],
    *,
    scratch_root: Path,
    variants: Sequence[Variant] = (),
    ahead: int = 1,
    start: int | None = None,
) -> dict[str, Any]:
    """Train a copy of a run from its nearest checkpoint up to a step, and look at that step.

    Without a checkpoint at or before the step, the copy is trained from the beginning.

    Args:
        run: run folder; it is only read, and may still be training.
        step: 0-based index of the step.
        loop: function that trains in the given copy of the run folder; it is called again after an exception.
        scratch_root: existing folder for the copy, which is deleted at the end.
        variants: interventions that are made beside the unmodified step.
        ahead: number of steps to train after the step, to see the effect of an intervention.
        start: step of the checkpoint to start from, 0 for the beginning; None for the nearest.

    Returns:
        The result as plain values that JSON can represent; numbers that are not finite are their names.

    Raises:
        NotARun: the folder holds no run.
        InputError: there is no checkpoint of the step ``start``, the run has not reached the step, the loop does not
            train this run, or an intervention names what the step does not have.
    """
    began = time.monotonic()
    manifest = read_manifest(run)
    history = read_history(run)
    check_step(run, step, history.step)
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=scratch_root) as folder:
        scratch = Path(folder) / run.resolve().name
        first = copy_run(run, scratch, step, start)
        _use_threads(manifest.segments, step)
        equality = Equality(run, history, manifest)
        replay = Replay(run, scratch, step, variants=variants, ahead=ahead, equality=equality)
        replay.train(lambda: loop(scratch))
    facts = {
        "format": FORMAT,
        "run": str(run),
        "start": first or 0,
        "from_checkpoint": first is not None,
        "seconds": time.monotonic() - began,
    }
    return facts | replay.plain()


def _use_threads(segments: Sequence[Any], step: int) -> None:
    """Use as many threads as the process that trained the step: sums over several threads are rounded differently."""
    known = [segment["threads"] for segment in segments if segment["step"] <= step and "threads" in segment]
    if known and isinstance(known[-1], int) and known[-1] > 0:
        torch.set_num_threads(known[-1])
