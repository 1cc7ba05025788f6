"""Lens distortion for COLMAP's camera models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch import InputError

_FULL = "k1 k2 p1 p2 k3 k4 k5 k6"
# Models that apply the equidistant projection before their radial polynomial.
_FISHEYE = frozenset(
    {
        "SIMPLE_FISHEYE", "FISHEYE", "OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE",
        "THIN_PRISM_FISHEYE", "RAD_TAN_THIN_PRISM_FISHEYE",
    }
)  # fmt: skip

# Numbers and parameter order follow colmap/src/colmap/sensor/models.h.
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
"""COLMAP's id and ordered parameter names of every model that can be undistorted to a pinhole camera."""

BROWN = "BROWN"
"""Brown's model as photogrammetry programs use it, which COLMAP lacks: k1 to k4 (r^2 to r^8), p1, p2 and skew."""

_RADIUS_STEPS = 4096  # number of radii at which the distortion is checked for monotonicity
_MIN_SQUARED_RADIUS = 1e-12  # squared radius below which distortion is replaced by its limit at the axis


class LensError(InputError):
    """Raised for an unknown camera model or invalid parameters. The message states how to fix it."""


@dataclass(frozen=True, kw_only=True)
class Lens:
    """Calibrated intrinsics of a camera: size, focal lengths, principal point and distortion.

    Attributes:
        model: camera model, a key of `LENS_MODELS` or `BROWN`.
        width: image width in pixels.
        height: image height in pixels.
        fx: horizontal focal length in pixels.
        fy: vertical focal length in pixels.
        cx: horizontal principal point in pixels from the left edge; the center of the first pixel is at 0.5.
        cy: vertical principal point in pixels from the top edge.
        distortion: names and values of the other parameters of the model.
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
        """Create a lens from a COLMAP camera.

        Args:
            model: camera model, a key of `LENS_MODELS`.
            width: image width in pixels.
            height: image height in pixels.
            parameters: parameters in COLMAP's order.

        Raises:
            LensError: if the model is unknown, or the number or values of the parameters are invalid.
        """
        if model not in LENS_MODELS:
            msg = (
                f"unsupported camera model {model!r}: expected one of {', '.join(LENS_MODELS)}; undistort the photos "
                "with 'colmap image_undistorter' first"
            )
            raise LensError(msg)
        names = LENS_MODELS[model][1]
        if len(parameters) != len(names):
            msg = (
                f"camera model {model} takes {len(names)} parameters ({' '.join(names)}), got {len(parameters)}: "
                "export the cameras again"
            )
            raise LensError(msg)
        values = dict(zip(names, map(float, parameters), strict=True))
        # Models with a single focal length name it f, the others have fx and fy.
        fx = values.pop("f", values.get("fx", 0.0))
        fy = values.pop("fy", 0.0)
        values.pop("fx", None)
        cx = values.pop("cx")
        cy = values.pop("cy")
        plausible = all(map(math.isfinite, parameters)) and fx > 0 and (fy or fx) > 0 and min(width, height) > 0
        if not plausible:
            msg = (
                f"size and focal lengths of a camera must be greater than 0 and all numbers finite, got {model} "
                f"{width}x{height} with {' '.join(names)} = {list(parameters)}; run the reconstruction again"
            )
            raise LensError(msg)
        intrinsics = {"fx": fx, "fy": fy or fx, "cx": cx, "cy": cy}
        return cls(model=model, width=width, height=height, **intrinsics, distortion=tuple(values.items()))

    def with_distortion(self, model: str, distortion: Mapping[str, float]) -> Self:
        """Return the lens with another model and its parameters by name.

        Raises:
            LensError: if a value is not finite.
        """
        if not all(map(math.isfinite, distortion.values())):
            msg = f"expected finite distortion parameters of model {model}, got {dict(distortion)}: export them again"
            raise LensError(msg)
        return replace(self, model=model, distortion=tuple(distortion.items()))

    @property
    def distorts(self) -> bool:
        """Whether the lens differs from a pinhole camera."""
        straight = self.model in {"SIMPLE_PINHOLE", "PINHOLE"}
        curved = self.model in _FISHEYE | {"FOV", "EUCM"}
        return not straight and (curved or any(value != 0 for _, value in self.distortion))

    def resized(self, width: int, height: int) -> Self:
        """Return the lens with the same field of view at another image size."""
        across = width / self.width
        down = height / self.height
        intrinsics = {"fx": self.fx * across, "fy": self.fy * down, "cx": self.cx * across, "cy": self.cy * down}
        return replace(self, width=width, height=height, **intrinsics)

    def distort(self, points: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n 2"]:
        """Distort normalized image coordinates (x / z, y / z)."""
        k = dict(self.distortion)
        if self.model in _FISHEYE:
            points = _equidistant(points)
        squared = points.square().sum(-1, keepdim=True)
        distorted = points * self._radial(squared, k)
        # RAD_TAN evaluates tangential and prism terms at the radially distorted point, the others at the original one.
        shifted = distorted if self.model.startswith("RAD_TAN") else points
        distorted = distorted + _tangential(shifted, k) + _prism(shifted, k)
        if skew := k.get("skew", 0.0):
            # Axes of the sensor that are not perpendicular; only photogrammetry programs calibrate it.
            distorted = torch.stack([distorted[..., 0] + skew * distorted[..., 1], distorted[..., 1]], -1)
        return distorted

    def project(self, points: Float[Tensor, "*n 2"]) -> tuple[Float[Tensor, "*n 2"], Bool[Tensor, "*n"]]:
        """Project normalized image coordinates (x / z, y / z) to pixels; return pixels and which are in the image.

        Points beyond `valid_radius`, where the distortion formula is no longer monotonic, count as outside.
        """
        distorted = self.distort(points)
        x = self.fx * distorted[..., 0] + self.cx
        y = self.fy * distorted[..., 1] + self.cy
        inside = (x >= 0) & (x <= self.width) & (y >= 0) & (y <= self.height)
        if self.distorts and points.numel():
            radius = points.detach().norm(dim=-1)
            inside = inside & (radius <= self.valid_radius(float(radius.max())))
        return torch.stack([x, y], -1), inside

    def _radial(self, squared: Tensor, k: dict[str, float]) -> Tensor:
        """Return the factor between distorted and undistorted radius."""
        if self.model == "FOV":
            return _field_of_view(squared, k["omega"])
        if self.model.endswith("DIVISION"):
            return 2 / (1 + (1 - 4 * k["k1"] * squared).sqrt())  # NaN outside the field of view
        # Enhanced unified camera model (Khomutenko, Garcia and Martinet 2016) at depth 1.
        if self.model == "EUCM":
            return 1 / (k["alpha"] * (k["beta"] * squared + 1).sqrt() + 1 - k["alpha"])
        if self.model == "FULL_OPENCV":
            over = _polynomial(squared, (k["k1"], k["k2"], k["k3"]))
            return over / _polynomial(squared, (k["k4"], k["k5"], k["k6"]))
        return _polynomial(squared, [k.get(f"k{i}", 0.0) for i in range(1, 7)])

    def valid_radius(self, limit: float) -> float:
        """Return the radius in the plane at depth 1, at most `limit`, up to which the distortion is monotonic.

        Beyond it the formula folds over: points farther out would project nearer to the center.
        """
        radii = torch.linspace(0, limit, _RADIUS_STEPS, dtype=torch.float64)
        axis = torch.stack([radii, torch.zeros_like(radii)], -1)
        # Tangential and prism terms are small and not radial, so they are omitted here.
        radial = tuple((name, value) for name, value in self.distortion if name[0] not in "ps")
        radial_lens = replace(self, distortion=radial)
        distorted = radial_lens.distort(axis)[:, 0]
        # The first radius at which the distorted radius stops growing. Negating `>` also catches NaN.
        folds = torch.nonzero(~(distorted.diff() > 0))[:, 0]
        return float(radii[int(folds[0])]) if len(folds) else limit


def _equidistant(points: Tensor) -> Tensor:
    """Apply the equidistant fisheye projection: the new radius is the angle to the axis."""
    squared = points.square().sum(-1, keepdim=True)
    radius = squared.clamp_min(_MIN_SQUARED_RADIUS).sqrt()
    return points * torch.where(squared > _MIN_SQUARED_RADIUS, torch.atan(radius) / radius, torch.ones_like(radius))


def _polynomial(squared: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Evaluate 1 + c1 * squared + c2 * squared^2 + ... by Horner's rule."""
    total = torch.zeros_like(squared)
    for coefficient in reversed(coefficients):
        total = (total + coefficient) * squared
    return 1 + total


def _field_of_view(squared: Tensor, omega: float) -> Tensor:
    """Return the radial factor of the FOV model (Devernay and Faugeras, Straight lines have to be straight, 2001)."""
    # For omega -> 0 the limit is the identity, where the formula would divide 0 by 0.
    if abs(omega) < math.sqrt(_MIN_SQUARED_RADIUS):
        return torch.ones_like(squared)
    stretch = 2 * math.tan(omega / 2)
    radius = squared.clamp_min(_MIN_SQUARED_RADIUS).sqrt()
    scale = torch.atan(radius * stretch) / (radius * omega)
    return torch.where(squared > _MIN_SQUARED_RADIUS, scale, torch.full_like(scale, stretch / omega))


def _tangential(points: Tensor, k: dict[str, float]) -> Tensor:
    # As in OpenCV: dx = 2 p1 x y + p2 (r^2 + 2 x^2), dy = p1 (r^2 + 2 y^2) + 2 p2 x y.
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
