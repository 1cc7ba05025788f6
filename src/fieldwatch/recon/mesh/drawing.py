"""Pictures of meshes: shaded with their texture or colours, as clay, or by their normals; from around them."""

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

Shading = Literal["colour", "normals", "clay"]
Colour = tuple[int, int, int]

BACKGROUND: Colour = (44, 48, 54)
_CLAY = (205.0, 200.0, 192.0)
_INSIDE = (150.0, 96.0, 88.0)  # clay seen from behind: a hole, or a face that is wound the wrong way
_AMBIENT = 0.28  # share of the light that does not come from the camera
_SHARP = 0.75  # cosine: corner normals farther from their face's normal are not smoothed, so that edges stay edges
_NEAR = 1e-4  # of the distance to the farthest vertex
_FIELD = 36.0  # degrees that a turntable camera sees
_ROOM = 1.04  # around the sphere that holds the mesh


def draw_mesh(
    mesh: Triangles,
    camera: Camera,
    *,
    shading: Shading = "colour",
    background: Colour = BACKGROUND,
    samples: int = 2,
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw a mesh as a camera sees it.

    Args:
        mesh: what to draw.
        camera: from where; the picture has its size.
        shading: `colour` shows the texture (looked up bilinearly), or else the vertices' colours, unlit because they
            show light already, or else clay; `clay` is lit from the camera, and reddish where a face is seen from
            behind; `normals` are those towards the camera, red to the right, green up, blue towards it.
        background: red, green, blue.
        samples: rays per pixel, each way; their mean is the pixel.

    Raises:
        MeshError: the mesh has no faces.
        ValueError: `samples` is below 1.
    """
    if not len(mesh.faces):
        raise MeshError("a mesh without faces cannot be drawn: what made it found no surface; look there first")
    return MeshPainter(mesh).draw(camera, shading=shading, background=background, samples=samples)


class MeshPainter:
    """Draws one mesh from many cameras; what does not depend on the camera is calculated once."""

    def __init__(self, mesh: Triangles) -> None:
        self.mesh = mesh
        self.coloured = mesh.texture is not None or mesh.colours is not None
        self._vertices = torch.from_numpy(mesh.vertices)
        self._faces = torch.from_numpy(mesh.faces)
        self._flat = torch.from_numpy(mesh.normals).float()
        self._smooth = torch.from_numpy(_corner_normals(mesh)).float()
        self._colours = None if mesh.colours is None else torch.from_numpy(mesh.colours).float()
        self._uvs = None if mesh.uvs is None else torch.from_numpy(mesh.uvs).float()
        self._texture = None if mesh.texture is None else torch.from_numpy(mesh.texture)

    def draw(
        self,
        camera: Camera,
        *,
        shading: Shading = "colour",
        background: Colour = BACKGROUND,
        samples: int = 2,
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Draw it; see :func:`draw_mesh`."""
        if samples < 1:
            raise InputError(f"samples is {samples}: at least one ray each way is needed for a pixel")
        view = self._view(camera.resized(camera.width * samples, camera.height * samples))
        hits = cast_triangles(self._vertices, self._faces, view)
        at = torch.nonzero(hits.faces.view(-1) >= 0)[:, 0]
        face = hits.faces.view(-1)[at]
        weights = hits.barycentrics.view(-1, 3)[at]
        planes = torch.tensor(background, dtype=torch.float32)[:, None].repeat(1, view.height * view.width)
        if len(at):
            planes[:, at] = self._shaded(face, weights, at, view, shading).T
        picture = avg_pool2d(planes.view(3, view.height, view.width), samples)
        return picture.round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()

    def _view(self, camera: Camera) -> View:
        far = float((self._vertices - camera.position.double()).norm(dim=-1).max())
        lens = {"fx": camera.fx, "fy": camera.fy, "cx": camera.cx, "cy": camera.cy}
        pose = camera.camera_from_world.double()
        return View(camera_from_world=pose, width=camera.width, height=camera.height, near=_NEAR * far or 1.0, **lens)

    def _shaded(
        self,
        face: Int64[Tensor, "hits"],
        weights: Float32[Tensor, "hits 3"],
        at: Int64[Tensor, "hits"],
        view: View,
        shading: Shading,
    ) -> Float32[Tensor, "hits 3"]:
        """Colours, 0 .. 255, of points on faces that are seen at some pixels."""
        if shading == "colour" and self._texture is not None and self._uvs is not None:
            return _looked_up(self._texture, _mixed(weights, self._uvs[face]))
        if shading == "colour" and self._colours is not None:
            return _mixed(weights, self._colours[self._faces[face]])
        turn = view.rotation.float()
        normal = normalize(_mixed(weights, self._smooth[face]), dim=-1) @ turn.T
        towards = -_directions(at, view)
        behind = ((self._flat[face] @ turn.T) * towards).sum(-1) < 0
        normal = torch.where(behind[:, None], -normal, normal)
        if shading == "normals":
            return (normal * torch.tensor([1.0, -1, -1]) + 1) * 127.5
        light = _AMBIENT + (1 - _AMBIENT) * (normal * towards).sum(-1).clamp_min(0)
        return torch.where(behind[:, None], torch.tensor(_INSIDE), torch.tensor(_CLAY)) * light[:, None]


def _corner_normals(mesh: Triangles) -> Float64[np.ndarray, "m 3 3"]:
    """Normals at the corners of faces: the vertex's, where the surface is smooth there, else the face's own."""
    whole = mesh.welded()
    smooth = _vertex_normals(whole)[whole.faces]
    flat = mesh.normals[:, None]
    return np.where(((smooth * flat).sum(-1) > _SHARP)[..., None], smooth, flat)


def _vertex_normals(mesh: Triangles) -> Float64[np.ndarray, "n 3"]:
    """Means of the normals around, by the angles of the faces there, so that it does not matter how a flat side is cut.

    Thürmer & Wüthrich, Computing vertex normals from polygonal facets, 1998. Zero where nothing has area.
    """
    total = np.zeros_like(mesh.vertices)
    ahead, back = (np.roll(mesh.corners, way, axis=1) - mesh.corners for way in (-1, 1))
    angles = np.arctan2(2 * mesh.areas[:, None], (ahead * back).sum(-1))
    for axis in range(3):
        weighted = (mesh.normals[:, None, axis] * angles).reshape(-1)
        total[:, axis] = np.bincount(mesh.faces.reshape(-1), weighted, len(total))
    length = np.linalg.norm(total, axis=1, keepdims=True)
    return np.divide(total, length, out=np.zeros_like(total), where=length > 0)


def _mixed(weights: Float32[Tensor, "hits 3"], corners: Float32[Tensor, "hits 3 k"]) -> Float32[Tensor, "hits k"]:
    return torch.einsum("hc,hck->hk", weights, corners)


def _directions(at: Int64[Tensor, "hits"], view: View) -> Float32[Tensor, "hits 3"]:
    """Unit directions, in camera axes, of the rays through pixels that are counted row by row."""
    x = (at % view.width + 0.5 - view.cx) / view.fx
    y = (at // view.width + 0.5 - view.cy) / view.fy
    return normalize(torch.stack([x, y, torch.ones_like(x)], -1).float(), dim=-1)


def _looked_up(texture: UInt8[Tensor, "height width 3"], uvs: Float32[Tensor, "hits 2"]) -> Float32[Tensor, "hits 3"]:
    """Bilinear between the four nearest texels' centres; beyond the picture, its border."""
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
    """Return square cameras evenly on a circle around a mesh, which see all of it.

    Args:
        mesh: with faces.
        frames: how many cameras.
        size: of their pictures, pixels each way.
        up: the scene's upward direction.
        elevation: degrees above the horizon from which they look, between -90 and 90.

    Raises:
        MeshError: the mesh has no faces.
        InputError: `up` has no direction, or a number is out of its bounds.
    """
    if not len(mesh.faces):
        raise MeshError("cameras around a mesh without faces were asked for: what made it found no surface")
    if frames < 1 or size < 1 or not abs(elevation) < 90:
        raise InputError(
            f"{frames} cameras of {size} pixels at an elevation of {elevation} degrees: wanted are at least 1, at "
            "least 1, and between -90 and 90"
        )
    middle, radius = _around(mesh)
    first, second, upwards = _axes(up)
    distance = _ROOM * radius / math.sin(math.radians(_FIELD / 2))
    focal = size / 2 / math.tan(math.radians(_FIELD / 2))
    lens = {"fx": focal, "fy": focal, "cx": size / 2, "cy": size / 2, "width": size, "height": size}
    lift = math.radians(elevation)
    made: list[Camera] = []
    for number in range(frames):
        turn = 2 * math.pi * number / frames
        level = math.cos(turn) * first + math.sin(turn) * second
        place = middle + distance * (math.cos(lift) * level + math.sin(lift) * upwards)
        pose = look_at(place.tolist(), middle.tolist(), upwards.tolist())
        made.append(Camera(name=f"turntable_{number:04d}", world_from_camera=pose, **lens))
    return tuple(made)


def mesh_still(
    mesh: Triangles,
    *,
    size: int = 512,
    views: int = 4,
    up: Sequence[float] = (0.0, 0.0, 1.0),
    background: Colour = BACKGROUND,
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw a mesh from several sides, next to each other: its colours above, as clay below.

    A mesh without colours is shown as clay above and by its normals below.

    Args:
        mesh: with faces.
        size: of each view, pixels each way.
        views: how many sides.
        up: the scene's upward direction.
        background: red, green, blue.

    Raises:
        MeshError: the mesh has no faces.
        ValueError: `up` has no direction, or there is no view.
    """
    cameras = turntable_cameras(mesh, views, size, up=up)
    painter = MeshPainter(mesh)
    shadings: tuple[Shading, ...] = ("colour", "clay") if painter.coloured else ("clay", "normals")
    rows = [
        np.concatenate([painter.draw(camera, shading=shading, background=background) for camera in cameras], axis=1)
        for shading in shadings
    ]
    return np.concatenate(rows)


def _around(mesh: Triangles) -> tuple[Float64[np.ndarray, "3"], float]:
    """Middle of the box around the faces, and the distance of the farthest corner from there."""
    places = mesh.vertices[mesh.faces.reshape(-1)]
    middle = (places.min(0) + places.max(0)) / 2
    radius = float(np.linalg.norm(places - middle, axis=1).max())
    return middle, radius or 1.0


def _axes(up: Sequence[float]) -> Float[np.ndarray, "3 3"]:
    """Two level directions and the upward one, unit vectors, right-handed; the first is as near x as it can be."""
    upwards = np.array(up, np.float64)
    length = float(np.linalg.norm(upwards))
    if upwards.shape != (3,) or not 0 < length < math.inf:
        raise InputError(f"up is {tuple(up)}: wanted are three finite numbers that are not all 0, as in 0 0 1")
    upwards = upwards / length
    start = np.eye(3)[int(np.abs(upwards).argmin())]
    first = start - (start @ upwards) * upwards
    first = first / np.linalg.norm(first)
    return np.stack([first, np.cross(upwards, first), upwards])
