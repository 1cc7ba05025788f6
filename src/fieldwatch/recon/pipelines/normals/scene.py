"""Training data of a normals run: the maps on the training device, and the split of the views."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data import NormalSet, NormalView
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import Triangles
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule

BAND = 0.04
"""Width of the band around a silhouette in which most outside rays are sampled, relative to the longer image side."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalsScene:
    """Normal maps of an object, prepared for training.

    Attributes:
        maps: all views; cameras in the frame of the unit sphere.
        train: indices of the training views.
        test: indices of the held-out views.
        device: training device.
        schedule: schedule of the run.
        starting_poses: initial ``world_from_camera`` of every view in the frame of the unit sphere, float64.
        read_truth: creates or reads the ground-truth surface in the frame of the unit sphere; None if it is unknown.
        notes: remarks on the preparation, for the user.
    """

    maps: NormalSet
    train: tuple[int, ...]
    test: tuple[int, ...]
    device: torch.device
    schedule: NormalsSchedule
    starting_poses: Float[Tensor, "views 4 4"]
    read_truth: Callable[[], Triangles] | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def truth(self) -> Triangles | None:
        """Ground-truth surface in the frame of the unit sphere, or None if unknown; loaded on first access."""
        return None if self.read_truth is None else self.read_truth()

    @cached_property
    def digest(self) -> str:
        """Hash of the maps, masks and cameras."""
        digest = hashlib.sha256()
        for view in self.maps.views:
            digest.update(f"{view.name} {view.size} {view.camera.K.tolist()}".encode())
            parts = (view.normals, view.mask, view.camera.world_from_camera, view.depth)
            for part in (part for part in parts if part is not None):
                digest.update(part.detach().cpu().contiguous().numpy().tobytes())
        # 16 hex digits are enough to detect a change; this is not a security measure.
        return digest.hexdigest()[:16]

    @cached_property
    def pixels(self) -> "Pixels":
        """Pixels of the training views, on the training device."""
        return Pixels.of([self.maps.views[i] for i in self.train], self.device)

    def camera(self, view: int, world_from_camera: Float[Tensor, "4 4"]) -> Camera:
        """Return the camera of a view with another pose."""
        known = self.maps.views[view].camera
        lens = {name: getattr(known, name) for name in ("width", "height", "fx", "fy", "cx", "cy")}
        return Camera(name=known.name, **lens, world_from_camera=world_from_camera)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pixels:
    """All pixels of several views in flat tensors, one view after the other.

    Attributes:
        normals: observed normals in camera axes; 0 where unknown.
        mask: silhouettes.
        known: whether the pixel is in the mask and has a normal.
        distance: integrated distance along the ray, up to one scale per view; 0 where unknown.
        offsets: index of each view's first pixel.
        widths: widths of the views in pixels.
        heights: heights of the views in pixels.
        lenses: fx, fy, cx, cy of the views.
        regions: pixel indices of each view inside the mask, near it, and far from it.
    """

    normals: Float[Tensor, "pixels 3"]
    mask: Bool[Tensor, " pixels"]
    known: Bool[Tensor, " pixels"]
    distance: Float[Tensor, " pixels"]
    offsets: Int64[Tensor, " views"]
    widths: Int64[Tensor, " views"]
    heights: Int64[Tensor, " views"]
    lenses: Float[Tensor, "views 4"]
    regions: tuple[tuple[Int64[Tensor, " _"], ...], ...] = field(repr=False)

    @classmethod
    def of(cls, views: list[NormalView], device: torch.device) -> "Pixels":
        """Gather the pixels of views on a device."""
        # Views may have different sizes, hence flat tensors with offsets.
        sizes = torch.tensor([view.size for view in views])
        counts = sizes.prod(1)
        cameras = [view.camera for view in views]
        return cls(
            normals=torch.cat([view.normals.reshape(-1, 3) for view in views]).to(device),
            mask=torch.cat([view.mask.reshape(-1) for view in views]).to(device),
            known=torch.cat([view.valid.reshape(-1) for view in views]).to(device),
            distance=torch.cat([_distance(view).reshape(-1) for view in views]).to(device),
            offsets=(counts.cumsum(0) - counts).to(device),
            widths=sizes[:, 1].to(device),
            heights=sizes[:, 0].to(device),
            lenses=torch.tensor([[c.fx, c.fy, c.cx, c.cy] for c in cameras]).to(device),
            regions=tuple(_regions(view.mask, device) for view in views),
        )

    def __len__(self) -> int:
        """Return the number of views."""
        return len(self.offsets)

    @property
    def has_depth(self) -> bool:
        """Whether any pixel has a distance."""
        return bool((self.distance > 0).any())

    def directions(self, view: Int64[Tensor, " n"], pixel: Int64[Tensor, " n"]) -> Float[Tensor, "n 3"]:
        """Return unit directions, in camera axes, through pixel centers.

        Args:
            view: view index of each pixel.
            pixel: row-major index of each pixel in its view.
        """
        fx, fy, cx, cy = self.lenses[view].unbind(-1)
        width = self.widths[view]
        # Pixel centers are at +0.5.
        x = pixel % width + 0.5
        y = pixel // width + 0.5
        directions = torch.stack([(x - cx) / fx, (y - cy) / fy, torch.ones_like(fx)], -1)
        return directions / directions.norm(dim=-1, keepdim=True)


def _distance(view: NormalView) -> Float[Tensor, "h w"]:
    """Convert depth along the optical axis to distance along the ray."""
    if view.depth is None:
        return torch.zeros(view.size)
    return view.depth * view.camera.directions().norm(dim=-1).to(view.depth)


def _regions(mask: Bool[Tensor, "h w"], device: torch.device) -> tuple[Int64[Tensor, " _"], ...]:
    # At least one pixel, for very small images.
    reach = max(round(BAND * max(mask.shape)), 1)
    # Distance of each outside pixel from the mask, in pixels.
    away = torch.from_numpy(ndimage.distance_transform_edt(~mask.cpu().numpy()))
    parts = (mask, ~mask & (away <= reach), ~mask & (away > reach))
    return tuple(torch.nonzero(part.reshape(-1))[:, 0].to(device) for part in parts)
