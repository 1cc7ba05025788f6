"""COLMAP's binary files: cameras.bin, images.bin, points3D.bin (little endian, variable-length records)."""

import struct
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwatch.files import write_file
from fieldwatch.recon.data.colmap.checks import image_of, lens_of, points_of
from fieldwatch.recon.data.colmap.error import ColmapError
from fieldwatch.recon.data.colmap.model import RegisteredImage, SparsePoints
from fieldwatch.recon.data.git_lfs import pointer_text
from fieldwatch.recon.geometry import LENS_MODELS, Lens

# Record layouts: https://colmap.github.io/format.html
_COUNT = struct.Struct("<Q")
_CAMERA = struct.Struct("<IiQQ")
_IMAGE = struct.Struct("<I7dI")
_OBSERVATION = 24  # bytes: x, y, point id
_OBSERVED = np.dtype([("x", "<f8"), ("y", "<f8"), ("point", "<i8")])
_POINT = np.dtype([("id", "<u8"), ("position", "<f8", 3), ("color", "u1", 3), ("error", "<f8"), ("track", "<u8")])
_TRACK_LENGTH = _POINT.itemsize - _COUNT.size
_MODELS = {number: (name, parameters) for name, (number, parameters) in LENS_MODELS.items()}


class _ByteReader:
    """Sequential reader over a file in memory that refuses to read past its end."""

    def __init__(self, path: Path) -> None:
        # Repositories often store models with Git LFS, and an unfetched pointer would parse as garbage.
        if pointer := pointer_text(path):
            raise ColmapError(pointer)
        self.path = path
        self.data = path.read_bytes()
        self.offset = 0

    def take(self, layout: struct.Struct) -> tuple[int | float, ...]:
        start = self.skip(layout.size)
        return layout.unpack_from(self.data, start)

    def skip(self, size: int) -> int:
        """Advance by `size` bytes and return the offset of the first one."""
        start = self.offset
        if size > len(self.data) - start:
            msg = (
                f"{self.path} is cut short or damaged: expected {size} more bytes at offset {start}, got "
                f"{len(self.data) - start} (file size {len(self.data)} bytes); copy the model again, or export it "
                "again with 'colmap model_converter'"
            )
            raise ColmapError(msg)
        self.offset += size
        return start

    def text(self) -> str:
        """Read a zero-terminated string."""
        end = self.data.find(b"\0", self.offset)
        start = self.skip((len(self.data) if end < 0 else end) + 1 - self.offset)
        return self.data[start:end].decode("utf-8", "replace")

    def count(self) -> int:
        return int(self.take(_COUNT)[0])


def read_cameras(path: Path) -> dict[int, Lens]:
    """Read cameras.bin.

    Raises:
        ColmapError: if the file is damaged or has a camera model that cannot be undistorted to a pinhole camera.
    """
    file = _ByteReader(path)
    lenses: dict[int, Lens] = {}
    for _ in range(file.count()):
        camera_id, model_number, width, height = map(int, file.take(_CAMERA))
        name, parameters = _MODELS.get(model_number, (f"number {model_number}", ()))
        values = file.take(struct.Struct(f"<{len(parameters)}d"))
        # Unknown model numbers get no parameters here; lens_of reports them by number.
        lenses[camera_id] = lens_of(path, camera_id, name, (width, height), values)
    return lenses


def read_images(path: Path) -> list[RegisteredImage]:
    """Read images.bin without its 2D observations.

    Raises:
        ColmapError: if the file is damaged or a pose is not finite.
    """
    file = _ByteReader(path)
    images: list[RegisteredImage] = []
    for _ in range(file.count()):
        image_id, *pose, camera_id = file.take(_IMAGE)
        name = file.text()
        # 2D observations are redundant: the tracks of the points list the images that see them.
        file.skip(file.count() * _OBSERVATION)
        images.append(image_of(path, int(image_id), name, int(camera_id), pose))
    return images


def read_observations(path: Path, most: int) -> dict[int, NDArray[np.float64]]:
    """Read the 2D observations of images.bin: x, y and point id of at most ``most`` per photo, by the photo's id.

    Raises:
        ColmapError: if the file is damaged.
    """
    file = _ByteReader(path)
    observed: dict[int, NDArray[np.float64]] = {}
    for _ in range(file.count()):
        image_id = int(file.take(_IMAGE)[0])
        file.text()
        count = file.count()
        table = np.frombuffer(file.data, _OBSERVED, count, file.skip(count * _OBSERVATION))
        # Most corners belong to no point, which the id -1 says.
        table = table[table["point"] >= 0]
        table = table[:: max(-(-len(table) // most), 1)]
        observed[image_id] = np.stack([table["x"], table["y"], table["point"].astype(np.float64)], axis=1)
    return observed


def read_points(path: Path) -> SparsePoints:
    """Read points3D.bin. A model may have no points.

    Raises:
        ColmapError: if the file is damaged or a point is not finite.
    """
    file = _ByteReader(path)
    starts: list[int] = []
    for _ in range(file.count()):
        start = file.skip(_POINT.itemsize)
        starts.append(start)
        # Each track element is an image id and an index, four bytes each.
        file.skip(8 * _COUNT.unpack_from(file.data, start + _TRACK_LENGTH)[0])
    data = np.frombuffer(file.data, np.uint8)
    point_starts = np.array(starts, np.int64)
    # Tracks make the records variable-length, so the fixed-size parts are gathered by offset.
    records = data[point_starts[:, None] + np.arange(_POINT.itemsize)].view(_POINT)[:, 0]
    lengths = records["track"].astype(np.int64)
    owners = np.repeat(np.arange(len(records)), lengths)
    return points_of(
        path,
        positions=records["position"],
        colors=records["color"],
        errors=records["error"],
        track_points=owners,
        track_images=_track_image_ids(data, point_starts + _POINT.itemsize, lengths, owners),
        ids=records["id"].astype(np.int64),
    )


def _track_image_ids(
    data: NDArray[np.uint8], track_starts: NDArray[np.int64], lengths: NDArray[np.int64], owners: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the image id of every track element (an image id and an index of four bytes each)."""
    # Index of each element within the track of its point, without a Python loop.
    first_elements = np.cumsum(lengths) - lengths
    offsets = track_starts[owners] + 8 * (np.arange(len(owners)) - first_elements[owners])
    return data[offsets[:, None] + np.arange(4)].view("<u4")[:, 0].astype(np.int64)


def write_cameras(path: Path, lenses: dict[int, Lens]) -> None:
    """Write cameras.bin with the model PINHOLE; distortion parameters are ignored."""
    chunks = [_COUNT.pack(len(lenses))]
    # Photo sets are already undistorted, so all lenses are pinholes.
    for camera_id, lens in lenses.items():
        chunks.append(_CAMERA.pack(camera_id, LENS_MODELS["PINHOLE"][0], lens.width, lens.height))
        chunks.append(struct.pack("<4d", lens.fx, lens.fy, lens.cx, lens.cy))
    write_file(path, b"".join(chunks))


def write_images(path: Path, images: list[tuple[int, str, int, list[float]]]) -> None:
    """Write images.bin without 2D observations.

    Args:
        path: destination.
        images: id, name, camera id and pose (quaternion w, x, y, z, then translation) of every image.
    """
    chunks = [_COUNT.pack(len(images))]
    for image_id, name, camera_id, pose in images:
        chunks += [_IMAGE.pack(image_id, *pose, camera_id), name.encode() + b"\0", _COUNT.pack(0)]
    write_file(path, b"".join(chunks))


def write_points(path: Path, positions: torch.Tensor, colors: torch.Tensor) -> None:
    """Write points3D.bin without tracks."""
    records = np.zeros(len(positions), _POINT)
    records["id"] = np.arange(1, len(positions) + 1)
    records["position"] = positions.double().numpy()
    records["color"] = colors.numpy()
    write_file(path, _COUNT.pack(len(records)) + records.tobytes())
