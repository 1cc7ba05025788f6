"""From the frame of the scene's sphere, where all training happens, to the world that `world_from_unit` leads to."""

from dataclasses import replace

from jaxtyping import Float64
from torch import Tensor

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import Triangles
from fieldwatch.recon.pipelines.normals.scene import NormalsScene


def pose_in_world(pose: Float64[Tensor, "*views 4 4"], scene: NormalsScene) -> Float64[Tensor, "*views 4 4"]:
    """Return poses of the frame of the scene's sphere in the world: the scale acts on their positions only."""
    matrix = scene.maps.world_from_unit.double().cpu()
    moved = pose.clone()
    moved[..., :3, 3] = pose[..., :3, 3] @ matrix[:3, :3].T + matrix[:3, 3]
    return moved


def camera_in_world(camera: Camera, scene: NormalsScene) -> Camera:
    """Return a camera of the frame of the scene's sphere in the world, in double precision, on the host."""
    return replace(camera, world_from_camera=pose_in_world(camera.world_from_camera.double().cpu(), scene))


def mesh_in_world(mesh: Triangles, scene: NormalsScene) -> Triangles:
    """Return a mesh of the frame of the scene's sphere in the world."""
    matrix = scene.maps.world_from_unit.double().cpu().numpy()
    return replace(mesh, vertices=mesh.vertices @ matrix[:3, :3].T + matrix[:3, 3])
