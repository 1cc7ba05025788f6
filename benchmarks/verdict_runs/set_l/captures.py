"""Data of the pipelines in set l: photos of a cellar, normal maps of a fig, frames of a pond."""

from pathlib import Path

import numpy as np
from PIL import Image

from fieldwatch.recon.geometry import Camera, look_at
from verdict_runs.commands import run_command
from verdict_runs.scenes import Spoil, write_shots

Array = np.ndarray

CASKS = (
    ((0.5, 0.25), 0.3, 0.75),
    ((-0.5, 0.35), 0.34, 0.45),
    ((-0.05, -0.55), 0.28, 0.6),
    ((-0.1, 0.1), 0.16, 1.0),
)
"""Middles of the upright casks on the floor, their radii and their heights."""
HELD_OUT = 4
"""Every fourth photo is held out; it is a sound one even where the others are not, so that the figure is of those."""


def _vault(rays: Array) -> Array:
    """Return the colors far away in the directions of rays."""
    x, y, z = rays.T
    turn = np.arctan2(y, x)
    bricks = 0.12 * np.tanh(3 * np.sin(7 * turn)) * np.cos(5 * z) + 0.08 * np.cos(3 * turn + 2 * z)
    return np.stack([0.6 + bricks, 0.5 + 0.6 * bricks + 0.1 * z, 0.42 - 0.3 * bricks + 0.2 * z], 1)


def _cellar_shot(camera: Camera) -> tuple[Array, Array]:
    """Return where the rays of a camera end, and the colors there."""
    pose = camera.world_from_camera.double().numpy()
    y, x = np.mgrid[0 : camera.height, 0 : camera.width] + 0.5
    local = np.stack([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy, np.ones_like(x)], -1).reshape(-1, 3)
    local /= np.linalg.norm(local, axis=1, keepdims=True)
    rays = local @ pose[:3, :3].T
    origin = pose[:3, 3]
    distance = np.full(len(rays), 6.0)
    colors = _vault(rays)
    falls = np.minimum(rays[:, 2], -1e-6)
    # A ray that does not fall gets a floor behind the far end.
    down = np.where(rays[:, 2] < -1e-6, -origin[2] / falls, 99.0)
    floor = origin + down[:, None] * rays
    on_floor = (np.abs(floor[:, :2]).max(1) < 1.2) & (down < distance)
    boards = 0.55 + 0.25 * np.tanh(3 * np.sin(8 * floor[:, 0] + 0.5 * np.sin(3 * floor[:, 1])))
    distance = np.where(on_floor, down, distance)
    colors = np.where(on_floor[:, None], boards[:, None] * np.array([0.95, 0.85, 0.75]), colors)
    for kind, (middle, radius, height) in enumerate(CASKS):
        away = origin[:2] - np.array(middle)
        flat = np.maximum((rays[:, :2] ** 2).sum(1), 1e-9)
        along = rays[:, :2] @ away
        inside = along**2 - flat * (away @ away - radius**2)
        side = np.where(inside > 0, (-along - np.sqrt(np.maximum(inside, 0))) / flat, 99.0)
        level = origin[2] + side * rays[:, 2]
        side = np.where((side > 0) & (level > 0) & (level < height), side, 99.0)
        lid = np.where(rays[:, 2] < -1e-6, (height - origin[2]) / falls, 99.0)
        on_lid = np.hypot(away[0] + lid * rays[:, 0], away[1] + lid * rays[:, 1]) < radius
        lid = np.where(on_lid & (lid > 0), lid, 99.0)
        at = np.minimum(side, lid)
        closer = at < distance
        distance = np.where(closer, at, distance)
        place = origin + np.where(closer, at, 0)[:, None] * rays - np.array([*middle, 0.0])
        turn = np.arctan2(place[:, 1], place[:, 0])
        staves = 0.5 + 0.3 * np.tanh(2 * np.sin(6 * turn + 2 * kind)) * np.cos(7 * place[:, 2])
        paint = 0.5 + 0.35 * np.cos(2.1 * np.arange(3) + 1.6 * kind + 0.4)
        colors = np.where(closer[:, None], 0.1 + 0.4 * staves[:, None] + 0.6 * staves[:, None] * paint, colors)
    return origin + distance[:, None] * rays, np.clip(colors, 0, 1)


def cellar(views: int, size: int, points: int) -> Spoil:
    """Return what writes photos of casks in a cellar as a COLMAP folder.

    Args:
        views: number of photos.
        size: width and height of them.
        points: number of points.
    """

    def write(folder: Path) -> None:
        cameras: list[Camera] = []
        for i in range(views):
            turn = 2 * np.pi * (i * 9 % views) / views
            place = (2.2 * np.cos(turn), 2.2 * np.sin(turn), 1.0 + 0.35 * (i % 3))
            cameras.append(
                Camera(
                    name=f"cellar_{i:02d}",
                    width=size,
                    height=size,
                    fx=1.05 * size,
                    fy=1.05 * size,
                    cx=size / 2,
                    cy=size / 2,
                    world_from_camera=look_at(place, (0.0, 0.0, 0.35)).float(),
                )
            )
        write_shots(folder, cameras, _cellar_shot, points, "cellar")

    return write


def fig_normals(views: int, size: int, more: str) -> Spoil:
    """Return what writes normal maps of a fig with ribs and a bent neck.

    Args:
        views: number of maps.
        size: width and height of them.
        more: further flags of ``fieldwatch data render-normals``.
    """

    def write(folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        rings = 28
        around = 40
        lines: list[str] = []
        for i in range(rings + 1):
            polar = np.pi * i / rings
            up = 1.15 * 0.62 * (1 + 0.25 * np.cos(polar)) * np.cos(polar)
            for j in range(around):
                turn = 2 * np.pi * j / around
                ribs = 0.05 * np.cos(6 * turn) * np.sin(polar) ** 2
                radius = (0.62 - 0.16 * np.cos(polar) + ribs) * np.sin(polar)
                x = radius * np.cos(turn) + 0.14 * max(up, 0.0) ** 2
                lines.append(f"v {x:.6f} {0.95 * radius * np.sin(turn):.6f} {up:.6f}")
        for i in range(rings):
            for j in range(around):
                a = i * around + j + 1
                b = i * around + (j + 1) % around + 1
                lines += [f"f {a} {a + around} {b + around}", f"f {a} {b + around} {b}"]
        mesh = folder.parent / "fig.obj"
        mesh.write_text("\n".join(lines) + "\n")
        words = f"--views {views} --size {size} --format npy --depth none {more}"
        run_command(["data", "render-normals", str(mesh), "--out", str(folder), *words.split()])

    return write


def pond_frame(time: float, height: int, width: int) -> Array:
    """Return a picture of a pond at a time, as bytes: two ducks swim, rings of a stone widen, and reeds sway."""
    y, x = (np.mgrid[0:height, 0:width] + 0.5) / height
    far = np.hypot(x - 1.3, 1.4 * (y - 0.6))
    ring = 0.12 * np.sin(14 * far - 0.6 * time) * np.exp(-2 * far)
    picture = np.stack([0.25 + ring, 0.45 + 0.15 * y + ring, 0.6 - 0.1 * y + ring], -1)
    for k in range(3):
        sway = 0.08 * np.sin(0.5 * time + k) * (1 - y)
        near = 0.035 - np.abs(x - 0.15 - 0.12 * k - sway)
        reed = (0.5 + 0.5 * np.tanh(35 * np.minimum(near, y - 0.15 - 0.1 * k)))[..., None]
        picture = reed * np.array([0.35, 0.5 + 0.1 * k, 0.15]) + (1 - reed) * picture
    for k, color in enumerate((np.array([0.9, 0.75, 0.2]), np.array([0.55, 0.3, 0.2]))):
        at_x = 0.6 + 0.035 * time if k == 0 else 1.75 - 0.045 * time
        at_y = 0.35 + 0.35 * k + 0.05 * np.sin(0.4 * time + k)
        body = (0.5 + 0.5 * np.tanh(25 * (0.13 - np.hypot(0.7 * (x - at_x), 1.2 * (y - at_y)))))[..., None]
        picture = body * color + (1 - body) * picture
    return np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8)


def pond_frames(count: int, height: int = 24, width: int = 48) -> Spoil:
    """Return what writes a clip of a pond.

    Args:
        count: number of frames.
        height: height of them.
        width: width of them.
    """

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        for i in range(count):
            Image.fromarray(pond_frame(i, height, width)).save(folder / f"{i:03d}.png")

    return write
