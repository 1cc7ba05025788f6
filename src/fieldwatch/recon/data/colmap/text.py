"""COLMAP's text files: cameras.txt, images.txt, points3D.txt."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.data.colmap.checks import image_of, lens_of, points_of
from fieldwatch.recon.data.colmap.error import ColmapError
from fieldwatch.recon.data.colmap.model import RegisteredImage, SparsePoints
from fieldwatch.recon.geometry import Lens

_T = TypeVar("_T")


def read_cameras(path: Path) -> dict[int, Lens]:
    """Read cameras.txt: lines of id, model, width, height, parameters.

    Raises:
        ColmapError: if a line is malformed.
    """
    lenses: dict[int, Lens] = {}
    for line_number, line in _lines(path):
        fields = line.split()
        if not fields:
            continue
        camera_id, width, height = _parsed(path, line_number, line, lambda w=fields: (int(w[0]), int(w[2]), int(w[3])))
        parameters = _parsed(path, line_number, line, lambda w=fields: [float(word) for word in w[4:]])
        lenses[camera_id] = lens_of(path, camera_id, fields[1], (width, height), parameters)
    return lenses


def read_images(path: Path) -> list[RegisteredImage]:
    """Read images.txt: two lines per photo, the pose and the (possibly empty) observations.

    Raises:
        ColmapError: if a line is malformed.
    """
    images: list[RegisteredImage] = []
    lines = _lines(path)
    for line_number, line in lines:
        if not line.strip():
            continue  # blank line between the comments and the first photo
        # File names may contain spaces, so the tenth field extends to the end of the line.
        fields = line.split(maxsplit=9)
        image_id, camera_id = _parsed(path, line_number, line, lambda w=fields: (int(w[0]), int(w[8])))
        pose = _parsed(path, line_number, line, lambda w=fields: [float(word) for word in w[1:8]])
        name = _parsed(path, line_number, line, lambda w=fields: w[9].strip())
        images.append(image_of(path, image_id, name, camera_id, pose))
        # The second line holds the 2D observations, which are redundant with the tracks of the points.
        next(lines, None)
    return images


def read_observations(path: Path, most: int) -> dict[int, NDArray[np.float64]]:
    """Read the 2D observations of images.txt: x, y and point id of at most ``most`` per photo, by the photo's id.

    Raises:
        ColmapError: if a line is malformed.
    """
    observed: dict[int, NDArray[np.float64]] = {}
    lines = _lines(path)
    for line_number, line in lines:
        if not line.strip():
            continue  # as in `read_images`
        image_id = _parsed(path, line_number, line, lambda text=line: int(text.split(maxsplit=1)[0]))
        number, second = next(lines, (line_number, ""))
        table = _parsed(path, number, second, lambda text=second: np.array(text.split(), np.float64).reshape(-1, 3))
        table = table[table[:, 2] >= 0]
        observed[image_id] = table[:: max(-(-len(table) // most), 1)]
    return observed


def read_points(path: Path) -> SparsePoints:
    """Read points3D.txt: lines of id, x, y, z, r, g, b, error and pairs of image id and index.

    Raises:
        ColmapError: if a line is malformed.
    """
    rows: list[list[float]] = []
    ids: list[int] = []
    owners: list[int] = []
    image_ids: list[int] = []
    for line_number, line in _lines(path):
        fields = line.split()
        if not fields:
            continue
        # Tracks are pairs of image id and 2D index; only the image ids are used.
        track = _parsed(
            path, line_number, line, lambda w=fields: np.array([int(word) for word in w[8::2]], np.int64).tolist()
        )
        ids.append(_parsed(path, line_number, line, lambda w=fields: int(w[0])))
        rows.append(_parsed(path, line_number, line, lambda w=fields: [float(w[i]) for i in range(1, 8)]))
        owners += [len(rows) - 1] * len(track)
        image_ids += track
    table = np.array(rows, np.float64).reshape(-1, 7)
    return points_of(
        path,
        positions=table[:, :3],
        # Edited files may contain out-of-range colors, which would wrap around.
        colors=table[:, 3:6].clip(0, 255).astype(np.uint8),
        errors=table[:, 6],
        track_points=np.array(owners, np.int64),
        track_images=np.array(image_ids, np.int64),
        ids=np.array(ids, np.int64),
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of every line that is not a comment."""
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from ((line_number, line) for line_number, line in enumerate(file, 1) if not line.startswith("#"))


def _parsed(path: Path, line_number: int, line: str, parse: Callable[[], _T]) -> _T:
    try:
        return parse()
    except (ValueError, IndexError, OverflowError) as error:
        msg = (
            f"{path}, line {line_number}: malformed line {line.strip()[:80]!r} ({error}); export the model again with "
            "'colmap model_converter'"
        )
        raise ColmapError(msg) from error
