"""Triangle meshes as scenes for rendering normal maps, and the sphere that maps them to the unit sphere frame."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.render import View, cast_triangles

Shading = Literal["smooth", "flat"]

_NEAR_PLANE = 1e-4  # units of the unit sphere frame
_MAX_OPENING_SHARE = 0.01  # fraction of the area; meshes with larger openings have no well-defined inside
_MIN_NORMAL_LENGTH = 1e-9  # shorter interpolated normals have no direction
_ROUNDING = 1e-12  # fraction of the radius by which rounding may place points of a sphere outside it


@dataclass(frozen=True, kw_only=True)
class _RayHits:
    """Ray intersections of one camera in float64: face indices (-1 for the background), depth, barycentric weights."""

    camera: Camera
    faces: Int64[Tensor, "height width"]
    depth: Float64[Tensor, "height width"]
    weights: Float64[Tensor, "height width 3"]


class _SupportedSphere(NamedTuple):
    """A sphere and the points (at most four) that determine it."""

    center: Float64[np.ndarray, "3"]
    radius: float
    support: Float64[np.ndarray, "k 3"]


class MeshScene:
    """A triangle mesh rendered by ray casting, exact at every pixel center; a `NormalScene`.

    `cast_triangles` finds the first face along each ray; depth and barycentric weights are then recomputed in float64.
    Smooth shading interpolates vertex normals, which are means of face normals weighted by the angles at the vertex
    (Thuermer and Wuethrich, Computing vertex normals from polygonal facets, 1998). They differ from the normals of the
    triangles: near silhouettes some face away from the camera (`facing_away`), and a surface trained on them deviates
    from the mesh according to `shading_angle`. Flat shading uses face normals, which are consistent with depth.

    Vertices at exactly the same position are merged, because files duplicate them along texture seams, and unused
    vertices are removed. A closed mesh that is inside out (negative volume) is flipped, which is recorded in `notes`.

    Args:
        vertices: vertex positions in the camera frame, within the unit sphere (see `unit_sphere_of`).
        faces: vertex indices of the triangles, counter-clockwise seen from outside.
        shading: `smooth` for interpolated vertex normals, `flat` for face normals.

    Attributes:
        shading: the `shading` argument.
        vertices: merged vertices without unused ones, float64.
        faces: indices into `vertices` in the given order, flipped if `flipped`.
        flipped: whether the mesh was inside out and has been flipped.
        notes: human-readable notes: the mesh was flipped, is open, or has inconsistent winding.

    Raises:
        NormalMapError: if there are no faces or none with an area, vertices are not finite, or faces refer to missing
            vertices.
    """

    def __init__(self, vertices: Float[Tensor, "n 3"], faces: Int64[Tensor, "m 3"], *, shading: Shading) -> None:
        _check(vertices, faces)
        self.shading: Shading = shading
        self.vertices, self.faces = _welded(vertices.detach().cpu().double(), faces.detach().cpu())
        area_vectors = _area_vectors(self.vertices, self.faces)
        if not float(area_vectors.abs().max()) > 0:
            msg = (
                f"none of the {len(faces)} faces of the mesh has an area, so nothing is visible: check how the mesh "
                "was created"
            )
            raise NormalMapError(msg)
        # The area vectors of a closed surface sum to 0 (divergence theorem).
        opening = float(area_vectors.sum(0).norm() / area_vectors.norm(dim=1).sum())
        # The sign of the volume is only meaningful for closed surfaces.
        self.flipped = opening <= _MAX_OPENING_SHARE and _volume(self.vertices, self.faces, area_vectors) < 0
        if self.flipped:
            self.faces = self.faces.flip(1)
            area_vectors = -area_vectors
        self.notes = tuple(_notes(self.faces, len(self.vertices), flipped=self.flipped))
        self._flat = torch.nn.functional.normalize(area_vectors, dim=1, eps=1e-300)
        self._smooth = _vertex_normals(self.vertices, self.faces, self._flat)
        self._last_hits: _RayHits | None = None

    def depth(self, camera: Camera) -> Float64[Tensor, "height width"]:
        """Return the depth along the optical axis at every pixel center; 0 for the background."""
        return self._hits(camera).depth

    def normals(self, camera: Camera) -> Float64[Tensor, "height width 3"]:
        """Return outward unit normals at every pixel center, in the axes of the mesh; 0 for the background."""
        return self._normals(self._hits(camera), self.shading)

    def facing_away(self, camera: Camera) -> Bool[Tensor, "height width"]:
        """Return where normals face away from the camera: near silhouettes if smooth, on back faces if open."""
        along = camera.to("cpu", torch.float64).rays()[1]
        return (self.normals(camera) * along).sum(-1) > 0

    def shading_angle(self, camera: Camera) -> Float64[Tensor, "height width"]:
        """Return the angle between smooth and flat normals in degrees, whatever the `shading`; 0 for the background."""
        hits = self._hits(camera)
        smooth = self._normals(hits, "smooth")
        flat = self._normals(hits, "flat")
        # atan2 is accurate for small angles, unlike acos.
        across = torch.linalg.cross(smooth, flat).norm(dim=-1)
        return torch.atan2(across, (smooth * flat).sum(-1)).rad2deg()

    def _hits(self, camera: Camera) -> _RayHits:
        """Cast the rays of a camera; the last result is cached for subsequent calls with the same camera."""
        # Cameras are immutable, so identity suffices and no poses need to be compared.
        if self._last_hits is None or self._last_hits.camera is not camera:
            self._last_hits = _cast(self.vertices, self.faces, camera)
        return self._last_hits

    def _normals(self, hits: _RayHits, shading: Shading) -> Float64[Tensor, "height width 3"]:
        is_hit = hits.faces >= 0
        faces = hits.faces[is_hit]
        flat = self._flat[faces]
        normals = torch.zeros(*is_hit.shape, 3, dtype=torch.float64)
        if shading == "flat":
            normals[is_hit] = flat
            return normals
        interpolated = (hits.weights[is_hit][..., None] * self._smooth[self.faces[faces]]).sum(1)
        length = interpolated.norm(dim=1, keepdim=True)
        # Opposite normals of a two-sided sheet cancel; the face normal is used there.
        normals[is_hit] = torch.where(
            length > _MIN_NORMAL_LENGTH, interpolated / length.clamp_min(_MIN_NORMAL_LENGTH), flat
        )
        return normals


def unit_sphere_of(vertices: Float[Tensor, "n 3"], *, fill: float = 0.8) -> Float64[Tensor, "4 4"]:
    """Return `world_from_unit` of the frame in which the smallest sphere around the vertices has radius `fill`.

    The sphere is exact up to rounding: the farthest point is added to the support of the sphere until no point lies
    outside (pivoting as in Gaertner, Fast and robust smallest enclosing balls, 1999).

    Args:
        vertices: vertex positions in the world, at least two different ones.
        fill: radius of the object in the unit sphere frame, greater than 0 and at most 1.

    Raises:
        NormalMapError: if `fill` is out of range, a vertex is not finite, or all vertices coincide.
    """
    if not 0 < fill <= 1:
        msg = f"fill must be greater than 0 and at most 1, for example 0.8, got {fill}"
        raise NormalMapError(msg)
    points = vertices.detach().cpu().double().numpy()
    if len(points) < 2 or not np.isfinite(points).all() or not np.ptp(points, axis=0).max() > 0:
        msg = (
            f"a bounding sphere needs at least two different vertices, all finite, got {len(points)} vertices: check "
            "how the mesh was created"
        )
        raise NormalMapError(msg)
    # Centering first keeps rounding errors relative to the size of the mesh, not to its distance from the origin.
    middle = (points.min(0) + points.max(0)) / 2
    center, radius = _smallest_sphere(points - middle)
    frame = torch.eye(4, dtype=torch.float64)
    frame[:3, :3] *= radius / fill
    frame[:3, 3] = torch.from_numpy(center + middle)
    return frame


def _smallest_sphere(points: Float64[np.ndarray, "n 3"]) -> tuple[Float64[np.ndarray, "3"], float]:
    """Return center and radius. The loop ends because the radius grows in every round, so no support recurs."""
    sphere = _SupportedSphere(points[0], 0.0, points[:1])
    # Pivoting: add the farthest point until no point lies outside the current sphere.
    while True:
        distance = np.linalg.norm(points - sphere.center, axis=1)
        farthest = int(distance.argmax())
        if distance[farthest] <= sphere.radius * (1 + _ROUNDING):
            return sphere.center, float(distance[farthest])
        grown = _sphere_around(np.vstack([sphere.support, points[farthest]]))
        if grown.radius <= sphere.radius:  # rounding is all that is left
            return sphere.center, float(distance[farthest])
        sphere = grown


def _sphere_around(points: Float64[np.ndarray, "k 3"]) -> _SupportedSphere:
    """Return the smallest sphere around two to five points by trying all subsets of two to four points."""
    spheres = list[_SupportedSphere]()
    for count in range(2, min(len(points), 4) + 1):
        for indices in combinations(range(len(points)), count):
            subset = points[list(indices)]
            sides = subset[1:] - subset[0]
            # The minimum-norm solution is the circumcenter in the span of the subset. If no sphere passes through all
            # points of a subset, the radius below still covers them.
            center = subset[0] + np.linalg.lstsq(sides, np.square(sides).sum(1) / 2, rcond=None)[0]
            spheres.append(_SupportedSphere(center, float(np.linalg.norm(points - center, axis=1).max()), subset))
    return min(spheres, key=lambda sphere: sphere.radius)


def _check(vertices: Tensor, faces: Tensor) -> None:
    if not len(faces):
        msg = (
            f"a mesh of {len(vertices)} vertices has no faces, but normal maps need a surface: check how the mesh was "
            "created"
        )
        raise NormalMapError(msg)
    if not bool(torch.isfinite(vertices).all()):
        wrong = ~torch.isfinite(vertices).all(1)
        msg = (
            f"{int(wrong.sum())} of the {len(vertices)} vertices of the mesh are not finite, the first in row "
            f"{int(wrong.int().argmax())}: remove them and their faces, or check how the mesh was created"
        )
        raise NormalMapError(msg)
    if int(faces.min()) < 0 or int(faces.max()) >= len(vertices):
        msg = (
            f"faces refer to vertices {int(faces.min())} to {int(faces.max())}, but there are only {len(vertices)} "
            "(numbered from 0): check that faces and vertices belong to the same mesh"
        )
        raise NormalMapError(msg)


def _welded(
    vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"]
) -> tuple[Float64[Tensor, "k 3"], Int64[Tensor, "m 3"]]:
    """Merge vertices at exactly the same position and remove unused ones."""
    # Merging is exact: a tolerance would collapse fine details, and duplicates in files are bitwise equal.
    used, corners = torch.unique(faces, return_inverse=True)
    positions, target = torch.unique(vertices[used], dim=0, return_inverse=True)
    return positions, target[corners]


def _area_vectors(vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"]) -> Float64[Tensor, "m 3"]:
    """Return normal vectors of the faces with twice the area as length."""
    first, second, third = vertices[faces].unbind(1)
    return torch.linalg.cross(second - first, third - first)


def _volume(
    vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"], area_vectors: Float64[Tensor, "m 3"]
) -> float:
    """Return the signed volume by the divergence theorem, relative to the mean vertex."""
    return float(((vertices[faces[:, 0]] - vertices.mean(0)) * area_vectors).sum() / 6)


def _notes(faces: Int64[Tensor, "m 3"], count: int, *, flipped: bool) -> Iterator[str]:
    """Yield notes about orientation and topology of the mesh; faces with repeated vertices are ignored."""
    if flipped:
        yield "the mesh was inside out (negative volume): its faces were flipped"
    proper_faces = faces[(faces != faces.roll(1, dims=1)).all(1)]
    ends = torch.stack([proper_faces, proper_faces.roll(-1, dims=1)], -1).reshape(-1, 2)
    keys = ends.amin(1) * count + ends.amax(1)
    _, edge, uses = torch.unique(keys, return_inverse=True, return_counts=True)
    forward_count = torch.zeros_like(uses).index_add_(0, edge, (ends[:, 0] < ends[:, 1]).long())
    if open_edges := int((uses == 1).sum()):
        yield f"the mesh is open: {open_edges:,} of its {len(uses):,} edges have one face; back faces are kept"
    # The two faces of an edge traverse it in opposite directions if their winding is consistent.
    if misoriented_edges := int(((uses == 2) & (forward_count != 1)).sum()):
        yield f"{misoriented_edges:,} edges have faces with inconsistent winding: some normals point inward"
    if shared_edges := int((uses > 2).sum()):
        yield f"{shared_edges:,} edges have more than two faces: the outside is ambiguous there"


def _vertex_normals(
    vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"], flat: Float64[Tensor, "m 3"]
) -> Float64[Tensor, "n 3"]:
    """Return unit means of the face normals weighted by the face angles at each vertex; 0 if they cancel."""
    corners = vertices[faces]
    to_next = corners.roll(-1, dims=1) - corners
    to_previous = corners.roll(1, dims=1) - corners
    # atan2 stays accurate for angles near 0 and 180 degrees, where acos does not.
    angles = torch.atan2(torch.linalg.cross(to_next, to_previous).norm(dim=-1), (to_next * to_previous).sum(-1))
    total = torch.zeros_like(vertices)
    total.index_add_(0, faces.reshape(-1), (angles[..., None] * flat[:, None]).reshape(-1, 3))
    length = total.norm(dim=1, keepdim=True)
    return torch.where(
        length > _MIN_NORMAL_LENGTH, total / length.clamp_min(_MIN_NORMAL_LENGTH), torch.zeros(()).double()
    )


def _cast(vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"], camera: Camera) -> _RayHits:
    """Find the faces hit by the rays in float32 and recompute the intersections in float64."""
    exact_camera = camera.to("cpu", torch.float64)
    pose = exact_camera.camera_from_world
    names = ("fx", "fy", "cx", "cy", "width", "height")
    view = View(camera_from_world=pose, near=_NEAR_PLANE, **{name: getattr(exact_camera, name) for name in names})
    face_map = cast_triangles(vertices, faces, view).faces
    is_hit = face_map >= 0
    # In camera coordinates all rays start at the origin, which simplifies the volumes below.
    corners = (vertices[faces[face_map[is_hit]]] @ pose[:3, :3].T) + pose[:3, 3]
    edges = torch.linalg.cross(corners.roll(-1, dims=1), corners.roll(-2, dims=1))
    # The signed volumes spanned by the ray and each edge are the barycentric weights up to a common factor.
    weights = (edges * exact_camera.directions()[is_hit][:, None]).sum(-1)
    # On an edge, rounding may make a weight slightly negative.
    weights = (weights * weights.sum(1, keepdim=True).sign()).clamp_min(0)
    weights = weights / weights.sum(1, keepdim=True)
    depth = torch.zeros(is_hit.shape, dtype=torch.float64)
    weight_map = torch.zeros(*is_hit.shape, 3, dtype=torch.float64)
    depth[is_hit] = (weights * corners[..., 2]).sum(1)
    weight_map[is_hit] = weights
    return _RayHits(camera=camera, faces=face_map, depth=depth, weights=weight_map)
