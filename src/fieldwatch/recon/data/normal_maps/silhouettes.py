"""The pixel center of intrinsics, decided by the coherence of silhouettes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.model import NormalView
from fieldwatch.recon.geometry import Camera

SHIFTS = (-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75)
"""Shifts of the principal points at which the coherence is measured, in pixels, along both axes."""
RAYS = 60
"""Boundary rays of each view."""
_MOST_VIEWS = 14
_COARSE = 48  # samples of a ray through the object
_FINE = 9  # samples between the neighbors of the best one
_FEWEST_VIEWS = 4
_LIMIT = 2.0  # pixels: rays that miss by more see a part that another mask lacks, and tell nothing about half a pixel


@dataclass(frozen=True, kw_only=True)
class Coherence:
    """How far boundary rays miss the silhouettes of the other views, by the shift of all principal points.

    Attributes:
        shifts: shifts in pixels.
        missed: mean distance in pixels by which rays through the boundary of a mask miss the silhouettes of the others.
        best: shift with the smallest distance, by a parabola through the three lowest values.
    """

    shifts: tuple[float, ...]
    missed: tuple[float, ...]
    best: float

    def at(self, shift: float) -> float:
        """Return the distance at a shift."""
        return float(np.interp(shift, self.shifts, self.missed))


def silhouette_coherence(views: Sequence[NormalView], *, radius: float = 1.0) -> Coherence | None:
    """Measure how coherent silhouettes are for several shifts of the principal points; None if they do not tell.

    The ray through the boundary of a silhouette touches the object, so it has a point that lies inside all other
    silhouettes or on their boundary. The distance by which the best point of the ray misses the silhouettes, averaged
    over many rays, is smallest for the right intrinsics (Hernandez, Schmitt and Cipolla, Silhouette coherence for
    camera calibration under circular motion, PAMI 2007).

    Args:
        views: views with masks and cameras; the object lies within `radius` of the origin.
        radius: bound of the object.
    """
    chosen = [view for view in views if bool(view.mask.any()) and not bool(view.mask.all())]
    chosen = chosen[:: -(-len(chosen) // _MOST_VIEWS)] if chosen else []
    if len(chosen) < _FEWEST_VIEWS:
        return None
    borders = [_border(view.mask) for view in chosen]
    if min(len(border) for border in borders) < 8:
        return None
    silhouettes = _Silhouettes.of(chosen)
    missed = [
        _missed([_shifted(view.camera, shift) for view in chosen], silhouettes, borders, radius) for shift in SHIFTS
    ]
    values = np.asarray(missed)
    # Shifts far from the best one have a linear cost; the parabola is fitted where the cost is low.
    lowest = int(np.clip(values.argmin(), 1, len(values) - 2))
    curve = np.polyfit(SHIFTS[lowest - 1 : lowest + 2], values[lowest - 1 : lowest + 2], 2)
    best = -curve[1] / (2 * curve[0]) if curve[0] > 0 else SHIFTS[int(values.argmin())]
    return Coherence(shifts=SHIFTS, missed=tuple(missed), best=float(np.clip(best, SHIFTS[0], SHIFTS[-1])))


def _shifted(camera: Camera, shift: float) -> Camera:
    return replace(camera, cx=camera.cx + shift, cy=camera.cy + shift)


def _signed_distance(mask: Tensor) -> Float[Tensor, "1 1 h w"]:
    """Return the distance of pixel centers to the outline of a mask, positive inside, in pixels."""
    inside = mask.numpy()
    # Distances to the nearest pixel of the other kind; the outline lies half a pixel before it.
    distance = np.asarray(ndimage.distance_transform_edt(inside)) - np.asarray(ndimage.distance_transform_edt(~inside))
    return torch.from_numpy(distance - 0.5 * np.sign(distance))[None, None]


def _border(mask: Tensor) -> Float[Tensor, "n 2"]:
    """Return points between neighboring pixels inside and outside a mask, x and y, up to `RAYS` of them."""
    inside = mask.numpy()
    rows, columns = np.nonzero(inside[1:] != inside[:-1])
    vertical = np.stack([columns + 0.5, rows + 1.0], -1)
    rows, columns = np.nonzero(inside[:, 1:] != inside[:, :-1])
    points = np.concatenate([vertical, np.stack([columns + 1.0, rows + 0.5], -1)])
    return torch.from_numpy(points[:: max(len(points) // RAYS, 1)])


@dataclass(frozen=True, kw_only=True)
class _Silhouettes:
    """Signed distances to the outlines of masks, in pixels; those of smaller masks go on beyond the border as there."""

    fields: Float[Tensor, "views 1 h w"]

    @classmethod
    def of(cls, views: Sequence[NormalView]) -> "_Silhouettes":
        height = max(view.camera.height for view in views)
        width = max(view.camera.width for view in views)
        fields = [_signed_distance(view.mask) for view in views]
        more = [(0, width - field.shape[-1], 0, height - field.shape[-2]) for field in fields]
        padded = [
            torch.nn.functional.pad(field, sides, mode="replicate") for field, sides in zip(fields, more, strict=True)
        ]
        return cls(fields=torch.cat(padded))

    def depth_inside(self, cameras: "_Projections", points: Float[Tensor, "n m 3"], but: int) -> Float[Tensor, "n m"]:
        """Return how far points are inside the silhouettes of all views but one, in pixels.

        Far outside of a picture, and behind a camera, it is low.
        """
        pixels, depth = cameras.project(points.reshape(-1, 3))
        height, width = self.fields.shape[-2:]
        # Pixel (0, 0) has its center at 0.5; grid_sample with align_corners=False has the same convention.
        grid = 2 * pixels / torch.tensor([width, height], dtype=torch.float64) - 1
        grid = grid.transpose(0, 1)[:, None]
        sampled = torch.nn.functional.grid_sample(self.fields, grid, padding_mode="border", align_corners=False)
        values = torch.where(depth.T > 0, sampled[:, 0, 0], -torch.inf)
        values[but] = torch.inf
        return values.amin(0).reshape(points.shape[:-1])


@dataclass(frozen=True, kw_only=True)
class _Projections:
    """Projections of several cameras."""

    rotations: Float[Tensor, "views 3 3"]
    translations: Float[Tensor, "views 3"]
    focal: Float[Tensor, "views 2"]
    center: Float[Tensor, "views 2"]

    @classmethod
    def of(cls, cameras: Sequence[Camera]) -> "_Projections":
        camera_from_world = torch.stack([camera.camera_from_world.double() for camera in cameras])
        return cls(
            rotations=camera_from_world[:, :3, :3],
            translations=camera_from_world[:, :3, 3],
            focal=torch.tensor([(camera.fx, camera.fy) for camera in cameras], dtype=torch.float64),
            center=torch.tensor([(camera.cx, camera.cy) for camera in cameras], dtype=torch.float64),
        )

    def project(self, points: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, "n views 2"], Float[Tensor, "n views"]]:
        """Return what `Camera.project` returns, for every camera."""
        # One product with all rotations side by side.
        turned = points @ self.rotations.reshape(-1, 3).T
        local = turned.reshape(len(points), -1, 3) + self.translations
        depth = local[..., 2]
        safe = torch.where(depth == 0, torch.ones_like(depth), depth)
        return self.focal * local[..., :2] / safe[..., None] + self.center, depth


def _missed(cameras: list[Camera], silhouettes: _Silhouettes, borders: list[Tensor], radius: float) -> float:
    """Return the mean distance by which boundary rays miss the silhouettes of the other views."""
    total = 0.0
    count = 0
    projections = _Projections.of(cameras)
    steps = torch.linspace(-radius, radius, _COARSE, dtype=torch.float64)
    width = 2 * radius / (_COARSE - 1)
    finer = torch.linspace(-width, width, _FINE, dtype=torch.float64)
    for number, (camera, border) in enumerate(zip(cameras, borders, strict=True)):
        pose = camera.world_from_camera.double()
        origin = pose[:3, 3]
        directions = camera.directions_through(border[:, 0], border[:, 1]) @ pose[:3, :3].T
        directions = torch.nn.functional.normalize(directions, dim=-1)
        middle = -(directions @ origin)
        coarse = middle[:, None] + steps
        inside = silhouettes.depth_inside(projections, _points_on(origin, directions, coarse), but=number)
        fine = middle[:, None] + steps[inside.argmax(1), None] + finer
        finest = silhouettes.depth_inside(projections, _points_on(origin, directions, fine), but=number)
        near = (-torch.maximum(inside.amax(1), finest.amax(1))).clamp(0, _LIMIT)
        total += float(near.sum())
        count += len(near)
    return total / max(count, 1)


def _points_on(
    origin: Float[Tensor, "3"], directions: Float[Tensor, "n 3"], along: Float[Tensor, "n m"]
) -> Float[Tensor, "n m 3"]:
    return origin + along[..., None] * directions[:, None]
