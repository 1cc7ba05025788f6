"""COLMAP's binary files: cameras.bin, images.bin, points3D.bin (little endian, records of varying length)."""

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

_COUNT = struct.Struct("<Q")
_CAMERA = struct.Struct("<IiQQ")
_IMAGE = struct.Struct("<I7dI")
_OBSERVATION = 24  # bytes: x, y, point id
_POINT = np.dtype([("id", "<u8"), ("position", "<f8", 3), ("colour", "u1", 3), ("error", "<f8"), ("track", "<u8")])
_TRACK_LENGTH = _POINT.itemsize - _COUNT.size
_MODELS = {number: (name, parameters) for name, (number, parameters) in LENS_MODELS.items()}


class _Bytes:
    """A file in memory, read from front to back; refuses to read past its end."""

    def __init__(self, path: Path) -> None:
        if pointer := pointer_text(path):
            raise ColmapError(pointer)
        self.path = path
        self.data = path.read_bytes()
        self.place = 0

    def take(self, layout: struct.Struct) -> tuple[int | float, ...]:
        start = self.skip(layout.size)
        return layout.unpack_from(self.data, start)

    def skip(self, size: int) -> int:
        """Go on by `size` bytes; return where they begin."""
        start = self.place
        if size > len(self.data) - start:
            msg = (
                f"{self.path} is cut short or damaged: its {len(self.data)} bytes end where {size} more should follow "
                f"byte {start}; copy the model again, or export it again with 'colmap model_converter'"
            )
            raise ColmapError(msg)
        self.place += size
        return start

    def text(self) -> str:
        """Read up to the next zero byte."""
        end = self.data.find(b"\0", self.place)
        start = self.skip((len(self.data) if end < 0 else end) + 1 - self.place)
        return self.data[start:end].decode("utf-8", "replace")

    def count(self) -> int:
        return int(self.take(_COUNT)[0])


def read_cameras(path: Path) -> dict[int, Lens]:
    """Read cameras.bin.

    Raises:
        ColmapError: the file is damaged or has a camera that no pinhole camera can stand in for.
    """
    file = _Bytes(path)
    lenses: dict[int, Lens] = {}
    for _ in range(file.count()):
        number, model, width, height = map(int, file.take(_CAMERA))
        name, parameters = _MODELS.get(model, (f"number {model}", ()))
        values = file.take(struct.Struct(f"<{len(parameters)}d"))
        lenses[number] = lens_of(path, number, name, (width, height), values)
    return lenses


def read_images(path: Path) -> list[RegisteredImage]:
    """Read images.bin; the 2D observations are skipped.

    Raises:
        ColmapError: the file is damaged or a pose is not finite.
    """
    file = _Bytes(path)
    images: list[RegisteredImage] = []
    for _ in range(file.count()):
        number, *pose, camera = file.take(_IMAGE)
        name = file.text()
        file.skip(file.count() * _OBSERVATION)
        images.append(image_of(path, int(number), name, int(camera), pose))
    return images


def read_points(path: Path) -> SparsePoints:
    """Read points3D.bin; a model may have no points.

    Raises:
        ColmapError: the file is damaged or a point is not finite.
    """
    file = _Bytes(path)
    starts: list[int] = []
    for _ in range(file.count()):
        start = file.skip(_POINT.itemsize)
        starts.append(start)
        file.skip(8 * _COUNT.unpack_from(file.data, start + _TRACK_LENGTH)[0])
    data = np.frombuffer(file.data, np.uint8)
    begins = np.array(starts, np.int64)
    records = data[begins[:, None] + np.arange(_POINT.itemsize)].view(_POINT)[:, 0]
    lengths = records["track"].astype(np.int64)
    owners = np.repeat(np.arange(len(records)), lengths)
    return points_of(
        path,
        positions=records["position"],
        colours=records["colour"],
        errors=records["error"],
        track_points=owners,
        track_images=_tracks(data, begins + _POINT.itemsize, lengths, owners),
    )


def _tracks(
    data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64], owners: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Image id of every track element (each is an image id and an index, four bytes each)."""
    first = np.cumsum(lengths) - lengths
    places = begins[owners] + 8 * (np.arange(len(owners)) - first[owners])
    return data[places[:, None] + np.arange(4)].view("<u4")[:, 0].astype(np.int64)


def write_cameras(path: Path, lenses: dict[int, Lens]) -> None:
    """Write cameras.bin; only pinhole cameras."""
    pieces = [_COUNT.pack(len(lenses))]
    for number, lens in lenses.items():
        pieces.append(_CAMERA.pack(number, LENS_MODELS["PINHOLE"][0], lens.width, lens.height))
        pieces.append(struct.pack("<4d", lens.fx, lens.fy, lens.cx, lens.cy))
    write_file(path, b"".join(pieces))


def write_images(path: Path, images: list[tuple[int, str, int, list[float]]]) -> None:
    """Write images.bin without 2D observations, from id, name, camera id and pose (w, x, y, z, then translation)."""
    pieces = [_COUNT.pack(len(images))]
    for number, name, camera, pose in images:
        pieces += [_IMAGE.pack(number, *pose, camera), name.encode() + b"\0", _COUNT.pack(0)]
    write_file(path, b"".join(pieces))


def write_points(path: Path, positions: torch.Tensor, colours: torch.Tensor) -> None:
    """Write points3D.bin without tracks."""
    records = np.zeros(len(positions), _POINT)
    records["id"] = np.arange(1, len(positions) + 1)
    records["position"] = positions.double().numpy()
    records["colour"] = colours.numpy()
    write_file(path, _COUNT.pack(len(records)) + records.tobytes())
