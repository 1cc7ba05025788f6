"""Data of the three pipelines, and the ways in which it can be wrong."""

import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fieldwatch.recon.data import PhotoSet, solid_photos
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.data.normal_maps import synthetic_normal_maps, write_normal_maps
from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.geometry import Camera

ROOT = Path(__file__).resolve().parent.parent.parent
REAL = ROOT / "data" / "real"
Spoil = Callable[[Path], None]
"""Changes a data set on the disk."""
Shot = Callable[[Camera], tuple[np.ndarray, np.ndarray]]
"""Returns where the rays of a camera end, and the colors there."""


@dataclass(kw_only=True)
class Registered:
    """A record of images.bin (https://colmap.github.io/format.html).

    Attributes:
        number: id of the image.
        pose: quaternion (w, x, y, z) and translation of camera_from_world.
        camera: id of the lens.
        name: file name.
        seen: observations, each x and y in pixels and the id of the point.
    """

    number: int
    pose: tuple[float, ...]
    camera: int
    name: str
    seen: list[tuple[float, float, int]]


def read_registered(scene: Path) -> list[Registered]:
    """Read images.bin of a scene."""
    data = (scene / "sparse" / "0" / "images.bin").read_bytes()
    (count,) = struct.unpack_from("<Q", data)
    at = 8
    records: list[Registered] = []
    for _ in range(count):
        number, *pose, camera = struct.unpack_from("<I7dI", data, at)
        end = data.index(b"\0", at + 64)
        (many,) = struct.unpack_from("<Q", data, end + 1)
        seen = list(struct.iter_unpack("<ddq", data[end + 9 : end + 9 + 24 * many]))
        name = data[at + 64 : end].decode()
        records.append(Registered(number=number, pose=tuple(pose), camera=camera, name=name, seen=seen))
        at = end + 9 + 24 * many
    return records


def write_registered(scene: Path, records: Sequence[Registered]) -> None:
    """Write images.bin of a scene."""
    chunks = [struct.pack("<Q", len(records))]
    for one in records:
        chunks.append(struct.pack("<I7dI", one.number, *one.pose, one.camera))
        chunks += [one.name.encode(), b"\0", struct.pack("<Q", len(one.seen))]
        chunks += [struct.pack("<ddq", *seen) for seen in one.seen]
    (scene / "sparse" / "0" / "images.bin").write_bytes(b"".join(chunks))


# Photos


def solid_scene(views: int, size: int, points: int) -> Spoil:
    """Return what writes the built-in scene as a COLMAP folder, with the observations of its points."""

    def write(folder: Path) -> None:
        photos = solid_photos(views=views, size=size, points=points, samples=1)
        write_colmap(folder, photos)
        observe(folder, photos.cameras, photos.points)

    return write


def write_shots(folder: Path, cameras: Sequence[Camera], shot: Shot, points: int, source: str) -> None:
    """Write what cameras see as a COLMAP folder, with points on what they hit and their observations.

    Args:
        folder: new folder.
        cameras: cameras of square photos.
        shot: returns where the rays of a camera end, and the colors there.
        points: number of points, which is also the seed of their choice.
        source: name of the data.
    """

    def read(index: int) -> PhotoPixels:
        _, colors = shot(cameras[index])
        size = cameras[index].width
        return PhotoPixels(image=torch.from_numpy(np.rint(255 * colors).astype(np.uint8).reshape(size, size, 3)))

    draw = np.random.default_rng(points)
    places: list[np.ndarray] = []
    paints: list[np.ndarray] = []
    for camera in cameras:
        hit, color = shot(camera)
        picked = draw.choice(len(hit), points // len(cameras), replace=False)
        places.append(hit[picked] + 0.01 * draw.normal(size=(len(picked), 3)))
        paints.append(color[picked])
    photos = PhotoSet(
        cameras=tuple(cameras),
        read=read,
        points=torch.from_numpy(np.concatenate(places).astype(np.float32)),
        colors=torch.from_numpy(np.rint(255 * np.concatenate(paints)).astype(np.uint8)),
        train=tuple(range(len(cameras))),
        test=(),
        source=source,
    )
    write_colmap(folder, photos)
    observe(folder, photos.cameras, photos.points)


def observe(scene: Path, cameras: Sequence[Camera], points: torch.Tensor) -> None:
    """Add the projection of every point into every photo to a COLMAP folder, as observations and tracks."""
    records = read_registered(scene)
    tracks: list[list[tuple[int, int]]] = [[] for _ in points]
    for record, camera in zip(records, cameras, strict=True):
        camera_from_world = torch.linalg.inv(camera.world_from_camera.double())
        local = points.double() @ camera_from_world[:3, :3].T + camera_from_world[:3, 3]
        x = camera.fx * local[:, 0] / local[:, 2] + camera.cx
        y = camera.fy * local[:, 1] / local[:, 2] + camera.cy
        inside = (local[:, 2] > 0) & (x >= 0) & (y >= 0) & (x < camera.width) & (y < camera.height)
        for point in torch.nonzero(inside).flatten().tolist():
            tracks[point].append((record.number, len(record.seen)))
            record.seen.append((float(x[point]), float(y[point]), point + 1))
    write_registered(scene, records)
    path = scene / "sparse" / "0" / "points3D.bin"
    data = path.read_bytes()
    size = (len(data) - 8) // len(points)
    chunks = [data[:8]]
    for i, track in enumerate(tracks):
        head = data[8 + size * i : 8 + size * i + 43]
        chunks += [head, struct.pack("<Q", len(track)), *(struct.pack("<II", *one) for one in track)]
    path.write_bytes(b"".join(chunks))


def plush_scene(folder: Path) -> None:
    """Copy the photos of the plush toy."""
    shutil.copytree(REAL / "colmap_plush", folder)


def swap_names(first: int, second: int) -> Spoil:
    """Swap the file names of two photos: each gets the pose of the other."""

    def spoil(scene: Path) -> None:
        records = read_registered(scene)
        one = records[first]
        other = records[second]
        one.name, other.name = other.name, one.name
        write_registered(scene, records)

    return spoil


def shuffle_poses(seed: int) -> Spoil:
    """Give every photo the pose of another one; the observations stay with the photo."""

    def spoil(scene: Path) -> None:
        records = read_registered(scene)
        order = np.random.default_rng(seed).permutation(len(records))
        poses = [records[i].pose for i in order]
        for record, pose in zip(records, poses, strict=True):
            record.pose = pose
        write_registered(scene, records)

    return spoil


def turn_pose(index: int, degrees: float) -> Spoil:
    """Turn one camera about its optical axis."""

    def spoil(scene: Path) -> None:
        records = read_registered(scene)
        half = np.radians(degrees) / 2
        w, x, y, z, *moved = records[index].pose
        c = float(np.cos(half))
        s = float(np.sin(half))
        turned = (c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w)
        angle = np.radians(degrees)
        across = (
            np.cos(angle) * moved[0] - np.sin(angle) * moved[1],
            np.sin(angle) * moved[0] + np.cos(angle) * moved[1],
        )
        records[index].pose = (*turned, float(across[0]), float(across[1]), moved[2])
        write_registered(scene, records)

    return spoil


def move_far(index: int, distance: float) -> Spoil:
    """Put one camera far away."""

    def spoil(scene: Path) -> None:
        records = read_registered(scene)
        records[index].pose = (*records[index].pose[:4], distance, distance, distance)
        write_registered(scene, records)

    return spoil


def scale_focal(factor: float) -> Spoil:
    """Multiply the focal lengths of all PINHOLE cameras."""

    def spoil(scene: Path) -> None:
        path = scene / "sparse" / "0" / "cameras.bin"
        data = bytearray(path.read_bytes())
        (count,) = struct.unpack_from("<Q", data)
        for i in range(count):
            at = 8 + 56 * i + 24
            fx, fy = struct.unpack_from("<2d", data, at)
            struct.pack_into("<2d", data, at, factor * fx, factor * fy)
        path.write_bytes(bytes(data))

    return spoil


def scale_points(factor: float) -> Spoil:
    """Multiply the coordinates of all points of a scene, but not its cameras."""

    def spoil(scene: Path) -> None:
        path = scene / "sparse" / "0" / "points3D.bin"
        data = bytearray(path.read_bytes())
        (count,) = struct.unpack_from("<Q", data)
        at = 8
        for _ in range(count):
            place = struct.unpack_from("<3d", data, at + 8)
            struct.pack_into("<3d", data, at + 8, *(factor * value for value in place))
            (many,) = struct.unpack_from("<Q", data, at + 43)
            at += 51 + 8 * many
        path.write_bytes(bytes(data))

    return spoil


def change_photo(index: int, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    """Change the pixels of one photo, given as float array of 0 to 1, shape [height, width, 3]."""

    def spoil(scene: Path) -> None:
        path = scene / "images" / sorted(read_registered(scene), key=lambda one: one.name)[index].name
        _change_picture(path, change)

    return spoil


def change_photos(every: int, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    """Change the pixels of one photo of so many, and leave its camera."""

    def spoil(folder: Path) -> None:
        for path in sorted((folder / "images").iterdir())[1::every]:
            _change_picture(path, change)

    return spoil


def photos_of(scene: Path) -> list[Path]:
    """Return the photos of a scene in order."""
    return sorted((scene / "images").iterdir())


def upside_down(pixels: np.ndarray) -> np.ndarray:
    """Turn a picture by half a turn."""
    return pixels[::-1, ::-1]


def magnified(pixels: np.ndarray) -> np.ndarray:
    """Show the middle of a picture 1.7 times as large."""
    height, width = pixels.shape[:2]
    rows = ((np.arange(height) + 0.5 - height / 2) / 1.7 + height / 2).astype(int)
    columns = ((np.arange(width) + 0.5 - width / 2) / 1.7 + width / 2).astype(int)
    return pixels[rows][:, columns]


def _change_picture(path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"), np.float32) / 255
    changed = np.round(255 * np.clip(change(pixels), 0, 1)).astype(np.uint8)
    # A symbolic or hard link to the real data must not be written through.
    path.unlink()
    Image.fromarray(changed).save(path, quality=95)


# Normal maps: float32 .npy files in OpenGL axes, masks and cameras_sphere.npz


def normal_files(folder: Path) -> list[Path]:
    """Return the files of the normals in order."""
    return sorted((folder / "normal_camera_space_GT").glob("*.npy"))


def flip_axes(*signs: float) -> Spoil:
    """Multiply the axes of all normals."""

    def spoil(folder: Path) -> None:
        for path in normal_files(folder):
            np.save(path, np.load(path) * np.array(signs, np.float32))

    return spoil


def flatten_normals(factor: float) -> Spoil:
    """Multiply the slopes of all normals, as an estimator that sees too little shade does."""

    def spoil(folder: Path) -> None:
        for path in normal_files(folder):
            normals = np.load(path) * np.array([factor, factor, 1.0], np.float32)
            np.save(path, normals / np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-6))

    return spoil


def swap_axes(folder: Path) -> None:
    """Exchange x and y of all normals, as channels read in the wrong order do."""
    for path in normal_files(folder):
        np.save(path, np.load(path)[..., [1, 0, 2]])


def replace_normals(index: int, source: int) -> Spoil:
    """Turn the normals of one view by a quarter around the optical axis, those of ``source``, within its own mask."""

    def spoil(folder: Path) -> None:
        files = normal_files(folder)
        normals = np.load(files[source])
        np.save(files[index], np.stack([-normals[..., 1], normals[..., 0], normals[..., 2]], axis=-1))

    return spoil


def swap_masks(first: int, second: int) -> Spoil:
    """Swap the masks of two views."""

    def spoil(folder: Path) -> None:
        files = sorted((folder / "mask").glob("*.png"))
        one = files[first].read_bytes()
        files[first].write_bytes(files[second].read_bytes())
        files[second].write_bytes(one)

    return spoil


def change_cameras(order: Callable[[int], Sequence[int]]) -> Spoil:
    """Give the views of normal maps the cameras of others."""

    def spoil(folder: Path) -> None:
        path = folder / "cameras_sphere.npz"
        with np.load(path) as stored:
            cameras = dict(stored)
        count = len(normal_files(folder))
        moved = {key: value for key, value in cameras.items() if not key.startswith("world_mat_")}
        for place, source in enumerate(order(count)):
            moved |= {f"world_mat_{place}": cameras[f"world_mat_{source}"]}
            if f"world_mat_inv_{source}" in cameras:
                moved[f"world_mat_inv_{place}"] = cameras[f"world_mat_inv_{source}"]
        np.savez(path, **moved)

    return spoil


# Frames


def bunny_frames(count: int, size: tuple[int, int], first: int = 0) -> Spoil:
    """Return what writes frames of the bunny clip, scaled to (width, height)."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        files = [path for path in sorted((REAL / "video_bunny").iterdir()) if path.suffix in {".png", ".jpg"}]
        for i, path in enumerate(files[first : first + count]):
            with Image.open(path) as image:
                image.convert("RGB").resize(size, Image.Resampling.BOX).save(folder / f"{i:04d}.png")

    return write


def wave_frames(count: int, height: int = 24, width: int = 48) -> Spoil:
    """Return what writes a clip of moving waves."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        y, x = np.mgrid[0:height, 0:width] / height
        for i in range(count):
            waves = np.stack([np.sin(7 * x + i / 4), np.cos(6 * y - i / 5), np.sin(3 * (x + y) + i / 3)], axis=-1)
            Image.fromarray(np.round(127.5 + 100 * waves).astype(np.uint8)).save(folder / f"{i:04d}.png")

    return write


def shuffle_frames(seed: int) -> Spoil:
    """Shuffle the frames of a clip in time."""

    def spoil(folder: Path) -> None:
        files = sorted(folder.glob("*.png"))
        contents = [path.read_bytes() for path in files]
        for path, i in zip(files, np.random.default_rng(seed).permutation(len(files)), strict=True):
            path.write_bytes(contents[i])

    return spoil


def change_frame(index: int, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    """Change the pixels of one frame."""
    return lambda folder: _change_picture(sorted(folder.glob("*.png"))[index], change)


def noise_like(pixels: np.ndarray) -> np.ndarray:
    """Return noise of the size of a picture."""
    return np.random.default_rng(3).random(pixels.shape)


def built_in_normals(views: int, size: int) -> Spoil:
    """Return what writes the built-in object as normal maps."""

    def write(folder: Path) -> None:
        write_normal_maps(synthetic_normal_maps(views=views, size=size, depth="none"), folder, kind="npy")

    return write


def scale_cameras(index: int, factor: float) -> Spoil:
    """Multiply the projection of one view of normal maps in x, as a wrong focal length does."""

    def spoil(folder: Path) -> None:
        path = folder / "cameras_sphere.npz"
        with np.load(path) as stored:
            cameras = dict(stored)
        cameras = {key: value for key, value in cameras.items() if not key.startswith("world_mat_inv_")}
        for key in [key for key in cameras if key.startswith("world_mat_") and index in {-1, int(key.split("_")[-1])}]:
            # Rows 0 and 1 of the projection hold focal length and principal point: scale about the middle of the view.
            matrix = cameras[key].astype(np.float64)
            middle = np.load(normal_files(folder)[0]).shape[1] / 2
            matrix[:2] = factor * matrix[:2] + (1 - factor) * middle * matrix[2]
            cameras[key] = matrix
        np.savez(path, **cameras)

    return spoil


def plush_names(*indices: int) -> tuple[str, ...]:
    """Return the names of photos of the plush toy, by their place in images.bin."""
    records = read_registered(REAL / "colmap_plush")
    return tuple(records[i].name for i in indices)
