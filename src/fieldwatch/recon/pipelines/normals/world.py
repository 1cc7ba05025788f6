"""Conversion from the frame of the scene's sphere, used in training, to the world frame given by `world_from_unit`."""

from dataclasses import replace

from jaxtyping import Float64
from torch import Tensor

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import Triangles
from fieldwatch.recon.pipelines.normals.scene import NormalsScene


def pose_in_world(pose: Float64[Tensor, "*views 4 4"], scene: NormalsScene) -> Float64[Tensor, "*views 4 4"]:
    """Transform poses from the frame of the scene's sphere to the world frame; the scale affects positions only."""
    matrix = scene.maps.world_from_unit.double().cpu()
    # The world frame has the same axes as the scene's sphere, so rotations are unchanged.
    moved = pose.clone()
    moved[..., :3, 3] = pose[..., :3, 3] @ matrix[:3, :3].T + matrix[:3, 3]
    return moved


def camera_in_world(camera: Camera, scene: NormalsScene) -> Camera:
    """Transform a camera from the frame of the scene's sphere to the world frame, in double precision, on the host."""
    return replace(camera, world_from_camera=pose_in_world(camera.world_from_camera.double().cpu(), scene))


def mesh_in_world(mesh: Triangles, scene: NormalsScene) -> Triangles:
    """Transform a mesh from the frame of the scene's sphere to the world frame."""
    matrix = scene.maps.world_from_unit.double().cpu().numpy()
    return replace(mesh, vertices=mesh.vertices @ matrix[:3, :3].T + matrix[:3, 3])
