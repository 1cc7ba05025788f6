"""Normal maps of one object from several sides: one view, and the set."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.geometry import Camera

_MIN_NORMAL_LENGTH = 0.5  # a shorter vector is no normal


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalView:
    """What is known of one view.

    Attributes:
        name: stem of the file of normals.
        camera: where it stands, in the frame of the unit sphere; of the same size as the maps.
        normals: in the camera's OpenCV axes (x right, y down, z forward), so that what faces the camera has z < 0;
            of length 1, or exactly 0 where there is none.
        mask: the object's silhouette.
        depth: along the optical axis, up to one scale per view, 0 where it is unknown; None where there is none.
        off_unit: share of the pixels in the mask whose normal was not of length 1 (by more than 2 %) in the file,
            before it was normalised.

    Raises:
        NormalMapError: maps of another size than the camera, or numbers that are not finite.
    """

    name: str
    camera: Camera
    normals: Float32[Tensor, "h w 3"]
    mask: Bool[Tensor, "h w"]
    depth: Float32[Tensor, "h w"] | None = None
    off_unit: float = 0.0

    def __post_init__(self) -> None:
        """Refuse maps that do not fit each other."""
        wanted = (self.camera.height, self.camera.width)
        maps = {"normals": self.normals[..., 0], "mask": self.mask}
        maps |= {} if self.depth is None else {"depth": self.depth}
        for what, values in maps.items():
            if tuple(values.shape) != wanted:
                msg = (
                    f"view {self.name!r}: the {what} has {tuple(values.shape)} pixels (height, width) and its camera "
                    f"{wanted}: bring all maps of a view to one size, and the camera to that (camera.resized)"
                )
                raise NormalMapError(msg)
            if not bool(torch.isfinite(self.normals if what == "normals" else values.float()).all()):
                msg = f"view {self.name!r}: the {what} has NaN or infinite values: write 0 where nothing is known"
                raise NormalMapError(msg)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.camera.height, self.camera.width

    @property
    def known(self) -> Bool[Tensor, "h w"]:
        """Where there is a normal, in the mask or not."""
        return self.normals.square().sum(-1) > _MIN_NORMAL_LENGTH**2

    @property
    def valid(self) -> Bool[Tensor, "h w"]:
        """Where there is a normal in the mask."""
        return self.mask & self.known

    def world_normals(self) -> Float32[Tensor, "h w 3"]:
        """Return the normals in the frame of the unit sphere; its axes are the world's."""
        return self.normals @ self.camera.world_from_camera[:3, :3].T.to(self.normals)


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalSet:
    """Normal maps of one object, from several sides.

    Cameras stand in a frame in which the object lies within the unit sphere; `world_from_unit` leads from there to
    the world in which `mesh` is.

    Attributes:
        views: sorted by index; sizes may differ.
        world_from_unit: scale and shift, the layout's `scale_mat`.
        mesh: file of the true surface, in the world; None where nobody knows it.
        source: where the set comes from, for people.
        notes: what was done while reading, for people.

    Raises:
        NormalMapError: no view, two views of one name, or a `world_from_unit` that is no uniform scale and shift.
    """

    views: tuple[NormalView, ...]
    world_from_unit: Float[Tensor, "4 4"] = field(default_factory=lambda: torch.eye(4, dtype=torch.float64))
    mesh: Path | None = None
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no set."""
        names = [view.name for view in self.views]
        if not names or len(set(names)) != len(names):
            msg = f"a set of normal maps with views {names}: it needs at least one, each with a name of its own"
            raise NormalMapError(msg)
        matrix = self.world_from_unit.double().cpu()
        uniform_scale = float(matrix[0, 0]) * torch.eye(3, dtype=torch.float64)
        deviation = float((matrix[:3, :3] - uniform_scale).abs().max())
        affine_last_row = matrix[3].tolist() == [0, 0, 0, 1]
        if not (
            self.scale > 0 and deviation <= 1e-6 * self.scale and affine_last_row and bool(torch.isfinite(matrix).all())
        ):
            msg = (
                f"world_from_unit is {matrix.tolist()}: it must scale all axes alike, by more than 0, and shift "
                "(s 0 0 x / 0 s 0 y / 0 0 s z / 0 0 0 1); put rotations into the cameras"
            )
            raise NormalMapError(msg)

    def __len__(self) -> int:
        """Count the views."""
        return len(self.views)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the views."""
        return tuple(view.name for view in self.views)

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Height and width of every view, in pixels."""
        return tuple(view.size for view in self.views)

    @property
    def cameras(self) -> tuple[Camera, ...]:
        """Cameras of the views, in the frame of the unit sphere."""
        return tuple(view.camera for view in self.views)

    @property
    def scale(self) -> float:
        """World units per unit of the frame of the cameras."""
        return float(self.world_from_unit[0, 0])
