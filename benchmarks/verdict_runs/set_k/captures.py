"""Data of the pipelines in set k: photos of a market, normal maps of an acorn, frames of a clock."""

from pathlib import Path

import numpy as np
from PIL import Image

from fieldwatch.recon.geometry import Camera, look_at
from verdict_runs.commands import run_command
from verdict_runs.scenes import Spoil, write_shots

Array = np.ndarray

CRATES = (
    ((0.5, 0.2, 0.3), (0.3, 0.25, 0.3)),
    ((-0.45, 0.4, 0.2), (0.25, 0.3, 0.2)),
    ((-0.1, -0.55, 0.35), (0.3, 0.2, 0.35)),
    ((-0.05, 0.05, 0.1), (0.2, 0.2, 0.1)),
)
"""Middles of the crates, and half of their sizes."""
HELD_OUT = 4
"""Every fourth photo is held out; it is a sound one even where the others are not, so that the figure is of those."""


def _dusk(rays: Array) -> Array:
    """Return the colors far away in the directions of rays."""
    x, y, z = rays.T
    turn = np.arctan2(y, x)
    glow = 0.2 * np.sin(4 * turn + 1) * np.cos(2 * z) + 0.1 * np.cos(9 * turn - 3 * z)
    return np.stack([0.6 + glow, 0.45 + 0.2 * z - 0.5 * glow, 0.55 + 0.3 * z], 1)


def _market_shot(camera: Camera) -> tuple[Array, Array]:
    """Return where the rays of a camera end, and the colors there."""
    pose = camera.world_from_camera.double().numpy()
    y, x = np.mgrid[0 : camera.height, 0 : camera.width] + 0.5
    local = np.stack([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy, np.ones_like(x)], -1).reshape(-1, 3)
    local /= np.linalg.norm(local, axis=1, keepdims=True)
    rays = local @ pose[:3, :3].T
    origin = pose[:3, 3]
    distance = np.full(len(rays), 6.0)
    colors = _dusk(rays)
    # A ray that does not fall gets a ground behind the far end.
    down = np.where(rays[:, 2] < -1e-6, -origin[2] / np.minimum(rays[:, 2], -1e-6), 99.0)
    ground = origin + down[:, None] * rays
    on_ground = (np.hypot(ground[:, 0], ground[:, 1]) < 1.25) & (down < distance)
    rings = 0.5 + 0.3 * np.tanh(3 * np.sin(9 * np.hypot(ground[:, 0], ground[:, 1])))
    distance = np.where(on_ground, down, distance)
    colors = np.where(on_ground[:, None], rings[:, None] * np.array([0.8, 0.85, 0.95]), colors)
    for kind, (middle, half) in enumerate(CRATES):
        with np.errstate(divide="ignore"):
            first = (np.array(middle) - np.array(half) - origin) / rays
            second = (np.array(middle) + np.array(half) - origin) / rays
        into = np.minimum(first, second).max(1)
        out_of = np.maximum(first, second).min(1)
        closer = (into < out_of) & (into > 0) & (into < distance)
        distance = np.where(closer, into, distance)
        place = (origin + np.where(closer, into, 0)[:, None] * rays - np.array(middle)) / np.array(half)
        boards = 0.5 + 0.3 * np.tanh(3 * np.sin(6 * place[:, 2:] + 2 * place[:, :1] + kind))
        paint = 0.5 + 0.35 * np.cos(2.1 * np.arange(3) + 1.9 * kind)
        colors = np.where(closer[:, None], 0.3 * boards + 0.7 * boards * paint + 0.1, colors)
    return origin + distance[:, None] * rays, np.clip(colors, 0, 1)


def market(views: int, size: int, points: int) -> Spoil:
    """Return what writes photos of crates on a market as a COLMAP folder.

    Args:
        views: number of photos.
        size: width and height of them.
        points: number of points.
    """

    def write(folder: Path) -> None:
        cameras: list[Camera] = []
        for i in range(views):
            turn = 2 * np.pi * (i * 7 % views) / views
            place = (2.3 * np.cos(turn), 2.3 * np.sin(turn), 1.1 + 0.3 * (i % 3))
            cameras.append(
                Camera(
                    name=f"market_{i:02d}",
                    width=size,
                    height=size,
                    fx=1.15 * size,
                    fy=1.15 * size,
                    cx=size / 2,
                    cy=size / 2,
                    world_from_camera=look_at(place, (0.0, 0.0, 0.3)).float(),
                )
            )
        write_shots(folder, cameras, _market_shot, points, "market")

    return write


def acorn_normals(views: int, size: int, more: str) -> Spoil:
    """Return what writes normal maps of an acorn with its cup.

    Args:
        views: number of maps.
        size: width and height of them.
        more: further flags of ``fieldwatch data render-normals``.
    """

    def write(folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        rings = 26
        around = 36
        lines: list[str] = []
        for i in range(rings + 1):
            polar = np.pi * i / rings
            for j in range(around):
                turn = 2 * np.pi * j / around
                cup = 0.12 / (1 + np.exp(-14 * (polar - 1.7))) * (1 + 0.25 * np.cos(5 * turn))
                radius = 0.55 + 0.1 * np.cos(2 * polar) + cup
                x = 1.1 * radius * np.sin(polar) * np.cos(turn)
                y = 0.9 * radius * np.sin(polar) * np.sin(turn)
                lines.append(f"v {x:.6f} {y:.6f} {1.2 * radius * np.cos(polar):.6f}")
        for i in range(rings):
            for j in range(around):
                a = i * around + j + 1
                b = i * around + (j + 1) % around + 1
                lines += [f"f {a} {a + around} {b + around}", f"f {a} {b + around} {b}"]
        mesh = folder.parent / "acorn.obj"
        mesh.write_text("\n".join(lines) + "\n")
        words = f"--views {views} --size {size} --format npy --depth none {more}"
        run_command(["data", "render-normals", str(mesh), "--out", str(folder), *words.split()])

    return write


def clock_frame(time: float, height: int, width: int) -> Array:
    """Return a picture of a clock at a time, as bytes: its hands turn, and a pendulum swings below a striped wall."""
    y, x = (np.mgrid[0:height, 0:width] + 0.5) / height
    stripes = 0.55 + 0.2 * np.tanh(3 * np.sin(11 * x))
    picture = np.stack([stripes, 0.5 + 0.2 * y, 0.75 - 0.3 * stripes], -1)
    face = (0.5 + 0.5 * np.tanh(25 * (0.36 - np.hypot(x - 0.6, y - 0.45))))[..., None]
    picture = face * np.array([0.95, 0.92, 0.8]) + (1 - face) * picture
    for pace, length, thick in ((0.4, 0.3, 0.04), (0.12, 0.2, 0.05)):
        along = (x - 0.6) * np.sin(pace * time) - (y - 0.45) * np.cos(pace * time)
        across = (x - 0.6) * np.cos(pace * time) + (y - 0.45) * np.sin(pace * time)
        near = np.minimum(thick - np.abs(across), np.minimum(along, length - along))
        hand = (0.5 + 0.5 * np.tanh(35 * near))[..., None]
        picture = hand * np.array([0.1, 0.1, 0.2]) + (1 - hand) * picture
    swing = 0.4 * np.sin(0.7 * time)
    bob = (0.5 + 0.5 * np.tanh(25 * (0.12 - np.hypot(x - 1.45 - swing, y - 0.62 + 0.25 * swing**2))))[..., None]
    picture = bob * np.array([0.9, 0.4, 0.1]) + (1 - bob) * picture
    return np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8)


def clock_frames(count: int, height: int = 24, width: int = 48) -> Spoil:
    """Return what writes a clip of a clock.

    Args:
        count: number of frames.
        height: height of them.
        width: width of them.
    """

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        for i in range(count):
            Image.fromarray(clock_frame(i, height, width)).save(folder / f"{i:03d}.png")

    return write
