"""Lenses: how each of COLMAP's camera models bends what a pinhole camera would see."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch import InputError

_FULL = "k1 k2 p1 p2 k3 k4 k5 k6"
_FISHEYE = frozenset(
    {
        "SIMPLE_FISHEYE", "FISHEYE", "OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE",
        "THIN_PRISM_FISHEYE", "RAD_TAN_THIN_PRISM_FISHEYE",
    }
)  # fmt: skip

LENS_MODELS: dict[str, tuple[int, tuple[str, ...]]] = {
    name: (number, tuple(parameters.split()))
    for number, name, parameters in (
        (0, "SIMPLE_PINHOLE", "f cx cy"),
        (1, "PINHOLE", "fx fy cx cy"),
        (2, "SIMPLE_RADIAL", "f cx cy k1"),
        (3, "RADIAL", "f cx cy k1 k2"),
        (4, "OPENCV", "fx fy cx cy k1 k2 p1 p2"),
        (5, "OPENCV_FISHEYE", "fx fy cx cy k1 k2 k3 k4"),
        (6, "FULL_OPENCV", f"fx fy cx cy {_FULL}"),
        (7, "FOV", "fx fy cx cy omega"),
        (8, "SIMPLE_RADIAL_FISHEYE", "f cx cy k1"),
        (9, "RADIAL_FISHEYE", "f cx cy k1 k2"),
        (10, "THIN_PRISM_FISHEYE", "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1"),
        (11, "RAD_TAN_THIN_PRISM_FISHEYE", "fx fy cx cy k1 k2 k3 k4 k5 k6 p2 p1 sx1 sx2 sy1 sy2"),
        (12, "SIMPLE_DIVISION", "f cx cy k1"),
        (13, "DIVISION", "fx fy cx cy k1"),
        (14, "SIMPLE_FISHEYE", "f cx cy"),
        (15, "FISHEYE", "fx fy cx cy"),
        (16, "EUCM", "fx fy cx cy alpha beta"),
    )
}
"""COLMAP's number and the parameters, in its order, of every model that a pinhole camera can stand in for."""

_STEPS = 4096  # radii at which a lens is checked for folding over
_STRAIGHT = 1e-12  # of a squared radius: nearer to the axis no lens bends anything


class LensError(InputError):
    """A camera model is not known, or its parameters are not what it takes; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Lens:
    """The inside of a camera as calibrated: size in pixels, focal lengths, principal point and distortion.

    Attributes:
        model: a name of `LENS_MODELS`.
        width: pixels.
        height: pixels.
        fx: focal length in pixels, across.
        fy: focal length in pixels, down.
        cx: principal point, pixels from the left edge (the centre of the first pixel is at 0.5).
        cy: principal point, pixels from the upper edge.
        distortion: the model's other parameters, by name.
    """

    model: str
    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, model: str, width: int, height: int, parameters: Sequence[float]) -> Self:
        """Make a lens of a COLMAP camera.

        Raises:
            LensError: an unknown model, the wrong number of parameters, or ones that no lens has.
        """
        if model not in LENS_MODELS:
            msg = (
                f"camera model {model!r} is not one that a pinhole camera can stand in for "
                f"({', '.join(LENS_MODELS)}): undistort the photos with 'colmap image_undistorter' first"
            )
            raise LensError(msg)
        names = LENS_MODELS[model][1]
        if len(parameters) != len(names):
            msg = f"camera model {model} takes {len(names)} parameters ({' '.join(names)}), {len(parameters)} came"
            raise LensError(msg)
        values = dict(zip(names, map(float, parameters), strict=True))
        fx = values.pop("f", values.get("fx", 0.0))
        fy = values.pop("fy", 0.0)
        values.pop("fx", None)
        cx = values.pop("cx")
        cy = values.pop("cy")
        fine = all(map(math.isfinite, parameters)) and fx > 0 and (fy or fx) > 0 and min(width, height) > 0
        if not fine:
            msg = (
                f"a {model} camera of {width}x{height} pixels with {' '.join(names)} = {list(parameters)}: size and "
                "focal lengths must be above 0 and all numbers finite; run the reconstruction again"
            )
            raise LensError(msg)
        lens = {"fx": fx, "fy": fy or fx, "cx": cx, "cy": cy}
        return cls(model=model, width=width, height=height, **lens, distortion=tuple(values.items()))

    @property
    def bends(self) -> bool:
        """Whether it sees anything else than a pinhole camera."""
        straight = self.model in {"SIMPLE_PINHOLE", "PINHOLE"}
        curved = self.model in _FISHEYE | {"FOV", "EUCM"}
        return not straight and (curved or any(value != 0 for _, value in self.distortion))

    def resized(self, width: int, height: int) -> Self:
        """Return the lens in front of another number of pixels."""
        across = width / self.width
        down = height / self.height
        moved = {"fx": self.fx * across, "fy": self.fy * down, "cx": self.cx * across, "cy": self.cy * down}
        return replace(self, width=width, height=height, **moved)

    def distort(self, points: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n 2"]:
        """Bend points of the plane at depth 1 (x / z, y / z)."""
        k = dict(self.distortion)
        if self.model in _FISHEYE:
            points = _equidistant(points)
        squared = points.square().sum(-1, keepdim=True)
        bent = points * self._radial(squared, k)
        shifted = bent if self.model.startswith("RAD_TAN") else points
        return bent + _tangential(shifted, k) + _prism(shifted, k)

    def project(self, points: Float[Tensor, "*n 2"]) -> tuple[Float[Tensor, "*n 2"], Bool[Tensor, "*n"]]:
        """Return where points of the plane at depth 1 fall in the picture, and whether they fall into it at all.

        Points beyond the radius at which the lens's formula folds over, where it no longer describes the glass, do not.
        """
        bent = self.distort(points)
        x = self.fx * bent[..., 0] + self.cx
        y = self.fy * bent[..., 1] + self.cy
        inside = (x >= 0) & (x <= self.width) & (y >= 0) & (y <= self.height)
        if self.bends and points.numel():
            radius = points.detach().norm(dim=-1)
            inside = inside & (radius <= self.seen_radius(float(radius.max())))
        return torch.stack([x, y], -1), inside

    def _radial(self, squared: Tensor, k: dict[str, float]) -> Tensor:
        """Return the factor by which a point moves away from the axis."""
        if self.model == "FOV":
            return _field_of_view(squared, k["omega"])
        if self.model.endswith("DIVISION"):
            return 2 / (1 + (1 - 4 * k["k1"] * squared).sqrt())  # not a number where nothing is seen
        if self.model == "EUCM":
            return 1 / (k["alpha"] * (k["beta"] * squared + 1).sqrt() + 1 - k["alpha"])
        if self.model == "FULL_OPENCV":
            over = _polynomial(squared, (k["k1"], k["k2"], k["k3"]))
            return over / _polynomial(squared, (k["k4"], k["k5"], k["k6"]))
        return _polynomial(squared, [k.get(f"k{i}", 0.0) for i in range(1, 7)])

    def seen_radius(self, reach: float) -> float:
        """Return the distance from the axis at depth 1, at most `reach`, up to which the lens's formula holds.

        Farther out it folds over: a point farther out would be seen nearer to the centre.
        """
        radii = torch.linspace(0, reach, _STEPS, dtype=torch.float64)
        axis = torch.stack([radii, torch.zeros_like(radii)], -1)
        radial = tuple((name, value) for name, value in self.distortion if name[0] not in "ps")
        plain = replace(self, distortion=radial)
        seen = plain.distort(axis)[:, 0]
        folds = torch.nonzero(~(seen.diff() > 0))[:, 0]
        return float(radii[int(folds[0])]) if len(folds) else reach


def _equidistant(points: Tensor) -> Tensor:
    """Bring points to the distance from the axis that is their angle to it."""
    squared = points.square().sum(-1, keepdim=True)
    radius = squared.clamp_min(_STRAIGHT).sqrt()
    return points * torch.where(squared > _STRAIGHT, torch.atan(radius) / radius, torch.ones_like(radius))


def _polynomial(squared: Tensor, coefficients: Sequence[float]) -> Tensor:
    """1 + c1 * squared + c2 * squared^2 + ..., by Horner's rule."""
    total = torch.zeros_like(squared)
    for coefficient in reversed(coefficients):
        total = (total + coefficient) * squared
    return 1 + total


def _field_of_view(squared: Tensor, omega: float) -> Tensor:
    """Devernay and Faugeras, Straight lines have to be straight, 2001."""
    if abs(omega) < math.sqrt(_STRAIGHT):
        return torch.ones_like(squared)
    stretch = 2 * math.tan(omega / 2)
    radius = squared.clamp_min(_STRAIGHT).sqrt()
    bent = torch.atan(radius * stretch) / (radius * omega)
    return torch.where(squared > _STRAIGHT, bent, torch.full_like(bent, stretch / omega))


def _tangential(points: Tensor, k: dict[str, float]) -> Tensor:
    p1 = k.get("p1", 0.0)
    p2 = k.get("p2", 0.0)
    x, y = points.unbind(-1)
    squared = x * x + y * y
    across = 2 * p1 * x * y + p2 * (squared + 2 * x * x)
    return torch.stack([across, 2 * p2 * x * y + p1 * (squared + 2 * y * y)], -1)


def _prism(points: Tensor, k: dict[str, float]) -> Tensor:
    squared = points.square().sum(-1)
    across = (k.get("sx1", 0.0) + k.get("sx2", 0.0) * squared) * squared
    return torch.stack([across, (k.get("sy1", 0.0) + k.get("sy2", 0.0) * squared) * squared], -1)
