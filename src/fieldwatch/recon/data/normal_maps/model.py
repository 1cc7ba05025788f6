"""Data classes of multi-view normal maps: one view and a set of views."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from fieldwatch.recon.data.normal_maps.axes import Convention
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.geometry import Camera

_MIN_NORMAL_LENGTH = 0.5  # shorter vectors are missing normals


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalView:
    """Normal map, mask and camera of one view.

    Attributes:
        name: stem of the normal map file.
        camera: camera in the unit sphere frame, with the size of the maps.
        normals: unit normals in OpenCV camera axes (x right, y down, z forward; z < 0 faces the camera), exactly 0
            where there is none.
        mask: silhouette of the object.
        depth: depth along the optical axis up to one scale per view, 0 where unknown; None if there is no depth.
        off_unit: fraction of the normals in the mask whose length in the file differed from 1 by more than 2 %.
        not_finite: fraction of the pixels in the mask that were NaN or infinite in the file.
        bits: bits per component in the file: 8, 16 or 32; 0 if there was no file.

    Raises:
        NormalMapError: if a map does not have the size of the camera or contains non-finite values.
    """

    name: str
    camera: Camera
    normals: Float32[Tensor, "h w 3"]
    mask: Bool[Tensor, "h w"]
    depth: Float32[Tensor, "h w"] | None = None
    off_unit: float = 0.0
    not_finite: float = 0.0
    bits: int = 0

    def __post_init__(self) -> None:
        """Validate sizes and values of the maps."""
        wanted = (self.camera.height, self.camera.width)
        # One component stands for the shape of the normals; all of them are checked for NaN below.
        maps = {"normals": self.normals[..., 0], "mask": self.mask}
        maps |= {} if self.depth is None else {"depth": self.depth}
        for what, values in maps.items():
            if tuple(values.shape) != wanted:
                msg = (
                    f"view {self.name!r}: size {tuple(values.shape)} (height, width) of {what} differs from {wanted} "
                    "of the camera: resize all maps of a view to a common size, and the camera with camera.resized"
                )
                raise NormalMapError(msg)
            if not bool(torch.isfinite(self.normals if what == "normals" else values.float()).all()):
                msg = f"view {self.name!r}: NaN or infinite values in {what}: use 0 for unknown values"
                raise NormalMapError(msg)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.camera.height, self.camera.width

    @cached_property
    def known(self) -> Bool[Tensor, "h w"]:
        """Pixels that have a normal, inside the mask or not."""
        return self.normals.square().sum(-1) > _MIN_NORMAL_LENGTH**2

    @property
    def valid(self) -> Bool[Tensor, "h w"]:
        """Pixels in the mask that have a normal."""
        return self.mask & self.known

    def world_normals(self) -> Float32[Tensor, "h w 3"]:
        """Return the normals in the axes of the unit sphere frame, which are those of the world."""
        # Row vectors: n @ R.T rotates from camera to world axes.
        return self.normals @ self.camera.world_from_camera[:3, :3].T.to(self.normals)


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalSet:
    """Normal maps of one object from several views.

    Cameras are given in a frame in which the object lies within the unit sphere; `world_from_unit` transforms this
    frame to the world frame of `mesh`.

    Attributes:
        views: views sorted by index; their sizes may differ.
        world_from_unit: uniform scale and translation, the `scale_mat` of the layout.
        mesh: file of the ground truth surface in the world frame; None if unknown.
        source: human-readable origin of the set, such as its path.
        notes: human-readable notes about the reading.
        convention: how the files encode normals and cameras; None if there are no files.
        noise: noise of the normals from pixel to pixel in degrees about each of two axes; None if unknown.
        silhouettes: whether the masks are silhouettes; False if they only tell where normals are known.
        posed: whether the poses are known; False for sets of maps, masks and intrinsics alone.

    Raises:
        NormalMapError: if there are no views, names are not unique, or `world_from_unit` is not a uniform scale and
            translation.
    """

    views: tuple[NormalView, ...]
    world_from_unit: Float[Tensor, "4 4"] = field(default_factory=lambda: torch.eye(4, dtype=torch.float64))
    mesh: Path | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    convention: Convention | None = None
    noise: float | None = None
    silhouettes: bool = True
    posed: bool = True

    def __post_init__(self) -> None:
        """Validate names and the transformation."""
        # Names identify the views in files and reports.
        names = [view.name for view in self.views]
        if not names or len(set(names)) != len(names):
            msg = f"a set of normal maps needs at least one view and unique names, got views {names}"
            raise NormalMapError(msg)
        # A rotation or non-uniform scale would also change the normals, which are not transformed.
        matrix = self.world_from_unit.double().cpu()
        uniform_scale = float(matrix[0, 0]) * torch.eye(3, dtype=torch.float64)
        deviation = float((matrix[:3, :3] - uniform_scale).abs().max())
        affine_last_row = matrix[3].tolist() == [0, 0, 0, 1]
        # The tolerance allows for matrices stored as float32.
        if not (
            self.scale > 0 and deviation <= 1e-6 * self.scale and affine_last_row and bool(torch.isfinite(matrix).all())
        ):
            msg = (
                f"world_from_unit must be a positive uniform scale and a translation (s 0 0 x / 0 s 0 y / 0 0 s z / 0 "
                f"0 0 1), got {matrix.tolist()}: put rotations into the cameras"
            )
            raise NormalMapError(msg)

    def __len__(self) -> int:
        """Return the number of views."""
        return len(self.views)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the views."""
        return tuple(view.name for view in self.views)

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Height and width of every view in pixels."""
        return tuple(view.size for view in self.views)

    @property
    def cameras(self) -> tuple[Camera, ...]:
        """Cameras of the views in the unit sphere frame."""
        return tuple(view.camera for view in self.views)

    @property
    def scale(self) -> float:
        """World units per unit of the camera frame."""
        return float(self.world_from_unit[0, 0])
