"""What a COLMAP model holds."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fieldwatch.recon.geometry import Lens


@dataclass(frozen=True, kw_only=True, eq=False)
class RegisteredImage:
    """One photo that COLMAP placed.

    Attributes:
        image_id: COLMAP's image id.
        name: relative to the folder of photos.
        camera_id: id of its lens.
        world_from_camera: float64.
    """

    image_id: int
    name: str
    camera_id: int
    world_from_camera: Float[Tensor, "4 4"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SparsePoints:
    """The points of a model and which photos see them.

    Attributes:
        positions: world units, float64.
        colours: red, green, blue.
        errors: mean reprojection error in pixels.
        track_points: for every observation, the row of its point.
        track_images: for every observation, the id of the photo.
    """

    positions: Float[Tensor, "points 3"]
    colours: UInt8[Tensor, "points 3"]
    errors: Float[Tensor, "points"]
    track_points: Int64[Tensor, "observations"]
    track_images: Int64[Tensor, "observations"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ColmapModel:
    """A sparse reconstruction.

    Attributes:
        lenses: by camera id.
        images: in the order of the file.
        points: with their tracks.
    """

    lenses: Mapping[int, Lens]
    images: tuple[RegisteredImage, ...]
    points: SparsePoints
