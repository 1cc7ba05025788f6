"""Data of the pipelines in set j: photos of a terrace, normal maps of a pear, frames of a fair."""

from pathlib import Path

import numpy as np
from PIL import Image

from fieldwatch.recon.geometry import Camera, look_at
from verdict_runs.commands import run_command
from verdict_runs.scenes import Spoil, write_shots

Array = np.ndarray

POTS = ((0.45, 0.25, 0.35, 0.35), (-0.5, 0.3, 0.28, 0.28), (0.0, -0.55, 0.42, 0.42), (-0.05, 0.05, 0.8, 0.22))
"""Places and radii of the pots."""
HELD_OUT = 4
"""Every fourth photo is held out; it is a sound one even where the others are not, so that the figure is of those."""


def _sky(rays: Array) -> Array:
    """Return the colors far away in the directions of rays."""
    x, y, z = rays.T
    turn = np.arctan2(y, x)
    wave = 0.15 * np.sin(5 * turn) * np.cos(3 * z) + 0.1 * np.sin(11 * turn + 4 * z)
    return np.stack([0.55 + wave, 0.6 + 0.25 * z, 0.7 + 0.2 * z - wave], 1)


def _shot(camera: Camera) -> tuple[Array, Array]:
    """Return where the rays of a camera end, and the colors there."""
    pose = camera.world_from_camera.double().numpy()
    y, x = np.mgrid[0 : camera.height, 0 : camera.width] + 0.5
    local = np.stack([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy, np.ones_like(x)], -1).reshape(-1, 3)
    local /= np.linalg.norm(local, axis=1, keepdims=True)
    rays = local @ pose[:3, :3].T
    origin = pose[:3, 3]
    distance = np.full(len(rays), 6.0)
    colors = _sky(rays)
    # A ray that does not fall gets a floor behind the far end.
    down = np.where(rays[:, 2] < -1e-6, -origin[2] / np.minimum(rays[:, 2], -1e-6), 99.0)
    floor = origin + down[:, None] * rays
    on_floor = (np.hypot(floor[:, 0], floor[:, 1]) < 1.2) & (down < distance)
    checker = 0.55 + 0.25 * np.tanh(4 * np.sin(5 * floor[:, 0]) * np.sin(5 * floor[:, 1]))
    distance = np.where(on_floor, down, distance)
    colors = np.where(on_floor[:, None], checker[:, None] * np.array([0.9, 0.8, 0.7]), colors)
    for kind, (*place, radius) in enumerate(POTS):
        away = origin - np.array(place)
        along = rays @ away
        inside = along**2 - away @ away + radius**2
        at = np.where(inside > 0, -along - np.sqrt(np.maximum(inside, 0)), np.inf)
        closer = (at > 0) & (at < distance)
        distance = np.where(closer, at, distance)
        out = (origin + np.where(closer, at, 0)[:, None] * rays - np.array(place)) / radius
        glaze = (
            0.5 + 0.25 * np.sin(5 * out[:, :1] + 4 * out[:, 2:] + kind) + 0.2 * np.cos(2.1 * np.arange(3) + 1.7 * kind)
        )
        colors = np.where(closer[:, None], glaze, colors)
    return origin + distance[:, None] * rays, np.clip(colors, 0, 1)


def terrace(views: int, size: int, points: int) -> Spoil:
    """Return what writes photos of pots on a terrace as a COLMAP folder.

    Args:
        views: number of photos.
        size: width and height of them.
        points: number of points.
    """

    def write(folder: Path) -> None:
        cameras: list[Camera] = []
        for i in range(views):
            turn = 2 * np.pi * (i * 5 % views) / views
            place = (2.4 * np.cos(turn), 2.4 * np.sin(turn), 1.0 + 0.35 * (i % 3))
            cameras.append(
                Camera(
                    name=f"terrace_{i:02d}",
                    width=size,
                    height=size,
                    fx=1.1 * size,
                    fy=1.1 * size,
                    cx=size / 2,
                    cy=size / 2,
                    world_from_camera=look_at(place, (0.0, 0.0, 0.35)).float(),
                )
            )
        write_shots(folder, cameras, _shot, points, "terrace")

    return write


def pear_normals(views: int, size: int, more: str) -> Spoil:
    """Return what writes normal maps of a pear with a dent.

    Args:
        views: number of maps.
        size: width and height of them.
        more: further flags of ``fieldwatch data render-normals``.
    """

    def write(folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        rings = 24
        around = 36
        lines: list[str] = []
        for i in range(rings + 1):
            polar = np.pi * i / rings
            for j in range(around):
                turn = 2 * np.pi * j / around
                dent = 0.14 * np.exp(-2 * ((turn - 2.0) ** 2 + (polar - 1.8) ** 2))
                radius = 0.68 - 0.18 * np.cos(polar) - 0.1 * np.cos(2 * polar) - dent
                x = radius * np.sin(polar) * np.cos(turn)
                y = 0.85 * radius * np.sin(polar) * np.sin(turn)
                lines.append(f"v {x:.6f} {y:.6f} {1.25 * radius * np.cos(polar):.6f}")
        for i in range(rings):
            for j in range(around):
                a = i * around + j + 1
                b = i * around + (j + 1) % around + 1
                lines += [f"f {a} {a + around} {b + around}", f"f {a} {b + around} {b}"]
        mesh = folder.parent / "pear.obj"
        mesh.write_text("\n".join(lines) + "\n")
        words = f"--views {views} --size {size} --format npy --depth none {more}"
        run_command(["data", "render-normals", str(mesh), "--out", str(folder), *words.split()])

    return write


def fair_frames(count: int, height: int = 24, width: int = 48) -> Spoil:
    """Return what writes a clip of a big wheel that turns before a striped tent, with a balloon that rises.

    Args:
        count: number of frames.
        height: height of them.
        width: width of them.
    """

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        y, x = (np.mgrid[0:height, 0:width] + 0.5) / height
        stripes = 0.5 + 0.4 * np.tanh(3 * np.sin(16 * x))
        tent = (y > 0.35 + 0.5 * np.abs(x - 1.45))[..., None]
        dusk = np.stack([0.5 + 0.3 * y, 0.35 + 0.25 * y, 0.6 - 0.1 * y], -1)
        still = np.where(tent, np.stack([0.9 * np.ones_like(x), 0.2 + 0.6 * stripes, 0.2 + 0.5 * stripes], -1), dusk)
        for i in range(count):
            picture = still
            for k in range(5):
                turn = 2 * np.pi * k / 5 + 0.16 * i
                away = np.hypot(x - 0.55 - 0.33 * np.cos(turn), y - 0.5 - 0.33 * np.sin(turn))
                cabin = (0.5 + 0.5 * np.tanh(22 * (0.1 - away)))[..., None]
                color = 0.5 + 0.45 * np.cos(2.1 * np.arange(3) + 1.3 * k)
                picture = cabin * color + (1 - cabin) * picture
            rise = np.hypot(x - 1.15 - 0.05 * np.sin(0.6 * i), y - 1.0 + 0.05 * i)
            balloon = (0.5 + 0.5 * np.tanh(22 * (0.12 - rise)))[..., None]
            picture = balloon * np.array([0.2, 0.9, 0.4]) + (1 - balloon) * picture
            Image.fromarray(np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8)).save(folder / f"{i:03d}.png")

    return write
