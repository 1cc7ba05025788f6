"""Visible surface points: the first hits of rays through the pixels of cameras."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.sampling import SurfaceSamples
from fieldwatch.recon.mesh.triangles import Triangles
from fieldwatch.recon.render import View, cast_triangles


def visible_points(
    mesh: Triangles,
    cameras: Sequence[Camera],
    *,
    masks: Sequence[Bool[np.ndarray, "height width"] | None] | None = None,
) -> SurfaceSamples:
    """Return the first hits of the rays through all pixel centers, camera by camera.

    Rays without a hit give no point. Faces are hit from both sides.

    Args:
        mesh: mesh with faces.
        cameras: cameras in the coordinates of the mesh.
        masks: mask of counted pixels for each camera; None counts all.

    Raises:
        MeshError: there is no camera, the number of masks differs from that of the cameras, or a mask has another size
            than its camera.
    """
    if not cameras or (masks is not None and len(masks) != len(cameras)):
        raise MeshError(
            f"got {len(cameras)} cameras and {'no' if masks is None else len(masks)} masks: give at least one camera, "
            "and a mask (or None) for each camera or no masks"
        )
    vertices = torch.from_numpy(mesh.vertices).float()
    faces = torch.from_numpy(mesh.faces)
    samples = [
        _first_hits(mesh, vertices, faces, camera, mask)
        for camera, mask in zip(cameras, masks or [None] * len(cameras), strict=True)
    ]
    return SurfaceSamples(
        points=np.concatenate([sample.points for sample in samples]),
        normals=np.concatenate([sample.normals for sample in samples]),
    )


def _first_hits(
    mesh: Triangles, vertices: torch.Tensor, faces: torch.Tensor, camera: Camera, mask: np.ndarray | None
) -> SurfaceSamples:
    hits = cast_triangles(vertices, faces, _view_of(camera))
    face = hits.faces.numpy()
    if mask is not None and mask.shape != face.shape:
        raise MeshError(f"the mask of camera {camera.name!r} must have its size {face.shape}, got {mask.shape}")
    counted = face >= 0 if mask is None else (face >= 0) & mask
    # Interpolate the double-precision corners: the hit depth itself is single precision.
    weights = hits.barycentrics.numpy()[counted].astype(np.float64)
    # Single-precision weights do not sum to exactly 1.
    weights /= weights.sum(1, keepdims=True)
    points = np.einsum("nc,nci->ni", weights, mesh.corners[face[counted]])
    return SurfaceSamples(points=points, normals=mesh.normals[face[counted]])


def _view_of(camera: Camera) -> View:
    names = ("fx", "fy", "cx", "cy", "width", "height")
    pose = camera.camera_from_world.detach().cpu().float()
    return View(camera_from_world=pose, **{name: getattr(camera, name) for name in names})
