"""Timeline of the poses over a training: one file of poses per entry, and a table of the changes."""

from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.files import output_path, read_npy, whole_file
from fieldwatch.recon.pipelines.normals.pose_accuracy import PoseErrors, rotation_angles

FOLDER = "poses"
TIMELINE = "timeline.json"


@dataclass(frozen=True, kw_only=True)
class PoseEntry:
    """Pose statistics at one iteration, averaged over the views.

    Angles are in degrees, distances in units of the scene's sphere.

    Attributes:
        iteration: nominal iteration.
        rotation_change: rotation since the previous entry; 0 for the first.
        translation_change: displacement since the previous entry; 0 for the first.
        rotation_from_start: rotation since the start of the run.
        translation_from_start: displacement since the start of the run.
        rotation_error: rotation error relative to the dataset's poses after a similarity alignment; None if the poses
            are the dataset's.
        position_error: position error, measured likewise.
    """

    iteration: int
    rotation_change: float
    translation_change: float
    rotation_from_start: float
    translation_from_start: float
    rotation_error: float | None = None
    position_error: float | None = None


def pose_file(folder: Path, iteration: int) -> Path:
    """Return the path of the poses of a nominal iteration: `poses/%08d.npy` in the run folder."""
    return output_path(folder, FOLDER, f"{iteration:08d}.npy")


def add_poses(  # noqa: PLR0913  folder, iteration, poses and names, and two sets of poses to compare with
    folder: Path,
    iteration: int,
    poses: Float[Tensor, "views 4 4"],
    *,
    start: Float[Tensor, "views 4 4"],
    names: tuple[str, ...],
    errors: PoseErrors | None = None,
) -> PoseEntry:
    """Write poses and add them to the timeline.

    Entries at or after the iteration are replaced, because a resumed run repeats them.

    `poses/%08d.npy` contains `world_from_camera` (views 4 4), float64, in the frame of the scene's sphere, as in PMNI.
    `poses/timeline.json` contains the names of the views and the entries.

    Args:
        folder: run folder.
        iteration: nominal iteration.
        poses: current poses.
        start: initial poses.
        names: names of the views, in the order of the poses.
        errors: errors relative to the dataset's poses.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the timeline is damaged.
    """
    # In float64, so that changes between entries are not lost in rounding.
    poses = poses.detach().double().cpu()
    start = start.detach().double().cpu()
    # A resumed run may continue from before the last entries.
    entries = [entry for entry in read_timeline(folder) if entry.iteration < iteration]
    before = poses
    if entries:
        before = torch.from_numpy(read_npy(pose_file(folder, entries[-1].iteration), largest=poses.nbytes))
    changes = _moved(poses, before)
    since = _moved(poses, start)
    entry = PoseEntry(
        iteration=iteration,
        rotation_change=changes[0],
        translation_change=changes[1],
        rotation_from_start=since[0],
        translation_from_start=since[1],
        rotation_error=None if errors is None else float(errors.rotations.mean()),
        position_error=None if errors is None else float(errors.positions.mean()),
    )
    # Written to memory first, because the file is replaced atomically.
    stream = BytesIO()
    np.save(stream, poses.numpy())
    # Written before the table, so that no entry refers to a missing file.
    with whole_file(pose_file(folder, iteration)) as draft:
        draft.write_bytes(stream.getvalue())
    table: dict[str, Any] = {"views": names, "entries": [asdict(item) for item in (*entries, entry)]}
    with whole_file(output_path(folder, FOLDER, TIMELINE)) as draft:
        draft.write_bytes(orjson.dumps(table, option=orjson.OPT_INDENT_2) + b"\n")
    return entry


def read_timeline(folder: Path) -> tuple[PoseEntry, ...]:
    """Return the entries of a run's timeline in order; empty if there is no timeline yet.

    Raises:
        InputError: the timeline is damaged.
    """
    path = output_path(folder, FOLDER, TIMELINE)
    if not path.exists():
        return ()
    try:
        # Unknown or missing fields raise a TypeError, which counts as damage.
        return tuple(PoseEntry(**entry) for entry in orjson.loads(path.read_bytes())["entries"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a pose timeline ({error}): remove it to start a new one") from error


def _moved(poses: Float[Tensor, "views 4 4"], before: Float[Tensor, "views 4 4"]) -> tuple[float, float]:
    angle = rotation_angles(poses[:, :3, :3], before[:, :3, :3]).mean()
    return float(angle), float((poses[:, :3, 3] - before[:, :3, 3]).norm(dim=1).mean())
