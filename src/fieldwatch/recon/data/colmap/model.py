"""Data classes of a COLMAP sparse model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fieldwatch.recon.geometry import Lens


@dataclass(frozen=True, kw_only=True, eq=False)
class RegisteredImage:
    """One photo with the pose that COLMAP estimated.

    Attributes:
        image_id: COLMAP's image id.
        name: file name relative to the photo folder.
        camera_id: id of the photo's camera in `ColmapModel.lenses`.
        world_from_camera: pose in OpenCV axes, float64.
    """

    image_id: int
    name: str
    camera_id: int
    world_from_camera: Float[Tensor, "4 4"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SparsePoints:
    """The points of a model and the photos that see them.

    Attributes:
        positions: point positions in world units, float64.
        colors: RGB colors, 0 to 255.
        errors: mean reprojection errors in pixels.
        track_points: row of the observed point, for every observation.
        track_images: id of the observing photo, for every observation.
        ids: COLMAP's ids of the points, to which the observations of the photos refer; empty if they are unknown.
    """

    positions: Float[Tensor, "points 3"]
    colors: UInt8[Tensor, "points 3"]
    errors: Float[Tensor, "points"]
    track_points: Int64[Tensor, "observations"]
    track_images: Int64[Tensor, "observations"]
    ids: Int64[Tensor, "known"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class ColmapModel:
    """A sparse reconstruction.

    Attributes:
        lenses: camera intrinsics by camera id.
        images: registered photos in file order.
        points: sparse points with their tracks.
    """

    lenses: Mapping[int, Lens]
    images: tuple[RegisteredImage, ...]
    points: SparsePoints
