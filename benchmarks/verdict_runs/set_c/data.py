"""Data of the pipelines: a yard with balls, a ring and a block as meshes, a turning wheel."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.geometry import Camera, look_at
from verdict_runs.commands import run_command
from verdict_runs.scenes import Spoil, normal_files, observe, read_registered, write_registered

Array = np.ndarray
BALLS = ((np.array([0.7, 0.0, 0.45]), 0.45), (np.array([-0.5, 0.6, 0.35]), 0.35), (np.array([-0.3, -0.7, 0.5]), 0.5))
YARD = 1.8
"""Radius of the floor."""


def _shade(points: Array, ball: Array) -> Array:
    """Return colors of points, shape [n, 3]; ``ball`` is -1 on the floor."""
    tiles = (np.floor(1.7 * points[:, 0]) + np.floor(1.7 * points[:, 1])) % 2
    floor = np.stack([0.25 + 0.5 * tiles, 0.35 + 0.25 * tiles, 0.5 - 0.2 * tiles], axis=1)
    wave = 0.5 + 0.35 * np.sin(7 * points[:, 2:3] + 3 * points[:, :1] + 2 * ball[:, None] + np.array([0.0, 2.0, 4.0]))
    return np.where(ball[:, None] < 0, floor, wave)


def _hit(origin: Array, rays: Array) -> tuple[Array, Array, Array]:
    """Return hit points, shape [n, 3], the ball of each (-1 for the floor), and whether a ray hits anything."""
    with np.errstate(divide="ignore"):
        nearest = np.where(rays[:, 2] < 0, -origin[2] / rays[:, 2], np.inf)
    flat = origin + np.where(np.isfinite(nearest), nearest, 0)[:, None] * rays
    nearest = np.where(np.hypot(flat[:, 0], flat[:, 1]) < YARD, nearest, np.inf)
    ball = np.full(len(rays), -1)
    for i, (center, radius) in enumerate(BALLS):
        along = rays @ (origin - center)
        inside = along**2 - ((origin - center) @ (origin - center) - radius**2)
        at = np.where(inside > 0, -along - np.sqrt(np.maximum(inside, 0)), np.inf)
        closer = (at > 0) & (at < nearest)
        nearest = np.where(closer, at, nearest)
        ball = np.where(closer, i, ball)
    seen = np.isfinite(nearest)
    return origin + np.where(seen, nearest, 0)[:, None] * rays, ball, seen


def _rays(camera: Camera) -> tuple[Array, Array]:
    pose = camera.world_from_camera.double().numpy()
    y, x = np.mgrid[0 : camera.height, 0 : camera.width] + 0.5
    local = np.stack([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy, np.ones_like(x)], axis=-1).reshape(
        -1, 3
    )
    rays = local @ pose[:3, :3].T
    return pose[:3, 3], rays / np.linalg.norm(rays, axis=1, keepdims=True)


def yard(views: int, size: int, points: int) -> Spoil:
    """Return what writes photos of a yard with three balls as a COLMAP folder, with cameras on a spiral."""

    def write(folder: Path) -> None:
        cameras: list[Camera] = []
        for i in range(views):
            angle = 2 * np.pi * i * 0.382
            height = 1.2 + 1.4 * i / views
            place = (3.6 * np.cos(angle), 3.6 * np.sin(angle), height)
            pose = look_at(place, (0.0, 0.0, 0.2))
            lens = 1.1 * size
            cameras.append(
                Camera(
                    name=f"yard_{i:02d}",
                    width=size,
                    height=size,
                    fx=lens,
                    fy=lens,
                    cx=size / 2,
                    cy=size / 2,
                    world_from_camera=pose.float(),
                )
            )

        def read(index: int) -> PhotoPixels:
            origin, rays = _rays(cameras[index])
            places, ball, seen = _hit(origin, rays)
            colors = np.where(seen[:, None], _shade(places, ball), 0.0).reshape(size, size, 3)
            return PhotoPixels(image=torch.from_numpy(np.rint(255 * colors).astype(np.uint8)))

        draw = np.random.default_rng(views + size)
        chosen: list[Array] = []
        colors: list[Array] = []
        for camera in cameras:
            origin, rays = _rays(camera)
            places, ball, seen = _hit(origin, rays)
            picked = draw.choice(np.flatnonzero(seen), points // views, replace=False)
            chosen.append(places[picked] + 0.005 * draw.normal(size=(len(picked), 3)))
            colors.append(_shade(places[picked], ball[picked]))
        sparse = torch.from_numpy(np.concatenate(chosen).astype(np.float32))
        photos = PhotoSet(
            cameras=tuple(cameras),
            read=read,
            points=sparse,
            colors=torch.from_numpy(np.rint(255 * np.concatenate(colors)).astype(np.uint8)),
            train=tuple(range(views)),
            test=(),
            source="yard",
        )
        write_colmap(folder, photos)
        observe(folder, photos.cameras, photos.points)

    return write


def move_principal_point(pixels: float) -> Spoil:
    """Move the principal point of all photos to the right, as of photos that were cropped after the calibration."""

    def spoil(scene: Path) -> None:
        path = scene / "sparse" / "0" / "cameras.bin"
        data = bytearray(path.read_bytes())
        for i in range(int.from_bytes(data[:8], "little")):
            # Id, model, width and height, then fx, fy, cx and cy.
            at = 8 + 56 * i + 24 + 16
            cx = np.frombuffer(bytes(data[at : at + 8]), np.float64)[0]
            data[at : at + 8] = np.float64(cx + pixels).tobytes()
        path.write_bytes(bytes(data))

    return spoil


def invert_poses(scene: Path) -> None:
    """Write world_from_camera where COLMAP has camera_from_world."""
    records = read_registered(scene)
    for record in records:
        w, x, y, z, *moved = record.pose
        rotation = np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )
        center = -rotation.T @ np.array(moved)
        record.pose = (w, -x, -y, -z, float(center[0]), float(center[1]), float(center[2]))
    write_registered(scene, records)


def repeat_photo(source: int, *places: int) -> Spoil:
    """Write the pixels of one photo under the names of others."""

    def spoil(scene: Path) -> None:
        names = sorted(record.name for record in read_registered(scene))
        pixels = (scene / "images" / names[source]).read_bytes()
        for place in places:
            (scene / "images" / names[place]).write_bytes(pixels)

    return spoil


def _torus(path: Path, rings: int = 36, sides: int = 18) -> None:
    """Write a torus with a wavy tube as an OBJ file."""
    turn, tube = np.meshgrid(np.arange(rings) * 2 * np.pi / rings, np.arange(sides) * 2 * np.pi / sides, indexing="ij")
    radius = 0.3 + 0.05 * np.cos(3 * turn)
    across = 0.65 + radius * np.cos(tube)
    vertices = np.stack([across * np.cos(turn), across * np.sin(turn), radius * np.sin(tube)], axis=-1).reshape(-1, 3)
    lines = [f"v {x:.6f} {y:.6f} {z:.6f}" for x, y, z in vertices]
    for i in range(rings):
        for j in range(sides):
            a = i * sides + j
            b = (i + 1) % rings * sides + j
            c = (i + 1) % rings * sides + (j + 1) % sides
            d = i * sides + (j + 1) % sides
            lines += [f"f {a + 1} {b + 1} {c + 1}", f"f {a + 1} {c + 1} {d + 1}"]
    path.write_text("\n".join(lines) + "\n")


def torus_normals(views: int, size: int, *more: str) -> Spoil:
    """Return what writes normal maps of a wavy torus."""

    def write(folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        mesh = folder.parent / "torus.obj"
        _torus(mesh)
        words = f"--views {views} --size {size} --format npy --depth none --elevations 35 -30 60".split()
        run_command(["data", "render-normals", str(mesh), "--out", str(folder), *words, *more])

    return write


def change_normals(change: Callable[[Array], Array], *indices: int) -> Spoil:
    """Change the normals of some views, or of all if none is given."""

    def spoil(folder: Path) -> None:
        files = normal_files(folder)
        for i in indices or range(len(files)):
            np.save(files[i], np.ascontiguousarray(change(np.load(files[i]))))

    return spoil


def invert_mask(*indices: int) -> Spoil:
    """Exchange object and background of the masks of some views."""

    def spoil(folder: Path) -> None:
        files = sorted((folder / "mask").glob("*.png"))
        for i in indices:
            with Image.open(files[i]) as image:
                pixels = np.asarray(image)
            Image.fromarray(255 - pixels).save(files[i])

    return spoil


def wheel_frames(count: int, height: int = 24, width: int = 48) -> Spoil:
    """Return what writes a clip of a turning wheel before a sky that gets brighter."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        y, x = (np.mgrid[0:height, 0:width] + 0.5) / height
        for i in range(count):
            angle = np.arctan2(y - 0.5, x - 1) + 0.12 * i
            distance = np.hypot(y - 0.5, x - 1)
            spokes = 0.5 + 0.4 * np.tanh(2 * np.sin(5 * angle))
            sky = np.stack([0.3 + 0.1 * y, 0.4 + 0.008 * i + 0 * y, 0.8 - 0.3 * y], axis=-1)
            body = np.stack([spokes, 0.6 * spokes, 0.3 + 0 * spokes], axis=-1)
            soft = (0.5 + 0.5 * np.tanh(12 * (0.42 - distance)))[..., None]
            Image.fromarray(np.rint(255 * (soft * body + (1 - soft) * sky)).astype(np.uint8)).save(
                folder / f"{i:03d}.png"
            )

    return write


def reorder_frames(order: Callable[[int], Sequence[int]]) -> Spoil:
    """Reorder the frames of a clip."""

    def spoil(folder: Path) -> None:
        files = sorted(folder.glob("*.png"))
        contents = [path.read_bytes() for path in files]
        for path, source in zip(files, order(len(files)), strict=True):
            path.write_bytes(contents[source])

    return spoil
