"""Rendering meshes: textured or with vertex colors, as clay, or by normals; turntable cameras and stills."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64, UInt8
from torch import Tensor
from torch.nn.functional import avg_pool2d, normalize

from fieldwatch import InputError
from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles
from fieldwatch.recon.render import View, cast_triangles

Shading = Literal["color", "normals", "clay"]
Color = tuple[int, int, int]

BACKGROUND: Color = (44, 48, 54)
_CLAY_COLOR = (205.0, 200.0, 192.0)
_BACK_COLOR = (150.0, 96.0, 88.0)  # back faces in clay: visible through holes or wound wrongly
_AMBIENT = 0.28  # fraction of the light that does not come from the camera
_SMOOTH_COSINE = 0.75
"""Smallest cosine between the vertex and face normals for smooth shading, so that sharp edges remain sharp."""
_NEAR_SHARE = 1e-4  # near plane, as a fraction of the distance to the farthest vertex
_FIELD_OF_VIEW = 36.0  # degrees, of turntable cameras
_MARGIN = 1.04  # factor on the bounding sphere


def render_mesh(
    mesh: Triangles,
    camera: Camera,
    *,
    shading: Shading = "color",
    background: Color = BACKGROUND,
    samples: int = 2,
) -> UInt8[np.ndarray, "height width 3"]:
    """Render a mesh from a camera.

    Args:
        mesh: mesh to render.
        camera: camera; the image has its size.
        shading: `color` shows the texture (sampled bilinearly), or else the vertex colors, both unlit because they
            already contain the lighting, or else clay. `clay` is lit from the camera; back faces are reddish.
            `normals` shows camera-space normals: red to the right, green up, blue toward the camera.
        background: RGB color of the background.
        samples: rays per pixel along each image axis, averaged per pixel.

    Raises:
        MeshError: the mesh has no faces.
        ValueError: `samples` is below 1.
    """
    if not len(mesh.faces):
        raise MeshError("a mesh without faces cannot be rendered: no surface was found; check the step that made it")
    return MeshRenderer(mesh).render(camera, shading=shading, background=background, samples=samples)


class MeshRenderer:
    """Renders one mesh from many cameras; everything that does not depend on the camera is computed once."""

    def __init__(self, mesh: Triangles) -> None:
        self.mesh = mesh
        self.colored = mesh.texture is not None or mesh.colors is not None
        self._vertices = torch.from_numpy(mesh.vertices)
        self._faces = torch.from_numpy(mesh.faces)
        self._flat = torch.from_numpy(mesh.normals).float()
        self._smooth = torch.from_numpy(_corner_normals(mesh)).float()
        self._colors = None if mesh.colors is None else torch.from_numpy(mesh.colors).float()
        self._uvs = None if mesh.uvs is None else torch.from_numpy(mesh.uvs).float()
        self._texture = None if mesh.texture is None else torch.from_numpy(mesh.texture)

    def render(
        self,
        camera: Camera,
        *,
        shading: Shading = "color",
        background: Color = BACKGROUND,
        samples: int = 2,
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Render the mesh; see :func:`render_mesh`."""
        return self.render_shadings(camera, (shading,), background=background, samples=samples)[0]

    def render_shadings(
        self,
        camera: Camera,
        shadings: Sequence[Shading],
        *,
        background: Color = BACKGROUND,
        samples: int = 2,
    ) -> list[UInt8[np.ndarray, "height width 3"]]:
        """Render the mesh once per shading, all from the same rays; see :func:`render_mesh`."""
        if samples < 1:
            raise InputError(f"samples must be at least 1 ray along each axis of a pixel, got {samples}")
        # Supersampling renders a larger image and averages it.
        view = self._view(camera.resized(camera.width * samples, camera.height * samples))
        hits = cast_triangles(self._vertices, self._faces, view)
        hit_pixels = torch.nonzero(hits.faces.view(-1) >= 0)[:, 0]
        face = hits.faces.view(-1)[hit_pixels]
        weights = hits.barycentrics.view(-1, 3)[hit_pixels]
        pictures = []
        for shading in shadings:
            image = torch.tensor(background, dtype=torch.float32)[:, None].repeat(1, view.height * view.width)
            if len(hit_pixels):
                image[:, hit_pixels] = self._shaded(face, weights, hit_pixels, view, shading).T
            # Supersampling: the mean of all rays of a pixel.
            picture = avg_pool2d(image.view(3, view.height, view.width), samples)
            pictures.append(picture.round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy())
        return pictures

    def _view(self, camera: Camera) -> View:
        far = float((self._vertices - camera.position.double()).norm(dim=-1).max())
        lens = {"fx": camera.fx, "fy": camera.fy, "cx": camera.cx, "cy": camera.cy}
        pose = camera.camera_from_world.double()
        return View(
            camera_from_world=pose, width=camera.width, height=camera.height, near=_NEAR_SHARE * far or 1.0, **lens
        )

    def _shaded(
        self,
        face: Int64[Tensor, "hits"],
        weights: Float32[Tensor, "hits 3"],
        hit_pixels: Int64[Tensor, "hits"],
        view: View,
        shading: Shading,
    ) -> Float32[Tensor, "hits 3"]:
        """Shade surface points that are visible at given pixels; return colors from 0 to 255."""
        if shading == "color" and self._texture is not None and self._uvs is not None:
            return _sample_texture(self._texture, _interpolate(weights, self._uvs[face]))
        if shading == "color" and self._colors is not None:
            return _interpolate(weights, self._colors[self._faces[face]])
        rotation = view.rotation.float()
        normal = normalize(_interpolate(weights, self._smooth[face]), dim=-1) @ rotation.T
        # Unit directions from the surface toward the camera.
        towards = -_directions(hit_pixels, view)
        is_back_face = ((self._flat[face] @ rotation.T) * towards).sum(-1) < 0
        normal = torch.where(is_back_face[:, None], -normal, normal)
        if shading == "normals":
            # y and z of camera axes point down and away: flip both, then map [-1, 1] to [0, 255].
            return (normal * torch.tensor([1.0, -1, -1]) + 1) * 127.5
        light = _AMBIENT + (1 - _AMBIENT) * (normal * towards).sum(-1).clamp_min(0)
        return torch.where(is_back_face[:, None], torch.tensor(_BACK_COLOR), torch.tensor(_CLAY_COLOR)) * light[:, None]


def _corner_normals(mesh: Triangles) -> Float64[np.ndarray, "m 3 3"]:
    """Return corner normals: the vertex normal where the surface is smooth, else the face normal."""
    welded = mesh.welded()
    smooth = _vertex_normals(welded)[welded.faces]
    flat = mesh.normals[:, None]
    return np.where(((smooth * flat).sum(-1) > _SMOOTH_COSINE)[..., None], smooth, flat)


def _vertex_normals(mesh: Triangles) -> Float64[np.ndarray, "n 3"]:
    """Return vertex normals weighted by face angles, which do not depend on the triangulation of flat regions.

    Source: Thürmer & Wüthrich, Computing vertex normals from polygonal facets, 1998. Zero if no face has area.
    """
    total = np.zeros_like(mesh.vertices)
    ahead, back = (np.roll(mesh.corners, way, axis=1) - mesh.corners for way in (-1, 1))
    # |cross| is twice the area: this is atan2(sin, cos) of the angle at each corner.
    angles = np.arctan2(2 * mesh.areas[:, None], (ahead * back).sum(-1))
    for axis in range(3):
        weighted = (mesh.normals[:, None, axis] * angles).reshape(-1)
        total[:, axis] = np.bincount(mesh.faces.reshape(-1), weighted, len(total))
    length = np.linalg.norm(total, axis=1, keepdims=True)
    return np.divide(total, length, out=np.zeros_like(total), where=length > 0)


def _interpolate(weights: Float32[Tensor, "hits 3"], corners: Float32[Tensor, "hits 3 k"]) -> Float32[Tensor, "hits k"]:
    return torch.einsum("hc,hck->hk", weights, corners)


def _directions(hit_pixels: Int64[Tensor, "hits"], view: View) -> Float32[Tensor, "hits 3"]:
    """Return unit ray directions in camera axes, for row-major pixel indices."""
    x = (hit_pixels % view.width + 0.5 - view.cx) / view.fx
    y = (hit_pixels // view.width + 0.5 - view.cy) / view.fy
    return normalize(torch.stack([x, y, torch.ones_like(x)], -1).float(), dim=-1)


def _sample_texture(
    texture: UInt8[Tensor, "height width 3"], uvs: Float32[Tensor, "hits 2"]
) -> Float32[Tensor, "hits 3"]:
    """Interpolate bilinearly between texel centers; coordinates outside the texture are clamped to its border."""
    height, width = texture.shape[:2]
    x = (uvs[:, 0] * width - 0.5).clamp(0, width - 1)
    y = ((1 - uvs[:, 1]) * height - 0.5).clamp(0, height - 1)
    left = x.long()
    top = y.long()
    right = (left + 1).clamp(max=width - 1)
    low = (top + 1).clamp(max=height - 1)
    across = (x - left)[:, None]
    down = (y - top)[:, None]
    flat = texture.reshape(-1, 3)
    upper = torch.lerp(flat[top * width + left].float(), flat[top * width + right].float(), across)
    lower = torch.lerp(flat[low * width + left].float(), flat[low * width + right].float(), across)
    return torch.lerp(upper, lower, down)


def turntable_cameras(
    mesh: Triangles, frames: int, size: int, *, up: Sequence[float] = (0.0, 0.0, 1.0), elevation: float = 15.0
) -> tuple[Camera, ...]:
    """Return square cameras evenly spaced on a circle around a mesh; each sees the whole mesh.

    Args:
        mesh: mesh with faces.
        frames: number of cameras.
        size: side of the images in pixels.
        up: upward direction of the scene.
        elevation: angle of the cameras above the horizon in degrees, between -90 and 90.

    Raises:
        MeshError: the mesh has no faces.
        InputError: `up` is zero or not finite, or a number is out of range.
    """
    if not len(mesh.faces):
        raise MeshError("a mesh without faces has no turntable cameras: check the step that made it")
    if frames < 1 or size < 1 or not abs(elevation) < 90:
        raise InputError(
            f"frames and size must be at least 1, elevation between -90 and 90 degrees, got {frames}, {size} and "
            f"{elevation}"
        )
    middle, radius = _around(mesh)
    first, second, upwards = _axes(up)
    # At this distance the sphere around the mesh touches the view cone from inside.
    distance = _MARGIN * radius / math.sin(math.radians(_FIELD_OF_VIEW / 2))
    focal = size / 2 / math.tan(math.radians(_FIELD_OF_VIEW / 2))
    lens = {"fx": focal, "fy": focal, "cx": size / 2, "cy": size / 2, "width": size, "height": size}
    elevation_angle = math.radians(elevation)
    cameras: list[Camera] = []
    for number in range(frames):
        azimuth = 2 * math.pi * number / frames
        level = math.cos(azimuth) * first + math.sin(azimuth) * second
        position = middle + distance * (math.cos(elevation_angle) * level + math.sin(elevation_angle) * upwards)
        # Every camera looks at the center of the bounding box.
        pose = look_at(position.tolist(), middle.tolist(), upwards.tolist())
        cameras.append(Camera(name=f"turntable_{number:04d}", world_from_camera=pose, **lens))
    return tuple(cameras)


def mesh_still(
    mesh: Triangles,
    *,
    size: int = 512,
    views: int = 4,
    up: Sequence[float] = (0.0, 0.0, 1.0),
    background: Color = BACKGROUND,
) -> UInt8[np.ndarray, "height width 3"]:
    """Render a mesh from several sides in one row: with its colors above, as clay below.

    A mesh without colors is rendered as clay above and by its normals below.

    Args:
        mesh: mesh with faces.
        size: side of each view in pixels.
        views: number of views.
        up: upward direction of the scene.
        background: RGB color of the background.

    Raises:
        MeshError: the mesh has no faces.
        ValueError: `up` is zero or not finite, or `views` is below 1.
    """
    cameras = turntable_cameras(mesh, views, size, up=up)
    renderer = MeshRenderer(mesh)
    shadings: tuple[Shading, ...] = ("color", "clay") if renderer.colored else ("clay", "normals")
    columns = [np.concatenate(renderer.render_shadings(camera, shadings, background=background)) for camera in cameras]
    return np.concatenate(columns, axis=1)


def _around(mesh: Triangles) -> tuple[Float64[np.ndarray, "3"], float]:
    """Return the center of the bounding box of the faces and the distance of the farthest vertex from it."""
    # Only vertices with faces: isolated ones are not visible.
    corners = mesh.vertices[mesh.faces.reshape(-1)]
    middle = (corners.min(0) + corners.max(0)) / 2
    radius = float(np.linalg.norm(corners - middle, axis=1).max())
    return middle, radius or 1.0


def _axes(up: Sequence[float]) -> Float[np.ndarray, "3 3"]:
    """Return two horizontal unit vectors and the upward one, as a right-handed frame.

    The first is derived from the coordinate axis that is least parallel to `up`.
    """
    upwards = np.array(up, np.float64)
    length = float(np.linalg.norm(upwards))
    if upwards.shape != (3,) or not 0 < length < math.inf:
        raise InputError(f"up must be three finite numbers that are not all 0, such as 0 0 1, got {tuple(up)}")
    upwards = upwards / length
    start = np.eye(3)[int(np.abs(upwards).argmin())]
    first = start - (start @ upwards) * upwards
    first = first / np.linalg.norm(first)
    return np.stack([first, np.cross(upwards, first), upwards])
