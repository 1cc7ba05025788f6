"""The trained surface as used by registration: a mesh to find visible points, and the field to locate them exactly."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from scipy import ndimage
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.surface import find_surface
from fieldwatch.recon.render import Chunks, View, cast_triangles, evaluate_in_chunks, gradients_in_chunks

NEAR = 1e-3
"""Near plane in units of the scene's sphere."""
_NEWTON = 3  # Newton steps from the mesh to the surface of the field
_SHORT = 1e-9  # length below which a gradient has no direction


@dataclass(frozen=True, kw_only=True, eq=False)
class RasterizedMesh:
    """The mesh rasterized by a camera.

    Attributes:
        mask: pixels that show the mesh.
        depth: depth along the optical axis in units of the scene's sphere; 0 outside the mask.
        normals: unit normals in the frame of the scene's sphere, interpolated from the field's gradients at the
            vertices; 0 outside the mask.
    """

    mask: Bool[Tensor, "height width"]
    depth: Float64[Tensor, "height width"]
    normals: Float64[Tensor, "height width 3"]


class Shape:
    """Surface of a model, on the host, in the frame of the scene's sphere.

    Args:
        model: trained model.
        cells: mesh cells along a side of the field's box.

    Attributes:
        vertices: vertices of the mesh.
        faces: faces of the mesh.
        center: center of its bounding box.
        radius: radius of its bounding sphere around `center`.

    Raises:
        InputError: the field has no zero crossing, so there is no surface.
        MeshError: the field is not finite somewhere.
    """

    def __init__(self, model: NormalsModel, cells: int) -> None:
        self._model = model
        self._chunks = Chunks(model.grid.config.chunk)
        # A coarse mesh suffices, because `intersect` moves its points onto the field's surface.
        surface = find_surface(model, cells, chunks=self._chunks)
        if surface.empty:
            raise InputError(
                "the trained field has no zero crossing, so there is no surface to register a view to: choose another "
                "checkpoint (--checkpoint), or continue training"
            )
        self.vertices = torch.from_numpy(surface.mesh.vertices)
        self.faces = torch.from_numpy(surface.mesh.faces)
        low = self.vertices.amin(0)
        high = self.vertices.amax(0)
        self.center = (low + high) / 2
        self.radius = float((self.vertices - self.center).norm(dim=1).max())
        self._normals = unit(self.values_and_gradients(self.vertices)[1])

    def values(self, points: Float64[Tensor, "n 3"]) -> Float64[Tensor, " n"]:
        """Return the field at points; points outside its box are clamped to it."""
        return evaluate_in_chunks(self._model.sdf, self._placed(points), self._chunks).double().cpu()

    def values_and_gradients(
        self, points: Float64[Tensor, "n 3"]
    ) -> tuple[Float64[Tensor, " n"], Float64[Tensor, "n 3"]]:
        """Return the field and its gradients at points."""
        values, slopes = gradients_in_chunks(self._model.sdf.with_gradient, self._placed(points), self._chunks)
        return values.detach().double().cpu(), slopes.detach().double().cpu()

    def rasterize(self, camera: Camera) -> RasterizedMesh:
        """Rasterize the mesh."""
        names = ("fx", "fy", "cx", "cy", "width", "height")
        pose = camera.camera_from_world.double()
        view = View(camera_from_world=pose, near=NEAR, **{name: getattr(camera, name) for name in names})
        hits = cast_triangles(self.vertices, self.faces, view)
        # Rays that miss the mesh have face -1.
        mask = hits.faces >= 0
        normals = torch.zeros(*mask.shape, 3, dtype=torch.float64)
        corners = self._normals[self.faces[hits.faces[mask]]]
        normals[mask] = unit((hits.barycentrics[mask].double()[..., None] * corners).sum(1))
        return RasterizedMesh(mask=mask, depth=hits.depth.double(), normals=normals)

    def intersect(
        self, origins: Float64[Tensor, "n 3"], along: Float64[Tensor, "n 3"], start: Float64[Tensor, " n"]
    ) -> tuple[Float64[Tensor, "n 3"], Float64[Tensor, "n 3"]]:
        """Move along rays from the mesh to the surface of the field (Newton); return points and unit normals there.

        Args:
            origins: origins of the rays.
            along: unit directions of the rays.
            start: distances at which the rays hit the mesh.
        """
        distance = start.clone()
        for _ in range(_NEWTON):
            values, slopes = self.values_and_gradients(origins + distance[:, None] * along)
            falling = (slopes * along).sum(1)
            # Grazing rays would diverge, so slope and step length are bounded.
            safe = torch.where(falling.abs() < 0.25, 0.25 * torch.where(falling > 0, 1.0, -1.0).to(falling), falling)
            distance = distance - (values / safe).clamp(-0.05, 0.05)
        points = origins + distance[:, None] * along
        return points, unit(self.values_and_gradients(points)[1])

    def _placed(self, points: Float64[Tensor, "n 3"]) -> Tensor:
        # The field is undefined outside its box, where outline rays may pass.
        return points.clamp(-1, 1).float().to(self._model.grid.occupied.device)


def unit(vectors: Float64[Tensor, "*n 3"]) -> Float64[Tensor, "*n 3"]:
    """Normalize vectors to length 1; zero vectors stay zero."""
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(_SHORT)


def filled(mask: Bool[Tensor, "height width"]) -> Bool[Tensor, "height width"]:
    """Return a mask with its holes filled; pixels in holes are unknown, because a hole may be a tunnel or a defect."""
    return torch.from_numpy(ndimage.binary_fill_holes(mask.cpu().numpy()))


def moments(mask: Bool[Tensor, "height width"], camera: Camera) -> tuple[Float64[Tensor, "3"], float]:
    """Return the mean direction, in camera axes, and the solid angle of a mask's pixels.

    Both depend on the position of the camera only, not on its orientation (the direction up to the change of axes).
    """
    directions = camera.to("cpu", torch.float64).directions()[mask]
    length = directions.norm(dim=-1, keepdim=True)
    # Solid angle of a pixel: the cube of the cosine to the optical axis, divided by fx fy.
    share = length**-3
    return unit((share * directions / length).sum(0)), float(share.sum()) / (camera.fx * camera.fy)


def pixel_numbers(mask: Bool[Tensor, "height width"], most: int) -> Int64[Tensor, " n"]:
    """Return the indices of a mask's pixels, evenly thinned to at most ``most``."""
    numbers = torch.nonzero(mask.reshape(-1))[:, 0]
    # Rounded up, so that at most `most` remain.
    every = -(-len(numbers) // most)
    return numbers[:: max(every, 1)]
