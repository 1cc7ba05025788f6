"""A small synthetic clip of hills, a ball, a crate and a star, for trying everything without data."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwatch import InputError
from fieldwatch.recon.data.frames import Clip

Array = NDArray[np.floating]
Color = tuple[float, float, float]


class _NoiseTexture:
    """Smooth noise: a sum of cosines with random directions and phases in several octaves."""

    def __init__(self, generator: np.random.Generator, octaves: int, waves: int = 5) -> None:
        self._waves: list[tuple[float, float, float, float]] = []
        for octave in range(octaves):
            for _ in range(waves):
                # Scaled integers are identical on every platform.
                angle, phase = (2 * math.pi * float(x) for x in generator.integers(0, 1 << 20, 2) / (1 << 20))
                reach = 1.6 * 2.0**octave
                self._waves.append((reach * math.cos(angle), reach * math.sin(angle), phase, 0.62**octave / waves))

    def __call__(self, u: Array, v: Array) -> Array:
        """Return values of roughly -1 to 1."""
        total = np.zeros(u.shape, np.float32)
        wave = np.empty_like(total)
        part = np.empty_like(total)
        for across, down, phase, weight in self._waves:
            # Per octave the frequency doubles and the amplitude falls to 0.62 times. All in place: most of the time of
            # a clip is spent here.
            np.multiply(u, across, out=wave)
            np.multiply(v, down, out=part)
            wave += part
            wave *= 2 * math.pi
            wave += phase
            np.cos(wave, out=wave)
            wave *= weight
            total += wave
        total *= 1.6
        return total


@dataclass(frozen=True)
class _FrameCoordinates:
    """World coordinates of each pixel of a frame, in units of the frame height, for a panning and zooming camera."""

    u: Array
    v: Array
    pixel: float

    @classmethod
    def at(cls, time: float, height: int, width: int) -> "_FrameCoordinates":
        zoom = 1.0 + 0.12 * math.sin(2 * math.pi * time * 0.5)
        rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
        u = ((columns + 0.5 - width / 2) / height) / zoom + 0.35 * time
        v = ((rows + 0.5 - height / 2) / height) / zoom + 0.03 * math.sin(2 * math.pi * time)
        return cls(u.astype(np.float32), v.astype(np.float32), 1 / (height * zoom))

    def around(self, x: float, y: float, across: float, down: float) -> tuple[tuple[slice, slice], "_FrameCoordinates"]:
        """Return rows and columns of the pixels that are near a point in both directions, and their coordinates."""
        rows = _slice_of(np.abs(self.v[:, 0] - y) <= down)
        columns = _slice_of(np.abs(self.u[0] - x) <= across)
        box = (rows, columns)
        return box, _FrameCoordinates(self.u[box], self.v[box], self.pixel)

    def below(self, top: float) -> tuple[slice, "_FrameCoordinates"]:
        """Return the rows of the pixels that are not above a height, and their coordinates."""
        rows = _slice_of(self.v[:, 0] >= top)
        return rows, _FrameCoordinates(self.u[rows], self.v[rows], self.pixel)

    def cover(self, distance: Array) -> Array:
        """Convert a signed distance (negative inside) to coverage with an edge one pixel wide."""
        return np.clip(0.5 - distance / self.pixel, 0, 1).astype(np.float32)


def _slice_of(chosen: NDArray[np.bool_]) -> slice:
    """Return the slice of the entries that are True, which follow each other."""
    places = np.flatnonzero(chosen)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0)


def _blend(picture: Array, color: Array, cover: Array) -> Array:
    return picture + (color - picture) * cover[..., None]


def _mix(low: Color, high: Color, weight: Array) -> Array:
    """Interpolate between two colors per pixel."""
    difference = np.asarray(high, np.float32) - np.asarray(low, np.float32)
    return np.asarray(low, np.float32) + weight[..., None] * difference


class _Scene:
    """Textures and horizontal offset of one seed."""

    def __init__(self, seed: int) -> None:
        generator = np.random.Generator(np.random.PCG64(seed))
        self.sky, self.far, self.near, self.skin, self.wood = (_NoiseTexture(generator, n) for n in (3, 4, 4, 2, 3))
        self.shift = float(generator.integers(0, 1000)) / 1000

    def draw(self, time: float, height: int, width: int) -> Array:
        """Render one frame from back to front; `time` runs from 0 to 1."""
        view = _FrameCoordinates.at(time, height, width)
        picture = self._sky(view)
        # Objects paint only the pixels around them, in place.
        for layer in (self._far_hills, self._crate, self._near_hills, self._ball, self._star):
            picture = layer(picture, view, time)
        return picture.clip(0, 1)

    def _sky(self, view: _FrameCoordinates) -> Array:
        # Parallax: distant objects move less than the camera pans.
        clouds = np.clip(self.sky(0.35 * view.u + self.shift, 0.8 * view.v) * 0.9, 0, 1)
        blue = _mix((0.25, 0.48, 0.80), (0.80, 0.87, 0.93), np.clip(view.v + 0.55, 0, 1))
        return _blend(blue, np.array((0.98, 0.97, 0.95), np.float32), clouds)

    def _far_hills(self, picture: Array, view: _FrameCoordinates, time: float) -> Array:
        # The ridge is at least as far down as its waves are high.
        rows, view = view.below(0.04 - 0.09 - 0.04 - 2 * view.pixel)
        u = view.u - 0.2 * time
        ridge = 0.04 + 0.09 * np.sin(3.1 * u + 6 * self.shift) + 0.04 * np.sin(7.3 * u + 1.0)
        shade = 0.5 + 0.5 * self.far(0.7 * u, 0.7 * view.v)
        color = _mix((0.28, 0.42, 0.38), (0.45, 0.58, 0.45), shade)
        picture[rows] = _blend(picture[rows], color, view.cover(ridge - view.v))
        return picture

    def _near_hills(self, picture: Array, view: _FrameCoordinates, time: float) -> Array:
        del time  # static: only the camera moves
        rows, view = view.below(0.24 - 0.06 - 2 * view.pixel)
        ridge = 0.24 + 0.06 * np.sin(2.2 * view.u + 2.0 + self.shift)
        shade = np.clip(0.5 + 0.6 * self.near(1.1 * view.u, 1.6 * view.v), 0, 1)
        color = _mix((0.22, 0.36, 0.12), (0.58, 0.66, 0.25), shade)
        picture[rows] = _blend(picture[rows], color, view.cover(ridge - view.v))
        return picture

    def _crate(self, picture: Array, view: _FrameCoordinates, time: float) -> Array:
        """Render a rotating wooden crate that sinks behind the near hill and rises again."""
        x = -0.35 + 0.75 * time
        y = 0.10 + 0.10 * math.sin(2 * math.pi * time)
        side = 0.15
        reach = math.sqrt(2) * side + 2 * view.pixel
        box, view = view.around(x, y, reach, reach)
        across, down = _rotated(view, x, y, 0.9 * math.pi * time)
        distance = np.maximum(np.abs(across), np.abs(down)) - side
        grain = 0.5 + 0.5 * self.wood(1.2 * across / side, 0.25 * down / side)
        color = _mix((0.45, 0.26, 0.12), (0.80, 0.56, 0.30), grain)
        frame = view.cover(0.75 * side - np.maximum(np.abs(across), np.abs(down)))
        brace = view.cover(np.abs(across - down) / math.sqrt(2) - 0.09 * side)
        color = _blend(color, np.array((0.36, 0.20, 0.10), np.float32), np.maximum(frame, brace) * 0.8)
        picture[box] = _blend(picture[box], color, view.cover(distance))
        return picture

    def _ball(self, picture: Array, view: _FrameCoordinates, time: float) -> Array:
        """Render a shaded ball that bounces from right to left."""
        radius = 0.17
        x = 0.75 - 0.85 * time
        y = 0.20 - 0.22 * abs(math.sin(2 * math.pi * (time + 0.12)))
        # A soft contact shadow that stays on the ground while the ball bounces.
        reach = 0.75 * radius + 0.07
        box, ground = view.around(x, 0.40, 1.2 * reach, reach / 4)
        shadow = np.hypot((ground.u - x) / 1.2, (ground.v - 0.40) * 4) - 0.75 * radius
        picture[box] *= 1 - 0.35 * np.clip(0.5 - shadow / 0.12, 0, 1)[..., None]
        reach = radius + 2 * view.pixel
        box, view = view.around(x, y, reach, reach)
        across = (view.u - x) / radius
        down = (view.v - y) / radius
        depth = np.sqrt(np.clip(1 - across**2 - down**2, 0, 1))
        light = np.clip((-0.45 * across - 0.65 * down + 0.62 * depth), 0, 1)
        spin = -2.2 * math.pi * time
        rotated = math.cos(spin) * across + math.sin(spin) * down
        stripe = np.clip(0.5 + 5 * np.sin(4.2 * np.arctan2(rotated, depth + 0.15)), 0, 1)
        color = _mix((0.85, 0.16, 0.13), (0.98, 0.90, 0.80), stripe.astype(np.float32))
        color = color * (0.30 + 0.75 * light + 0.08 * self.skin(across, down))[..., None]
        # Specular highlight.
        color = color + 0.7 * (light**30)[..., None]
        cover = view.cover((np.hypot(across, down) - 1).astype(np.float32) * radius)
        picture[box] = _blend(picture[box], color, cover)
        return picture

    def _star(self, picture: Array, view: _FrameCoordinates, time: float) -> Array:
        """Render a spinning five-pointed star that crosses the sky in front of everything."""
        x = -0.55 + 1.35 * time
        y = -0.23 + 0.10 * math.sin(2 * math.pi * time + 0.5)
        radius = 0.16
        # Beyond a tip, the distance to the edge grows slower than the way.
        box, view = view.around(x, y, radius + 4 * view.pixel, radius + 4 * view.pixel)
        across, down = _rotated(view, x, y, 1.4 * math.pi * time)
        # By symmetry, every point of the star is equivalent to one in half a tip; 0 is the direction of the tip.
        sector = 2 * math.pi / 5
        angle = np.abs((np.arctan2(across, -down) + sector / 2) % sector - sector / 2)
        reach = np.hypot(across, down)
        inner = 0.068
        # Signed distance to the line from the tip (angle 0) to the notch (angle sector / 2).
        edge_x = inner * math.cos(sector / 2) - radius
        edge_y = inner * math.sin(sector / 2)
        along = reach * np.cos(angle) - radius
        beside = reach * np.sin(angle)
        distance = (along * -edge_y + beside * edge_x) / -math.hypot(edge_x, edge_y)
        glow = np.clip(1 - reach / radius, 0, 1)
        color = _mix((0.95, 0.62, 0.10), (1.0, 0.93, 0.45), glow.astype(np.float32))
        picture[box] = _blend(picture[box], color, view.cover(distance))
        return picture


def _rotated(view: _FrameCoordinates, x: float, y: float, angle: float) -> tuple[Array, Array]:
    """Return pixel coordinates relative to a point, rotated by `angle` radians."""
    across = view.u - x
    down = view.v - y
    c = math.cos(angle)
    s = math.sin(angle)
    return (c * across + s * down).astype(np.float32), (c * down - s * across).astype(np.float32)


def synthetic_clip(frames: int = 24, height: int = 128, width: int = 256, seed: int = 0) -> Clip:
    """Render a synthetic clip: a ball, a crate and a star move and occlude each other before a panning, zooming camera.

    Everything is smooth in space and time, so a small network learns the clip in minutes. The same arguments give the
    same clip on every platform, up to the last bit of its sine.

    Args:
        frames: number of frames. More frames slow the motion down; they do not extend it.
        height: frame height in pixels.
        width: frame width in pixels.
        seed: seed of the textures and of the section of the hills.

    Raises:
        InputError: if a size is below 1.
    """
    for name, value in (("frames", frames), ("height", height), ("width", width)):
        if value < 1:
            msg = f"{name} of a synthetic clip must be at least 1, got {value}"
            raise InputError(msg)
    scene = _Scene(seed)
    # A clip of one frame shows time 0.
    last = max(frames - 1, 1)
    pictures = np.stack([np.rint(scene.draw(i / last, height, width) * 255).astype(np.uint8) for i in range(frames)])
    channels_first = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    return Clip.of(channels_first, source=f"synthetic clip, seed {seed}")
