"""``fieldwatch eval RUN``: how good a checkpoint is, as tables, pictures and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from fieldwatch.cli.ending import BadInput
from fieldwatch.cli.evaluate_normals import evaluate_normals
from fieldwatch.cli.evaluate_splats import evaluate_splats
from fieldwatch.cli.evaluate_video import evaluate_video
from fieldwatch.cli.opening import RunFlags, refuse_set
from fieldwatch.cli.pipeline import by_pipeline


@dataclass(frozen=True, kw_only=True)
class Arguments(RunFlags):
    """Score a checkpoint on the data it was trained on and on what was held out.

    Example: fieldwatch eval runs/bunny --checkpoint best

    Of a video: quality of every patch and frame, of places between the patches, a report and a map of the embeddings,
    the worst frames as pictures. Of splats and refined meshes: quality of every photo, drawings of them with their
    errors. Of normals: angular errors of every view, trained on and held out, poses, and the mesh where the true one is
    known. All write CSV and metrics.json. The run itself is not changed.
    """

    out: Path | None = None
    """Where the files go; default RUN/products/eval-<step>."""
    positions_frames: int = 10
    """Video: frames, evenly spaced, at which places between the patches are scored too; 0 for none."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = tyro.cli(Arguments, prog="fieldwatch eval", args=arguments)
    if chosen.positions_frames < 0:
        raise BadInput(f"--positions-frames is {chosen.positions_frames}: wanted a number of frames, 0 for none")
    pipeline = by_pipeline(chosen.run, {name: name for name in ("video", "splats", "refined", "normals")})
    if pipeline == "video":
        return evaluate_video(chosen, chosen.out, chosen.positions_frames)
    refuse_set(chosen, ("positions_frames",), f"{chosen.run} holds {pipeline}, which has no frames")
    if pipeline == "normals":
        return evaluate_normals(chosen, chosen.out)
    return evaluate_splats(chosen, chosen.out)
