"""Data of the pipelines in set i: photos of a studio, normal maps of a bell, frames of an aquarium."""

from pathlib import Path

import numpy as np
from PIL import Image

from fieldwatch.recon.geometry import Camera, look_at
from verdict_runs.commands import run_command
from verdict_runs.scenes import Spoil, write_shots

Array = np.ndarray

ROOM = np.array([2.6, 2.6, 2.2])
"""Half of the width and depth of the room, and its height."""


def _wall_hit(origin: Array, rays: Array) -> tuple[Array, Array]:
    """Return the distance to the walls of the room from inside, and the axis of the wall that is hit."""
    low = np.array([-ROOM[0], -ROOM[1], 0.0])
    high = ROOM
    safe = np.where(np.abs(rays) < 1e-9, 1e-9, rays)
    far = np.maximum((low - origin) / safe, (high - origin) / safe)
    return far.min(1), far.argmin(1)


def _paint(places: Array, axis: Array) -> Array:
    """Return the colors of walls, floor and ceiling."""
    x, y, z = places.T
    floor = 0.5 + 0.25 * np.tanh(3 * np.sin(2.2 * x) * np.sin(2.2 * y))
    wall = 0.6 + 0.12 * np.sin(1.2 * x + 0.8 * y)
    level = np.where(axis == 2, np.where(z < 1, floor, 0.85), wall)
    tint = np.array([[0.9, 0.75, 0.6], [0.6, 0.8, 0.9], [0.95, 0.9, 0.8]])[axis]
    return level[:, None] * tint


def _shot(camera: Camera) -> tuple[Array, Array]:
    """Return where the rays of a camera end, and the colors there."""
    pose = camera.world_from_camera.double().numpy()
    y, x = np.mgrid[0 : camera.height, 0 : camera.width] + 0.5
    local = np.stack([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy, np.ones_like(x)], -1).reshape(-1, 3)
    rays = local @ pose[:3, :3].T
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    origin = pose[:3, 3]
    distance, axis = _wall_hit(origin, rays)
    colors = _paint(origin + distance[:, None] * rays, axis)
    balls = ((0.5, 0.3, 0.6, 0.55), (-0.55, 0.2, 0.4, 0.4), (-0.1, -0.6, 0.5, 0.45))
    for kind, (*place, radius) in enumerate(balls):
        away = origin - np.array(place)
        along = rays @ away
        inside = along**2 - away @ away + radius**2
        at = np.where(inside > 0, -along - np.sqrt(np.maximum(inside, 0)), np.inf)
        closer = (at > 0) & (at < distance)
        distance = np.where(closer, at, distance)
        out = (origin + distance[:, None] * rays - np.array(place)) / radius
        skin = 0.5 + 0.3 * np.sin(3 * out[:, :1] + 4 * out[:, 2:] + kind) + 0.2 * np.cos(2.0 * np.arange(3) + kind)
        colors = np.where(closer[:, None], skin, colors)
    return origin + distance[:, None] * rays, np.clip(colors, 0, 1)


def studio(views: int, size: int, points: int) -> Spoil:
    """Return what writes photos of three balls in a room as a COLMAP folder.

    Args:
        views: number of photos.
        size: width and height of them.
        points: number of points.
    """

    def write(folder: Path) -> None:
        cameras: list[Camera] = []
        for i in range(views):
            turn = 2 * np.pi * (i * 7 % views) / views
            place = (2.2 * np.cos(turn), 2.2 * np.sin(turn), 1.1 + 0.3 * (i % 3))
            cameras.append(
                Camera(
                    name=f"studio_{i:02d}",
                    width=size,
                    height=size,
                    fx=1.0 * size,
                    fy=1.0 * size,
                    cx=size / 2,
                    cy=size / 2,
                    world_from_camera=look_at(place, (0.0, 0.0, 0.6)).float(),
                )
            )
        write_shots(folder, cameras, _shot, points, "studio")

    return write


def bell_normals(views: int, size: int, more: str) -> Spoil:
    """Return what writes normal maps of a bell whose rim is not round.

    Args:
        views: number of maps.
        size: width and height of them.
        more: further flags of ``fieldwatch data render-normals``.
    """

    def write(folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        rings = 26
        around = 36
        lines = ["v 0 0 -0.9", "v 0 0 0.9"]
        for i in range(1, rings):
            height = -0.9 * np.cos(np.pi * i / rings)
            body = np.sin(np.pi * i / rings) * (0.75 - 0.3 * np.tanh(2.5 * height))
            for j in range(around):
                turn = 2 * np.pi * j / around
                radius = body * (1 + 0.12 * np.cos(3 * turn + height))
                lines.append(f"v {radius * np.cos(turn):.6f} {radius * np.sin(turn):.6f} {height:.6f}")
        last = 3 + (rings - 2) * around
        for j in range(around):
            after = (j + 1) % around
            lines += [f"f 1 {3 + after} {3 + j}", f"f 2 {last + j} {last + after}"]
            for i in range(rings - 2):
                a = 3 + i * around + j
                b = 3 + i * around + after
                lines += [f"f {a} {b} {b + around}", f"f {a} {b + around} {a + around}"]
        mesh = folder.parent / "bell.obj"
        mesh.write_text("\n".join(lines) + "\n")
        words = f"--views {views} --size {size} --format npy --depth none {more}"
        run_command(["data", "render-normals", str(mesh), "--out", str(folder), *words.split()])

    return write


def aquarium_frames(count: int, height: int = 24, width: int = 48) -> Spoil:
    """Return what writes a clip of fish that swim past plants.

    Args:
        count: number of frames.
        height: height of them.
        width: width of them.
    """

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        y, x = (np.mgrid[0:height, 0:width] + 0.5) / height
        for i in range(count):
            sway = 0.06 * np.sin(0.35 * i + 3 * y)
            weeds = 0.5 + 0.5 * np.sin(14 * (x + sway)) * (0.3 + 0.7 * y)
            picture = np.stack([0.15 + 0.1 * weeds, 0.3 + 0.4 * weeds, 0.55 - 0.15 * weeds + 0.2 * y], -1)
            for k, color in enumerate(((1.0, 0.5, 0.1), (0.95, 0.9, 0.3), (0.8, 0.2, 0.5))):
                swim = 0.3 + (0.07 + 0.02 * k) * i if k % 2 == 0 else 1.8 - 0.08 * i
                place = swim % 2.0
                level = 0.25 + 0.25 * k + 0.08 * np.sin(0.4 * i + k)
                shape = 1 - ((x - place) / 0.22) ** 2 - ((y - level) / 0.11) ** 2
                body = 0.5 + 0.5 * np.tanh(4 * shape)
                picture = body[..., None] * np.array(color) + (1 - body[..., None]) * picture
            Image.fromarray(np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8)).save(folder / f"{i:03d}.png")

    return write
