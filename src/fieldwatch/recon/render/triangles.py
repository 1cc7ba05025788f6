"""First-hit ray casting of a triangle mesh per pixel, with a native rasterizer and a reference in plain torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from fieldwatch.recon.render.native import NativeUnavailable, call, native_available
from fieldwatch.recon.render.splats import View

CastBackend = Literal["auto", "native", "reference"]

_BLUR = 4e-15  # rounding of an edge function, relative to the lengths of its factors; as in native/triangles.c
_SLACK = 1e-3  # pixels by which the bounding box of a face is widened
_PAIRS = 1 << 20  # pairs of face and pixel per batch of the reference
_NOTHING = torch.iinfo(torch.int64).max


@dataclass(frozen=True, kw_only=True, eq=False)
class Hits:
    """First hit of the ray through each pixel center.

    Attributes:
        faces: index of the face; -1 without a hit.
        depth: z depth in world units; 0 without a hit.
        barycentrics: perspective-correct weights of the corners, which interpolate anything linear on the triangle.
            They sum to 1, or are 0 without a hit.
    """

    faces: Int64[Tensor, "height width"]
    depth: Float32[Tensor, "height width"]
    barycentrics: Float32[Tensor, "height width 3"]


def cast_triangles(
    vertices: Float[Tensor, "n 3"],
    faces: Int64[Tensor, "m 3"],
    view: View,
    *,
    backend: CastBackend = "auto",
) -> Hits:
    """Find the nearest face per pixel at `view.near` or beyond; faces are visible from both sides.

    Uses edge functions of homogeneous coordinates in double precision (Olano & Greer, Triangle scan conversion using 2D
    homogeneous coordinates, 1997), so triangles that reach behind the camera need no clipping. A ray through a shared
    edge hits both faces, so a closed mesh has no holes. Among faces of equal depth (in single precision), the one with
    the lowest index is returned. Both backends give bitwise equal results for any number of threads.

    Args:
        vertices: vertex positions in the world.
        faces: three indices into `vertices` per face; faces without area are never hit.
        view: camera; rays pass through the pixel centers at +0.5.
        backend: `native` is the C rasterizer (CPU), `reference` plain torch (any device); `auto` uses the native one
            if available.

    Raises:
        ValueError: a vertex is not finite, a face references a missing vertex, or `view.near` is not positive.
        NativeUnavailable: `backend` is "native", which is not available here.
    """
    native, reason = native_available() if backend != "reference" else (False, "")
    if backend == "native" and not (native and vertices.device.type == "cpu"):
        reason_device = f"the vertices are on {vertices.device}, but it runs on the CPU"
        raise NativeUnavailable(f"the native backend is not available: {reason or reason_device}; use backend='auto'")
    _check(vertices, faces, view)
    # Hits are not differentiable: no graph is needed.
    pose = view.camera_from_world.detach().to(vertices.device, torch.float64)
    backend_function = _native if native and vertices.device.type == "cpu" else _reference
    return backend_function(vertices.detach().double().contiguous(), faces.contiguous(), pose, view)


def _check(vertices: Tensor, faces: Tensor, view: View) -> None:
    if not view.near > 0:
        raise ValueError(f"the near plane of the view must be greater than 0, got {view.near}")
    if not bool(torch.isfinite(vertices).all()):
        raise ValueError("a vertex is not finite: remove such vertices with their faces, or check what made them")
    if faces.numel() and (int(faces.min()) < 0 or int(faces.max()) >= len(vertices)):
        raise ValueError(
            f"faces reference vertices {int(faces.min())} to {int(faces.max())}, but there are {len(vertices)}, "
            "numbered from 0: they belong to another mesh"
        )


def _native(
    vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"], pose: Float64[Tensor, "4 4"], view: View
) -> Hits:
    hits = Hits(
        faces=torch.full((view.height, view.width), -1),
        depth=torch.zeros(view.height, view.width),
        barycentrics=torch.zeros(view.height, view.width, 3),
    )
    lens = torch.tensor([view.fx, view.fy, view.cx, view.cy, view.near], dtype=torch.float64)
    corners = lens.new_empty(len(vertices), 6)
    boxes = torch.empty(len(faces), 4, dtype=torch.int32)
    scratch = (corners, boxes, lens.new_empty(view.width))
    inputs = (len(vertices), vertices, len(faces), faces, pose.contiguous(), lens, view.width, view.height)
    call("fw_cast_triangles", *inputs, torch.get_num_threads(), *scratch, hits.faces, hits.depth, hits.barycentrics)
    return hits


class _Rays(NamedTuple):
    """Ray slopes x / z per column and y / z per row; `reach` is the largest magnitude, at least 1."""

    across: Float64[Tensor, "width"]
    down: Float64[Tensor, "height"]
    reach: Float64[Tensor, ""]


class _Weights(NamedTuple):
    """Unnormalized barycentric weights, depth and hit flag for pairs of face and pixel."""

    corners: Float64[Tensor, "pairs 3"]
    depth: Float64[Tensor, "pairs"]
    met: Bool[Tensor, "pairs"]


def _reference(
    vertices: Float64[Tensor, "n 3"], faces: Int64[Tensor, "m 3"], pose: Float64[Tensor, "4 4"], view: View
) -> Hits:
    corners = _in_camera(vertices, pose)[faces]
    rays = _rays(view, vertices.device)
    best = torch.full((view.height * view.width,), _NOTHING, device=vertices.device)
    for face, pixel in _candidates(corners, view):
        weights = _weights(corners[face], pixel, rays, view)
        # Depth in the upper half of the key, face in the lower half: the minimum is the nearest, then lowest, face.
        bits = weights.depth[weights.met].float().view(torch.int32).long()
        key = bits << 32 | face[weights.met]
        # The bits of positive floats sort like the floats, so one integer minimum decides.
        best.scatter_reduce_(0, pixel[weights.met], key, "amin")
    return _collected(best, corners, rays, view)


def _in_camera(vertices: Float64[Tensor, "n 3"], pose: Float64[Tensor, "4 4"]) -> Float64[Tensor, "n 3"]:
    """Transform vertices to camera axes term by term: a matrix product would use fused multiply-adds."""
    x, y, z = vertices.unbind(-1)
    return torch.stack([((row[0] * x + row[1] * y) + row[2] * z) + row[3] for row in pose[:3]], -1)


def _rays(view: View, device: torch.device) -> _Rays:
    across = (torch.arange(view.width, dtype=torch.float64, device=device) + 0.5 - view.cx) / view.fx
    down = (torch.arange(view.height, dtype=torch.float64, device=device) + 0.5 - view.cy) / view.fy
    return _Rays(across, down, torch.cat([across.abs(), down.abs(), across.new_ones(1)]).max())


def _candidates(
    corners: Float64[Tensor, "m 3 3"], view: View
) -> Iterator[tuple[Int64[Tensor, "pairs"], Int64[Tensor, "pairs"]]]:
    """Yield batches of faces with the pixels they may cover; all pixels for a face through the near plane."""
    # Pairs are enumerated per face, in batches that limit the memory.
    left, right, top, bottom = _boxes(corners, view)
    counts = (right - left) * (bottom - top)
    used = torch.nonzero(counts)[:, 0]
    ends = counts[used].cumsum(0)
    for group in torch.unique(ends // _PAIRS).tolist():
        face = used[ends // _PAIRS == group]
        count = counts[face]
        width = (right - left)[face]
        pair = torch.repeat_interleave(count)
        at = torch.arange(len(pair), device=pair.device) - (count.cumsum(0) - count)[pair]
        row = top[face][pair] + at // width[pair]
        column = left[face][pair] + at % width[pair]
        yield face[pair], row * view.width + column


def _boxes(corners: Float64[Tensor, "m 3 3"], view: View) -> tuple[Int64[Tensor, "m"], ...]:
    """Return pixel bounds of faces: first column, end column, first row, end row."""
    # A face through the near plane has no finite bounding box: it gets the whole image.
    front = corners[..., 2] >= view.near
    depth = torch.where(front, corners[..., 2], 1)
    bounds: list[Tensor] = []
    for axis, focal, center, size in ((0, view.fx, view.cx, view.width), (1, view.fy, view.cy, view.height)):
        position = focal * corners[..., axis] / depth + center
        low = (position.amin(1) - _SLACK - 0.5).ceil()
        high = (position.amax(1) + _SLACK - 0.5).ceil()
        bounds += [torch.where(front.all(1), low, 0), torch.where(front.all(1), high, size)]
        bounds[-2:] = [bound.clamp(0, size) * front.any(1) for bound in bounds[-2:]]
    left, right, top, bottom = (bound.long() for bound in bounds)
    return left, right, top, bottom


def _weights(corners: Float64[Tensor, "pairs 3 3"], pixel: Int64[Tensor, "pairs"], rays: _Rays, view: View) -> _Weights:
    """Evaluate the edge functions of faces at pixels, in the order of operations of the native kernel."""
    following = corners[:, [1, 2, 0]]
    last = corners[:, [2, 0, 1]]
    ax, ay, az = following.unbind(-1)
    bx, by, bz = last.unbind(-1)
    normal = (ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx)
    across = rays.across[pixel % view.width, None]
    down = rays.down[pixel // view.width, None]
    edge = across * normal[0] + (down * normal[1] + normal[2])
    sizes = [(x.abs() + y.abs()) + z.abs() for x, y, z in ((ax, ay, az), (bx, by, bz))]
    tolerance = _BLUR * rays.reach * (sizes[0] * sizes[1])
    total = _added(edge)
    area_tolerance = _added(tolerance)
    # Both orientations are hits: faces are visible from both sides.
    inside = (edge >= -tolerance).all(1) | (edge <= tolerance).all(1)
    weights = (edge * torch.where(total < 0, -1, 1)[:, None]).clamp_min(0)
    depth = _added(weights * corners[..., 2]) / _added(weights)
    return _Weights(weights, depth, inside & (total.abs() > area_tolerance) & (depth >= view.near))


def _added(terms: Float64[Tensor, "pairs 3"]) -> Float64[Tensor, "pairs"]:
    return (terms[:, 0] + terms[:, 1]) + terms[:, 2]


def _collected(best: Int64[Tensor, "pixels"], corners: Float64[Tensor, "m 3 3"], rays: _Rays, view: View) -> Hits:
    pixel = torch.nonzero(best != _NOTHING)[:, 0]
    face = best[pixel] & 0xFFFFFFFF
    weights = _weights(corners[face], pixel, rays, view)
    faces = torch.full_like(best, -1)
    depth = torch.zeros(len(best), device=best.device)
    barycentrics = torch.zeros(len(best), 3, device=best.device)
    faces[pixel] = face
    depth[pixel] = weights.depth.float()
    barycentrics[pixel] = (weights.corners / _added(weights.corners)[:, None]).float()
    size = (view.height, view.width)
    return Hits(faces=faces.view(size), depth=depth.view(size), barycentrics=barycentrics.view(*size, 3))
