"""A mesh of triangles as something that normal maps are made of, and the sphere that brings it into the unit frame."""

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

_NEAR_PLANE = 1e-4  # of the unit frame: nothing in front of it is seen
_MAX_OPENING_SHARE = 0.01  # of the area: a surface with a larger opening has no inside to speak of
_MIN_NORMAL_LENGTH = 1e-9  # an interpolated normal this short is none
_ROUNDING = 1e-12  # of the radius: points this far outside of a sphere lie on it


@dataclass(frozen=True, kw_only=True)
class _RayHits:
    """What one camera sees: faces (-1: none), depth along the axis and corner weights, exact to float64."""

    camera: Camera
    faces: Int64[Tensor, "height width"]
    depth: Float64[Tensor, "height width"]
    weights: Float64[Tensor, "height width 3"]


class _SupportedSphere(NamedTuple):
    """A sphere, and the points (at most four) that determine it."""

    centre: Float64[np.ndarray, "3"]
    radius: float
    support: Float64[np.ndarray, "k 3"]


class MeshScene:
    """A mesh of triangles, seen exactly at every pixel's centre; a `NormalScene`.

    The first face along each ray is found by `cast_triangles`; depth and barycentric weights are computed again in
    double precision. With smooth shading the normals of the vertices, means of their faces' weighted by the angles
    there (Thuermer and Wuethrich, Computing vertex normals from polygonal facets, 1998), are interpolated by these
    weights and normalised. They are not the normals of the triangles: near silhouettes some face away from the camera
    (`facing_away`), and a surface trained on them is another one than the mesh by as much as `shading_angle` says.
    Flat shading gives the normals of the faces, which are those of the depth.

    Vertices at exactly the same place are one, as files repeat them along the seams of a texture; those that no face
    names count for nothing. A closed mesh that is inside out (its volume is below 0) is turned, and `notes` say so.

    Args:
        vertices: places in the frame of the cameras, within the unit sphere (`unit_sphere_of`).
        faces: three rows of `vertices` each, counter-clockwise seen from outside.
        shading: which normals: `smooth` of the vertices, interpolated, or `flat` of the faces.

    Attributes:
        shading: as given.
        vertices: as used: welded, without those that no face names; float64.
        faces: as used: of those vertices, turned where `flipped`, in the order given.
        flipped: whether the mesh was inside out, and was turned.
        notes: what people should know about it: that it was turned, is open, or wound both ways.

    Raises:
        NormalMapError: no face or none with an area, places that are not finite, or faces of vertices that are not
            there.
    """

    def __init__(self, vertices: Float[Tensor, "n 3"], faces: Int64[Tensor, "m 3"], *, shading: Shading) -> None:
        _check(vertices, faces)
        self.shading: Shading = shading
        self.vertices, self.faces = _welded(vertices.detach().cpu().double(), faces.detach().cpu())
        area_vectors = _area_vectors(self.vertices, self.faces)
        if not float(area_vectors.abs().max()) > 0:
            msg = (
                f"none of the mesh's {len(faces)} faces has an area: there is nothing to be seen; look at what made it"
            )
            raise NormalMapError(msg)
        # The area vectors of a closed surface add up to 0 (divergence theorem).
        opening = float(area_vectors.sum(0).norm() / area_vectors.norm(dim=1).sum())
        self.flipped = opening <= _MAX_OPENING_SHARE and _volume(self.vertices, self.faces, area_vectors) < 0
        if self.flipped:
            self.faces = self.faces.flip(1)
            area_vectors = -area_vectors
        self.notes = tuple(_notes(self.faces, len(self.vertices), flipped=self.flipped))
        self._flat = torch.nn.functional.normalize(area_vectors, dim=1, eps=1e-300)
        self._smooth = _vertex_normals(self.vertices, self.faces, self._flat)
        self._last_hits: _RayHits | None = None

    def depth(self, camera: Camera) -> Float64[Tensor, "height width"]:
        """Return the depth along the optical axis at every pixel's centre; 0 where nothing is."""
        return self._hits(camera).depth

    def normals(self, camera: Camera) -> Float64[Tensor, "height width 3"]:
        """Return outward unit normals at every pixel's centre, in the mesh's axes; 0 where nothing is."""
        return self._normals(self._hits(camera), self.shading)

    def facing_away(self, camera: Camera) -> Bool[Tensor, "height width"]:
        """Return where the normal turns away from the camera: at silhouettes if smooth, on back sides if open."""
        along = camera.to("cpu", torch.float64).rays()[1]
        return (self.normals(camera) * along).sum(-1) > 0

    def shading_angle(self, camera: Camera) -> Float64[Tensor, "height width"]:
        """Return the angle between smooth and flat normals, degrees; 0 where nothing is. `shading` means nothing."""
        hits = self._hits(camera)
        smooth = self._normals(hits, "smooth")
        flat = self._normals(hits, "flat")
        across = torch.linalg.cross(smooth, flat).norm(dim=-1)
        return torch.atan2(across, (smooth * flat).sum(-1)).rad2deg()

    def _hits(self, camera: Camera) -> _RayHits:
        """Cast the rays of a camera; the last one's are kept, as depth and normals are asked for in turn."""
        # By identity: cameras are immutable, and comparing poses would cost more.
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
        # opposite normals of a sheet with two sides cancel out: there the face's own is the only one
        normals[is_hit] = torch.where(
            length > _MIN_NORMAL_LENGTH, interpolated / length.clamp_min(_MIN_NORMAL_LENGTH), flat
        )
        return normals


def unit_sphere_of(vertices: Float[Tensor, "n 3"], *, fill: float = 0.8) -> Float64[Tensor, "4 4"]:
    """Return `world_from_unit`: the frame in which the smallest sphere around points has the radius `fill`.

    The sphere is exact to rounding: the farthest point joins those that determine the sphere until none is outside
    (pivoting as in Gaertner, Fast and robust smallest enclosing balls, 1999).

    Args:
        vertices: places in the world; at least two different ones.
        fill: radius of the object in the unit frame, above 0 and at most 1.

    Raises:
        NormalMapError: a `fill` out of bounds, places that are not finite, or no two different ones.
    """
    if not 0 < fill <= 1:
        msg = f"an object is to fill {fill} of the unit sphere: wanted above 0, at most 1, such as 0.8"
        raise NormalMapError(msg)
    points = vertices.detach().cpu().double().numpy()
    if len(points) < 2 or not np.isfinite(points).all() or not np.ptp(points, axis=0).max() > 0:
        msg = (
            f"a sphere around {len(points)} places was asked for: wanted are at least two different ones, all finite; "
            "look at what made the mesh"
        )
        raise NormalMapError(msg)
    middle = (points.min(0) + points.max(0)) / 2
    centre, radius = _smallest_sphere(points - middle)
    frame = torch.eye(4, dtype=torch.float64)
    frame[:3, :3] *= radius / fill
    frame[:3, 3] = torch.from_numpy(centre + middle)
    return frame


def _smallest_sphere(points: Float64[np.ndarray, "n 3"]) -> tuple[Float64[np.ndarray, "3"], float]:
    """Return centre and radius; the radius grows with every round, so no set of points comes twice."""
    sphere = _SupportedSphere(points[0], 0.0, points[:1])
    # Pivoting: add the farthest point until no point lies outside the current sphere.
    while True:
        distance = np.linalg.norm(points - sphere.centre, axis=1)
        farthest = int(distance.argmax())
        if distance[farthest] <= sphere.radius * (1 + _ROUNDING):
            return sphere.centre, float(distance[farthest])
        grown = _sphere_around(np.vstack([sphere.support, points[farthest]]))
        if grown.radius <= sphere.radius:  # rounding is all that is left
            return sphere.centre, float(distance[farthest])
        sphere = grown


def _sphere_around(points: Float64[np.ndarray, "k 3"]) -> _SupportedSphere:
    """Return the smallest sphere around two to five points: one through some of them, centred in their span."""
    spheres = list[_SupportedSphere]()
    for count in range(2, min(len(points), 4) + 1):
        for indices in combinations(range(len(points)), count):
            subset = points[list(indices)]
            sides = subset[1:] - subset[0]
            # the shortest solution: in the span; of points that no sphere goes through, the radius makes up for it
            centre = subset[0] + np.linalg.lstsq(sides, np.square(sides).sum(1) / 2, rcond=None)[0]
            spheres.append(_SupportedSphere(centre, float(np.linalg.norm(points - centre, axis=1).max()), subset))
    return min(spheres, key=lambda sphere: sphere.radius)


def _check(vertices: Tensor, faces: Tensor) -> None:
    if not len(faces):
        msg = f"a mesh of {len(vertices)} vertices has no faces: normal maps need a surface; look at what made it"
        raise NormalMapError(msg)
    if not bool(torch.isfinite(vertices).all()):
        wrong = ~torch.isfinite(vertices).all(1)
        msg = (
            f"{int(wrong.sum())} of the mesh's {len(vertices)} vertices are not finite, the first is row "
            f"{int(wrong.int().argmax())}: remove them and their faces, or look at what made them"
        )
        raise NormalMapError(msg)
    if int(faces.min()) < 0 or int(faces.max()) >= len(vertices):
        msg = (
            f"faces name the vertices {int(faces.min())} to {int(faces.max())}, there are {len(vertices)} (numbered "
            "from 0): they belong to another mesh"
        )
        raise NormalMapError(msg)


def _welded(
    vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"]
) -> tuple[Float64[Tensor, "k 3"], Int64[Tensor, "m 3"]]:
    """Make vertices at exactly the same place one, and drop those that no face names."""
    used, corners = torch.unique(faces, return_inverse=True)
    positions, target = torch.unique(vertices[used], dim=0, return_inverse=True)
    return positions, target[corners]


def _area_vectors(vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"]) -> Float64[Tensor, "m 3"]:
    """Return cross products of two sides: twice the area long, along the normal."""
    first, second, third = vertices[faces].unbind(1)
    return torch.linalg.cross(second - first, third - first)


def _volume(
    vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"], area_vectors: Float64[Tensor, "m 3"]
) -> float:
    """Return the volume, by the divergence theorem from the middle of the vertices."""
    return float(((vertices[faces[:, 0]] - vertices.mean(0)) * area_vectors).sum() / 6)


def _notes(faces: Int64[Tensor, "m 3"], count: int, *, flipped: bool) -> Iterator[str]:
    """Say what is special about the mesh; faces without area, which name a vertex twice, count for nothing."""
    if flipped:
        yield "the mesh was inside out (its volume is below 0): its faces were turned"
    proper_faces = faces[(faces != faces.roll(1, dims=1)).all(1)]
    ends = torch.stack([proper_faces, proper_faces.roll(-1, dims=1)], -1).reshape(-1, 2)
    keys = ends.amin(1) * count + ends.amax(1)
    _, edge, uses = torch.unique(keys, return_inverse=True, return_counts=True)
    forward_count = torch.zeros_like(uses).index_add_(0, edge, (ends[:, 0] < ends[:, 1]).long())
    if open_edges := int((uses == 1).sum()):
        yield f"the mesh is open: {open_edges:,} of its {len(uses):,} edges have one face; its inside is seen as it is"
    if misoriented_edges := int(((uses == 2) & (forward_count != 1)).sum()):
        yield f"{misoriented_edges:,} edges have faces that are wound against each other: some normals face inwards"
    if shared_edges := int((uses > 2).sum()):
        yield f"{shared_edges:,} edges have more than two faces: which side is outside is not clear there"


def _vertex_normals(
    vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"], flat: Float64[Tensor, "m 3"]
) -> Float64[Tensor, "n 3"]:
    """Return means of the faces' normals, weighted by the faces' angles at each vertex; of length 1, or 0."""
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
    """Find the faces, then intersect them with the rays again: what is found is in single precision."""
    exact_camera = camera.to("cpu", torch.float64)
    pose = exact_camera.camera_from_world
    names = ("fx", "fy", "cx", "cy", "width", "height")
    view = View(camera_from_world=pose, near=_NEAR_PLANE, **{name: getattr(exact_camera, name) for name in names})
    face_map = cast_triangles(vertices, faces, view).faces
    is_hit = face_map >= 0
    corners = (vertices[faces[face_map[is_hit]]] @ pose[:3, :3].T) + pose[:3, 3]
    edges = torch.linalg.cross(corners.roll(-1, dims=1), corners.roll(-2, dims=1))
    # Signed volumes of ray and edges are the barycentric weights, up to a common factor.
    weights = (edges * exact_camera.directions()[is_hit][:, None]).sum(-1)
    # on an edge, rounding may put the point outside by as much
    weights = (weights * weights.sum(1, keepdim=True).sign()).clamp_min(0)
    weights = weights / weights.sum(1, keepdim=True)
    depth = torch.zeros(is_hit.shape, dtype=torch.float64)
    weight_map = torch.zeros(*is_hit.shape, 3, dtype=torch.float64)
    depth[is_hit] = (weights * corners[..., 2]).sum(1)
    weight_map[is_hit] = weights
    return _RayHits(camera=camera, faces=face_map, depth=depth, weights=weight_map)
