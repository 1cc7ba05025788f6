"""A trained surface as registration looks at it: a mesh to find what is seen, the field to say where it is exactly."""

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
"""Of the scene's sphere: nothing in front of it is seen."""
_NEWTON = 3  # steps from the mesh to the field's surface
_SHORT = 1e-9  # a gradient this short has no direction


@dataclass(frozen=True, kw_only=True, eq=False)
class RasterizedMesh:
    """What a camera sees of the mesh.

    Attributes:
        mask: where it is seen.
        depth: along the axis, units of the scene's sphere; 0 where nothing is.
        normals: unit normals in the frame of the scene's sphere, of the field at the vertices, between them
            interpolated; 0 where nothing is.
    """

    mask: Bool[Tensor, "height width"]
    depth: Float64[Tensor, "height width"]
    normals: Float64[Tensor, "height width 3"]


class Shape:
    """The surface of a model, on the host, in the frame of the scene's sphere.

    Args:
        model: what was trained.
        cells: of the mesh, along a side of the field's box.

    Attributes:
        vertices: of the mesh.
        faces: of the mesh.
        centre: middle of the box around it.
        radius: of the sphere about `centre` that holds it.

    Raises:
        InputError: the field is nowhere 0: there is no surface.
        MeshError: the field is not finite somewhere.
    """

    def __init__(self, model: NormalsModel, cells: int) -> None:
        self._model = model
        self._chunks = Chunks(model.grid.config.chunk)
        surface = find_surface(model, cells, chunks=self._chunks)
        if surface.empty:
            raise InputError(
                "the trained field is nowhere 0, so there is no surface that a view could be registered to: choose a "
                "checkpoint that has one (--checkpoint), or train on"
            )
        self.vertices = torch.from_numpy(surface.mesh.vertices)
        self.faces = torch.from_numpy(surface.mesh.faces)
        low = self.vertices.amin(0)
        high = self.vertices.amax(0)
        self.centre = (low + high) / 2
        self.radius = float((self.vertices - self.centre).norm(dim=1).max())
        self._normals = unit(self.values_and_gradients(self.vertices)[1])

    def values(self, points: Float64[Tensor, "n 3"]) -> Float64[Tensor, " n"]:
        """Return the field at points; those around its box are held to its sides."""
        return evaluate_in_chunks(self._model.sdf, self._placed(points), self._chunks).double().cpu()

    def values_and_gradients(
        self, points: Float64[Tensor, "n 3"]
    ) -> tuple[Float64[Tensor, " n"], Float64[Tensor, "n 3"]]:
        """Return the field and its gradients at points."""
        values, slopes = gradients_in_chunks(self._model.sdf.with_gradient, self._placed(points), self._chunks)
        return values.detach().double().cpu(), slopes.detach().double().cpu()

    def rasterize(self, camera: Camera) -> RasterizedMesh:
        """Look at the mesh."""
        names = ("fx", "fy", "cx", "cy", "width", "height")
        pose = camera.camera_from_world.double()
        view = View(camera_from_world=pose, near=NEAR, **{name: getattr(camera, name) for name in names})
        hits = cast_triangles(self.vertices, self.faces, view)
        mask = hits.faces >= 0
        normals = torch.zeros(*mask.shape, 3, dtype=torch.float64)
        corners = self._normals[self.faces[hits.faces[mask]]]
        normals[mask] = unit((hits.barycentrics[mask].double()[..., None] * corners).sum(1))
        return RasterizedMesh(mask=mask, depth=hits.depth.double(), normals=normals)

    def intersect(
        self, origins: Float64[Tensor, "n 3"], along: Float64[Tensor, "n 3"], start: Float64[Tensor, " n"]
    ) -> tuple[Float64[Tensor, "n 3"], Float64[Tensor, "n 3"]]:
        """Go along rays from the mesh to the surface of the field (Newton); return points and unit normals there.

        Args:
            origins: of the rays.
            along: unit directions.
            start: distance at which the mesh was met.
        """
        distance = start.clone()
        for _ in range(_NEWTON):
            values, slopes = self.values_and_gradients(origins + distance[:, None] * along)
            falling = (slopes * along).sum(1)
            # grazing rays would run away: no step is longer than the field says the surface can be off, doubled
            safe = torch.where(falling.abs() < 0.25, 0.25 * torch.where(falling > 0, 1.0, -1.0).to(falling), falling)
            distance = distance - (values / safe).clamp(-0.05, 0.05)
        points = origins + distance[:, None] * along
        return points, unit(self.values_and_gradients(points)[1])

    def _placed(self, points: Float64[Tensor, "n 3"]) -> Tensor:
        return points.clamp(-1, 1).float().to(self._model.grid.occupied.device)


def unit(vectors: Float64[Tensor, "*n 3"]) -> Float64[Tensor, "*n 3"]:
    """Bring vectors to length 1; what has no direction stays short."""
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(_SHORT)


def filled(mask: Bool[Tensor, "height width"]) -> Bool[Tensor, "height width"]:
    """Return a mask without holes: what it encloses counts as unknown, be it a tunnel or a damage."""
    return torch.from_numpy(ndimage.binary_fill_holes(mask.cpu().numpy()))


def moments(mask: Bool[Tensor, "height width"], camera: Camera) -> tuple[Float64[Tensor, "3"], float]:
    """Return the mean direction, in camera axes, and the solid angle of the pixels of a mask.

    Both depend on where the camera stands only, not on where it looks.
    """
    directions = camera.to("cpu", torch.float64).directions()[mask]
    length = directions.norm(dim=-1, keepdim=True)
    # Solid angle of a pixel: the cube of the cosine to the axis, over fx fy.
    share = length**-3
    return unit((share * directions / length).sum(0)), float(share.sum()) / (camera.fx * camera.fy)


def pixel_numbers(mask: Bool[Tensor, "height width"], most: int) -> Int64[Tensor, " n"]:
    """Return the numbers of a mask's pixels, evenly thinned to a count."""
    numbers = torch.nonzero(mask.reshape(-1))[:, 0]
    every = -(-len(numbers) // most)
    return numbers[:: max(every, 1)]
