"""Gaussians bound to the triangles of a mesh: flat on the surface and moving with its vertices (SuGaR, section 4.3)."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import InputError
from fieldwatch.recon.data import GaussianCloud
from fieldwatch.recon.geometry import normalized_quaternions
from fieldwatch.recon.pipelines.splats.gaussians import Rows, refuse_not_finite
from fieldwatch.recon.pipelines.splats.refined.pattern import PATTERNS, FirstSize, PerTriangle

PARAMETERS = ("vertices", "plane_log_scales", "turns", "opacity_logits", "constant", "rest")
"""Names of the learned parameters in the order of storage: the mesh's vertices, then one row per Gaussian."""
_TINY = 1e-12
"""Its square is added below square roots, so that degenerate faces have finite frames and gradients."""


class BoundRows(NamedTuple):
    """Parameters of bound Gaussians except the vertices, one row each.

    Attributes:
        plane_log_scales: logarithms of the standard deviations along the two axes in the plane, world units.
        turns: rotations of these axes in the plane as complex numbers of any length except 0; (1, 0) is no rotation.
        opacity_logits: logits of the opacities.
        constant: SH coefficients of degree 0.
        rest: SH coefficients of degree 1 and above.
    """

    plane_log_scales: Float[Tensor, "n 2"]
    turns: Float[Tensor, "n 2"]
    opacity_logits: Float[Tensor, "n"]
    constant: Float[Tensor, "n 3"]
    rest: Float[Tensor, "n functions 3"]


class BoundGaussians(nn.Module):
    """Gaussians at fixed barycentric coordinates of triangles, flat along the normal, rendered like free Gaussians.

    The learned parameters are the vertices and, for each Gaussian, two scales and a rotation in the plane, opacity and
    color. Means, quaternions and scales are derived from them, so that gradients reach the vertices. The Gaussians of
    face i are the rows from i * per_triangle on. A Gaussian's first axis is its triangle's normal
    n = (v1 - v0) x (v2 - v0) or its opposite. The others are e1, along v0 - v1, and e2 = n x e1, rotated by a complex
    number x + iy to x e1 + y e2 and x e2 - y e1.

    Args:
        vertices: vertices of the mesh, world units.
        faces: vertex indices of the faces.
        rows: other parameters, one row per Gaussian.
        per_triangle: number of Gaussians per face: 1, 3, 4 or 6.
        thickness: standard deviation along the normal, world units; not learned.

    Raises:
        ValueError: There are no faces, the number of rows is not `per_triangle` per face, or the thickness is not
            positive.
        NotFiniteError: A value is not finite.
    """

    vertices: nn.Parameter
    plane_log_scales: nn.Parameter
    turns: nn.Parameter
    opacity_logits: nn.Parameter
    constant: nn.Parameter
    rest: nn.Parameter
    faces: Tensor
    barycentric: Tensor

    def __init__(
        self,
        vertices: Float[Tensor, "v 3"],
        faces: Int64[Tensor, "m 3"],
        rows: BoundRows,
        *,
        per_triangle: PerTriangle,
        thickness: float,
    ) -> None:
        super().__init__()
        count = len(faces) * per_triangle
        if not count or any(len(part) != count for part in rows):
            raise ValueError(
                f"{len(faces)} faces with {per_triangle} Gaussians each need {count} rows in every tensor, and there "
                "must be at least 1 face, got "
                f"{', '.join(f'{name} {len(part)}' for name, part in rows._asdict().items())}"
            )
        if not 0 < thickness < math.inf:
            raise InputError(
                f"thickness must be finite and greater than 0, got {thickness}; 1e-6 of the extent is a common choice"
            )
        for name, part in zip(PARAMETERS, (vertices, *rows), strict=True):
            refuse_not_finite(name, part)
            self.register_parameter(name, nn.Parameter(part.detach().clone()))
        self.per_triangle: PerTriangle = per_triangle
        self.thickness = thickness
        self._cached_corners: Tensor | None = None
        self._cached_normals: Tensor | None = None
        # Persistent, so that a refinement can be opened without its mesh file.
        self.register_buffer("faces", faces.clone())
        barycentric = torch.tensor(PATTERNS[per_triangle].centers, dtype=vertices.dtype, device=vertices.device)
        # Not persistent: it is determined by `per_triangle`.
        self.register_buffer("barycentric", barycentric, persistent=False)

    @classmethod
    def on_mesh(  # noqa: PLR0913  a mesh, and the initial values of its Gaussians
        cls,
        vertices: Float[Tensor, "v 3"],
        faces: Int64[Tensor, "m 3"],
        constant: Float[Tensor, "n 3"],
        rest: Float[Tensor, "n functions 3"],
        *,
        per_triangle: PerTriangle,
        thickness: float,
        opacity: float,
        first_size: FirstSize = "shortest",
    ) -> Self:
        """Create Gaussians on every triangle, circular in its plane, with the radius of their `Pattern`.

        Args:
            vertices: vertices of the mesh, world units.
            faces: vertex indices of the faces.
            constant: SH coefficients of degree 0 of every Gaussian.
            rest: SH coefficients of degree 1 and above of every Gaussian.
            per_triangle: number of Gaussians per face.
            thickness: standard deviation along the normal, world units.
            opacity: initial opacity of all Gaussians, in (0, 1).
            first_size: length that the radius is proportional to: the triangle's shortest side (SuGaR), or the side of
                an equilateral triangle of the same area.

        Raises:
            ValueError, NotFiniteError: As in the class, or the opacity is out of bounds.
        """
        if not 0 < opacity < 1:
            raise InputError(f"initial opacity must be between 0 and 1, got {opacity}; SuGaR uses 0.1")
        # At least the thickness, so that the Gaussians of degenerate triangles keep finite log scales.
        size = PATTERNS[per_triangle].radius * triangle_sizes(vertices[faces], first_size).clamp_min(thickness)
        count = len(constant)
        rows = BoundRows(
            plane_log_scales=size.log().repeat_interleave(per_triangle)[:, None].repeat(1, 2),
            turns=vertices.new_tensor([1.0, 0.0]).repeat(count, 1),
            opacity_logits=vertices.new_full((count,), math.log(opacity / (1 - opacity))),
            constant=constant,
            rest=rest,
        )
        return cls(vertices, faces, rows, per_triangle=per_triangle, thickness=thickness)

    def __len__(self) -> int:
        return len(self.opacity_logits)

    @contextmanager
    def cached_geometry(self) -> Iterator[None]:
        """Compute corners and normals only once within the block; the vertices must not change in it."""
        self._cached_corners = self.corners
        self._cached_normals = face_normals(self._cached_corners)
        try:
            yield
        finally:
            self._cached_corners = self._cached_normals = None

    @property
    def corners(self) -> Float[Tensor, "m 3 3"]:
        """Positions of the corners of all faces, world units."""
        if self._cached_corners is not None:
            return self._cached_corners
        return self.vertices.index_select(0, self.faces.reshape(-1)).view(-1, 3, 3)

    @property
    def normals(self) -> Float[Tensor, "m 3"]:
        """Unit normals of all faces, see `face_normals`."""
        return face_normals(self.corners) if self._cached_normals is None else self._cached_normals

    @property
    def means(self) -> Float[Tensor, "n 3"]:
        """Centers, world units."""
        first, second, third = self.corners.unbind(1)
        centers = [a * first + b * second + c * third for a, b, c in PATTERNS[self.per_triangle].centers]
        return centers[0] if len(centers) == 1 else torch.stack(centers, 1).reshape(-1, 3)

    @property
    def scales(self) -> Float[Tensor, "n 3"]:
        """Standard deviations along each Gaussian's axes, world units; the first is the thickness."""
        return functional.pad(self.plane_log_scales.exp(), (1, 0), value=self.thickness)

    @property
    def log_scales(self) -> Float[Tensor, "n 3"]:
        """Logarithms of the scales."""
        return functional.pad(self.plane_log_scales, (1, 0), value=math.log(self.thickness))

    @property
    def opacities(self) -> Float[Tensor, " n"]:
        """Opacities, 0 .. 1."""
        return self.opacity_logits.sigmoid()

    def shapes(self) -> tuple[Float[Tensor, "n 3"], Float[Tensor, " n"]]:
        """Return scales and opacities."""
        return self.scales, self.opacities

    @property
    def quaternions(self) -> Float[Tensor, "n 4"]:
        """Rotations from each Gaussian's axes to the world as quaternions w, x, y, z of any length except 0."""
        return surface_quaternions(self.corners, self.normals, self.turns)

    @property
    def unit_quaternions(self) -> Float[Tensor, "n 4"]:
        """Rotations as unit quaternions w, x, y, z."""
        return normalized_quaternions(self.quaternions)

    @property
    def harmonics(self) -> tuple[Float[Tensor, "n 1 3"], Float[Tensor, "n functions 3"]]:
        """SH coefficients of degree 0 and of the higher degrees, as `splat` expects them."""
        return self.constant[:, None, :], self.rest

    @property
    def degree(self) -> int:
        """SH degree of the stored coefficients, 0 .. 3."""
        return math.isqrt(self.rest.shape[1] + 1) - 1

    def degree_at(self, step: int, every: int = 1000) -> int:
        """Return the SH degree in use at a step: it increases by one at every `every`-th step; 0 uses all degrees."""
        return min(step // every, self.degree) if every > 0 else self.degree

    @torch.no_grad()
    def rows(self) -> Rows:
        """Return the raw values of all rows like those of free Gaussians, detached."""
        return Rows(
            means=self.means,
            log_scales=self.log_scales,
            quaternions=self.unit_quaternions,
            opacity_logits=self.opacity_logits.detach(),
            constant=self.constant.detach(),
            rest=self.rest.detach(),
        )

    def to_cloud(self) -> GaussianCloud:
        """Return a copy on the host, in the layout of splat files."""
        return GaussianCloud(**{name: part.cpu().clone() for name, part in self.rows()._asdict().items()})

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """Return one group per non-empty parameter, for `run.track(groups=gaussians.groups())`."""
        # Unlike those of free Gaussians, the parameters are never replaced: no live lookup is needed.
        return {name: {name: part} for name, part in self.named_parameters() if part.numel()}

    def refuse_not_finite(self) -> None:
        """Raise `NotFiniteError` with the parameter and row if any value is not finite."""
        for name, part in self.named_parameters():
            refuse_not_finite(name, part.detach())


def triangle_sizes(corners: Float[Tensor, "m 3 3"], first_size: FirstSize) -> Float[Tensor, " m"]:
    """Return the length of each triangle that the radii of its Gaussians are proportional to, world units."""
    if first_size == "shortest":
        return (corners - corners.roll(-1, 1)).norm(dim=2).amin(1)
    first, second, third = corners.unbind(1)
    area = torch.linalg.cross(second - first, third - first).norm(dim=1) / 2
    # The area of an equilateral triangle of side s is sqrt(3) / 4 s^2.
    return (4 / math.sqrt(3) * area).sqrt()


def surface_quaternions(
    corners: Float[Tensor, "m 3 3"], normals: Float[Tensor, "m 3"], turns: Float[Tensor, "n 2"]
) -> Float[Tensor, "n 4"]:
    """Return rotations whose first axis is a triangle's normal or its opposite, and whose second is e1, rotated.

    e1 is along v0 - v1. Reversing an axis does not change a Gaussian, so the normal n is chosen with nx >= 0. Then
    (1 + nx, 0, -nz, ny) rotates x onto n, and e1 is at the complex number (e1y - k ny, e1z - k nz) in the plane, with
    k = e1x / (1 + nx). Multiplied by the rotation in the plane, it is x + iy = r exp(i angle), and the rotation around
    n is (r + x, y, 0, 0). If x is negative, half a turn is added, which does not change the Gaussian. Neither
    quaternion is ever close to 0.

    Args:
        corners: corners of the triangles, world units.
        normals: unit normals of the triangles.
        turns: rotations in the plane as complex numbers, one per Gaussian.
    """
    per_triangle = len(turns) // len(corners)
    side = corners[:, 0] - corners[:, 1]
    outward = torch.where(normals[:, :1] < 0, -1.0, 1.0).to(normals)
    nx, ny, nz = (normals * outward).unbind(1)
    ex, ey, ez = side.unbind(1)
    # nx >= 0, so the denominator is at least 1.
    k = ex / (1 + nx)
    across = ey - k * ny
    up = ez - k * nz
    flip = outward[:, 0]
    if per_triangle > 1:
        nx, ny, nz, across, up, flip = (part.repeat_interleave(per_triangle) for part in (nx, ny, nz, across, up, flip))
    x, y = turns.unbind(1)
    y = y * flip  # around the opposite normal, a rotation has the opposite sense
    real = across * x - up * y
    imaginary = across * y + up * x
    # Half-angle formula without trigonometry: (r + |x|, y) has half the angle.
    half = (real.square() + imaginary.square() + _TINY**2).sqrt() + real.abs()
    w = 1 + nx
    i = torch.where(real < 0, -imaginary, imaginary)
    return torch.stack([w * half, w * i, ny * i - nz * half, ny * half + nz * i], 1)


def face_normals(corners: Float[Tensor, "m 3 3"]) -> Float[Tensor, "m 3"]:
    """Return the unit normals of triangles with counter-clockwise front faces; zero for triangles without area."""
    first, second, third = corners.unbind(1)
    normals = torch.linalg.cross(second - first, third - first)
    return normals / (normals.square().sum(1, keepdim=True) + _TINY**2).sqrt()
