"""Gaussians bound to the triangles of a mesh: they lie flat on it, and move with its vertices (SuGaR, section 4.3)."""

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
"""What is learned, in the order it is kept: the vertices of the mesh, then one row per Gaussian."""
_TINY = 1e-12
"""Added in squares below square roots: a face without area gets a finite frame, and no infinite gradient."""


class BoundRows(NamedTuple):
    """Parameters of bound Gaussians, one row each: all but the vertices.

    Attributes:
        plane_log_scales: logarithms of the standard deviations along the two axes in the plane, world units.
        turns: of these axes in the plane, as complex numbers of any length but 0; (1, 0) turns nothing.
        opacity_logits: opacity is their sigmoid.
        constant: spherical harmonics of degree 0.
        rest: those above.
    """

    plane_log_scales: Float[Tensor, "n 2"]
    turns: Float[Tensor, "n 2"]
    opacity_logits: Float[Tensor, "n"]
    constant: Float[Tensor, "n 3"]
    rest: Float[Tensor, "n functions 3"]


class BoundGaussians(nn.Module):
    """Gaussians at fixed barycentric coordinates of triangles, flat along the normal; rendered like any others.

    Learned are the vertices, and of each Gaussian two sizes and a turn in the plane, opacity and colour. Centres,
    quaternions and scales follow from them, and gradients reach the vertices. The Gaussians of face i are rows
    i * per_triangle and after. A Gaussian's first axis is its triangle's normal n = (v1 - v0) x (v2 - v0) or its
    opposite; the others are e1, along v0 - v1, and e2 = n x e1, turned by a complex number x + iy to x e1 + y e2 and
    x e2 - y e1.

    Args:
        vertices: of the mesh, world units.
        faces: three vertices each.
        rows: one per Gaussian.
        per_triangle: Gaussians per face: 1, 3, 4 or 6.
        thickness: standard deviation along the normal, world units; not learned.

    Raises:
        ValueError: no faces, rows that are not `per_triangle` per face, or a thickness that is not above 0.
        NotFiniteError: a value that is not finite.
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
        wanted = len(faces) * per_triangle
        if not wanted or any(len(part) != wanted for part in rows):
            raise ValueError(
                f"{len(faces)} faces with {per_triangle} Gaussians each need {wanted} rows in every tensor, and one "
                f"face or more; got {', '.join(f'{name} {len(part)}' for name, part in rows._asdict().items())}"
            )
        if not 0 < thickness < math.inf:
            raise InputError(
                f"the thickness is {thickness}: it must be finite and above 0, 1e-6 of the extent is usual"
            )
        for name, part in zip(PARAMETERS, (vertices, *rows), strict=True):
            refuse_not_finite(name, part)
            self.register_parameter(name, nn.Parameter(part.detach().clone()))
        self.per_triangle: PerTriangle = per_triangle
        self.thickness = thickness
        self._cached_corners: Tensor | None = None
        self._cached_normals: Tensor | None = None
        self.register_buffer("faces", faces.clone())
        barycentric = torch.tensor(PATTERNS[per_triangle].centres, dtype=vertices.dtype, device=vertices.device)
        # Not stored: it follows from `per_triangle`.
        self.register_buffer("barycentric", barycentric, persistent=False)

    @classmethod
    def on_mesh(  # noqa: PLR0913  a mesh, and the Gaussians on it
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
        """Put Gaussians on every triangle, round in its plane, as large as `Pattern.radius` says.

        Args:
            vertices: of the mesh, world units.
            faces: three vertices each.
            constant: harmonics of degree 0 of every Gaussian.
            rest: those above.
            per_triangle: Gaussians per face.
            thickness: along the normal, world units.
            opacity: of all, above 0 and below 1.
            first_size: what the radius is a share of: the triangle's shortest side (SuGaR), or the side of an
                equilateral triangle of its area.

        Raises:
            ValueError, NotFiniteError: as the class; or an opacity out of bounds.
        """
        if not 0 < opacity < 1:
            raise InputError(f"the starting opacity is {opacity}: it must lie between 0 and 1, 0.1 is customary")
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
        """Compute corners and normals once for the whole block, in which the vertices must not change."""
        self._cached_corners = self.corners
        self._cached_normals = face_normals(self._cached_corners)
        try:
            yield
        finally:
            self._cached_corners = self._cached_normals = None

    @property
    def corners(self) -> Float[Tensor, "m 3 3"]:
        """Positions of the corners of each face, world units."""
        if self._cached_corners is not None:
            return self._cached_corners
        return self.vertices.index_select(0, self.faces.reshape(-1)).view(-1, 3, 3)

    @property
    def normals(self) -> Float[Tensor, "m 3"]:
        """Unit normals of the faces, see `face_normals`."""
        return face_normals(self.corners) if self._cached_normals is None else self._cached_normals

    @property
    def means(self) -> Float[Tensor, "n 3"]:
        """Centres, world units."""
        first, second, third = self.corners.unbind(1)
        centres = [a * first + b * second + c * third for a, b, c in PATTERNS[self.per_triangle].centres]
        return centres[0] if len(centres) == 1 else torch.stack(centres, 1).reshape(-1, 3)

    @property
    def scales(self) -> Float[Tensor, "n 3"]:
        """Standard deviations along the own axes, world units; the first is the thickness."""
        return functional.pad(self.plane_log_scales.exp(), (1, 0), value=self.thickness)

    @property
    def log_scales(self) -> Float[Tensor, "n 3"]:
        """Logarithms of the scales."""
        return functional.pad(self.plane_log_scales, (1, 0), value=math.log(self.thickness))

    @property
    def opacities(self) -> Float[Tensor, " n"]:
        """Opacities, 0 .. 1."""
        return self.opacity_logits.sigmoid()

    @property
    def quaternions(self) -> Float[Tensor, "n 4"]:
        """Rotations w, x, y, z from the own axes to the world, of any length but 0."""
        return surface_quaternions(self.corners, self.normals, self.turns)

    @property
    def unit_quaternions(self) -> Float[Tensor, "n 4"]:
        """Rotations w, x, y, z of length 1."""
        return normalized_quaternions(self.quaternions)

    @property
    def harmonics(self) -> tuple[Float[Tensor, "n 1 3"], Float[Tensor, "n functions 3"]]:
        """Coefficients of degree 0, and of the higher degrees, as `splat` takes them."""
        return self.constant[:, None, :], self.rest

    @property
    def degree(self) -> int:
        """Degree of the harmonics that are held, 0 .. 3."""
        return math.isqrt(self.rest.shape[1] + 1) - 1

    def degree_at(self, step: int, every: int = 1000) -> int:
        """Degree of the harmonics in use at a step: one more every so many steps; all at once where `every` is 0."""
        return min(step // every, self.degree) if every > 0 else self.degree

    @torch.no_grad()
    def rows(self) -> Rows:
        """Raw values of all, as those of free Gaussians; detached."""
        return Rows(
            means=self.means,
            log_scales=self.log_scales,
            quaternions=self.unit_quaternions,
            opacity_logits=self.opacity_logits.detach(),
            constant=self.constant.detach(),
            rest=self.rest.detach(),
        )

    def to_cloud(self) -> GaussianCloud:
        """Return a copy on the host, as files hold them."""
        return GaussianCloud(**{name: part.cpu().clone() for name, part in self.rows()._asdict().items()})

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """One group per parameter, for `run.track(groups=gaussians.groups())`; without those that hold nothing."""
        return {name: {name: part} for name, part in self.named_parameters() if part.numel()}

    def refuse_not_finite(self) -> None:
        """Raise `NotFiniteError`, naming parameter and row, if any value is not finite."""
        for name, part in self.named_parameters():
            refuse_not_finite(name, part.detach())


def triangle_sizes(corners: Float[Tensor, "m 3 3"], first_size: FirstSize) -> Float[Tensor, " m"]:
    """Return the lengths of triangles that the radii of their Gaussians are shares of, world units."""
    if first_size == "shortest":
        return (corners - corners.roll(-1, 1)).norm(dim=2).amin(1)
    first, second, third = corners.unbind(1)
    area = torch.linalg.cross(second - first, third - first).norm(dim=1) / 2
    return (4 / math.sqrt(3) * area).sqrt()


def surface_quaternions(
    corners: Float[Tensor, "m 3 3"], normals: Float[Tensor, "m 3"], turns: Float[Tensor, "n 2"]
) -> Float[Tensor, "n 4"]:
    """Return rotations whose first axis is a triangle's normal or its opposite, and the second e1 = v0 - v1, turned.

    A Gaussian looks the same with an axis turned round, so that the normal n is taken with nx >= 0. Then (1 + nx, 0,
    -nz, ny) turns x onto n, and e1 is seen at the complex number (e1y - k ny, e1z - k nz) in the plane, k = e1x /
    (1 + nx). With the turn multiplied to it, x + iy = r exp(i angle), the turn around n is (r + x, y, 0, 0); where x
    is below 0 half a circle is added, which looks the same. So neither ever comes near 0.

    Args:
        corners: of the triangles.
        normals: of unit length.
        turns: complex numbers, as many per triangle as it has Gaussians.
    """
    per_triangle = len(turns) // len(corners)
    side = corners[:, 0] - corners[:, 1]
    outward = torch.where(normals[:, :1] < 0, -1.0, 1.0).to(normals)
    nx, ny, nz = (normals * outward).unbind(1)
    ex, ey, ez = side.unbind(1)
    # nx >= 0: the denominator is 1 or more.
    k = ex / (1 + nx)
    across = ey - k * ny
    up = ez - k * nz
    flip = outward[:, 0]
    if per_triangle > 1:
        nx, ny, nz, across, up, flip = (part.repeat_interleave(per_triangle) for part in (nx, ny, nz, across, up, flip))
    x, y = turns.unbind(1)
    y = y * flip  # with the opposite normal a turn goes the other way round
    real = across * x - up * y
    imaginary = across * y + up * x
    # Half angles without trigonometry: (r + |x|, y) points in the direction of half the angle.
    half = (real.square() + imaginary.square() + _TINY**2).sqrt() + real.abs()
    w = 1 + nx
    i = torch.where(real < 0, -imaginary, imaginary)
    return torch.stack([w * half, w * i, ny * i - nz * half, ny * half + nz * i], 1)


def face_normals(corners: Float[Tensor, "m 3 3"]) -> Float[Tensor, "m 3"]:
    """Unit normals of triangles, out of the side from which the corners run counter-clockwise; zero without an area."""
    first, second, third = corners.unbind(1)
    normals = torch.linalg.cross(second - first, third - first)
    return normals / (normals.square().sum(1, keepdim=True) + _TINY**2).sqrt()
