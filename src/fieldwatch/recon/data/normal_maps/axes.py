"""Conventions of the files of normal maps: axes, space, order of the channels, pixel centers."""

import re
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data.normal_maps.error import NormalMapError

Space = Literal["camera", "world"]
"""Frame of the normals: of each camera, or of the world in which the poses are given."""
Channels = Literal["rgb", "bgr"]
"""Order of the channels: red first, or blue first, as OpenCV writes color images if nobody converts them."""
PixelCenter = Literal["half", "whole"]
"""Where the center of the first pixel is in the intrinsics: at (0.5, 0.5) or at (0, 0)."""

AXES = {"opengl": "x,-y,-z", "opencv": "x,y,z", "directx": "x,y,-z"}
"""Named axes of camera-space normals, as the OpenCV axis (x right, y down, z forward) that each channel points along.

OpenGL has y up and z toward the viewer, OpenCV y down and z forward, DirectX (green flipped) y down and z toward the
viewer."""
AXES_FORM = "opengl, opencv, directx, auto, or an axis for each channel, such as x,-y,-z"
_AXIS = re.compile(r"\s*([+-]?)\s*([xyz])\s*")
LETTERS = "xyz"


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How the files of a set encode normals and cameras.

    Attributes:
        space: frame of the normals.
        axes: OpenCV camera axis, or world axis, that each channel points along, such as ``x,-y,-z``.
        channels: order of the channels in the file.
        pixel_center: center of the first pixel in the intrinsics.
    """

    space: Space = "camera"
    axes: str = AXES["opencv"]
    channels: Channels = "rgb"
    pixel_center: PixelCenter = "half"

    @property
    def matrix(self) -> Float[Tensor, "3 3"]:
        """Signed permutation from the channels of the file, red first, to the axes, float64."""
        columns = read_axes(self.axes)
        rows = torch.zeros(3, 3, dtype=torch.float64)
        for channel, (axis, sign) in enumerate(columns):
            rows[axis, channel] = sign
        # Blue first: what the file calls red is the third channel.
        return rows.flip(1) if self.channels == "bgr" else rows

    @property
    def canonical(self) -> str:
        """Axes in the form ``x,-y,-z``."""
        return canonical_axes(self.axes)

    @property
    def named(self) -> str:
        """Name of the axes, if they have one in this space, else the three axes."""
        names = {axes: name for name, axes in AXES.items()}
        return names.get(self.axes, self.axes) if self.space == "camera" else self.axes

    @property
    def flags(self) -> str:
        """Flags of the commands that select the space, the axes and the order of the channels."""
        # An argument that begins with a dash needs the equals sign.
        words = [f"--axes {self.named}" if not self.named.startswith("-") else f"--axes={self.named}"]
        words += ["--space world"] if self.space == "world" else []
        return " ".join([*words, *(["--channels bgr"] if self.channels == "bgr" else [])])


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the user states about the files; None finds it from the data.

    Attributes:
        axes: named axes, or an axis for each channel.
        space: frame of the normals.
        channels: order of the channels.
        pixel_center: center of the first pixel.
    """

    axes: str | None = None
    space: Space | None = None
    channels: Channels | None = None
    pixel_center: PixelCenter | None = None


def read_axes(axes: str) -> tuple[tuple[int, float], ...]:
    """Return the axis (0 to 2) and the sign of each channel.

    Raises:
        NormalMapError: if the text has another form, or an axis occurs twice.
    """
    parts = [_AXIS.fullmatch(part) for part in AXES.get(axes, axes).split(",")]
    found = [(LETTERS.index(part[2]), -1.0 if part[1] == "-" else 1.0) for part in parts if part]
    if len(parts) != 3 or len({axis for axis, _ in found}) != 3:
        msg = f"--axes {axes} is not a description of axes: expected {AXES_FORM}"
        raise NormalMapError(msg)
    return tuple(found)


def canonical_axes(axes: str) -> str:
    """Return axes in the form ``x,-y,-z``.

    Raises:
        NormalMapError: if the text has another form, or an axis occurs twice.
    """
    return ",".join(("-" if sign < 0 else "") + LETTERS[axis] for axis, sign in read_axes(axes))
