"""What a normals run trains on: the maps on the training device, and how views are split."""

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
"""Width of the band around a silhouette from which most rays outside of the mask are drawn, shares of the picture."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalsScene:
    """Normal maps of one object, ready to be trained on.

    Attributes:
        maps: all views; cameras in the frame of the unit sphere.
        train: numbers of the views that are trained on.
        test: numbers of those that are held out.
        device: where training happens.
        schedule: what happens at which step.
        starting_poses: `world_from_camera` of every view at the start, in the frame of the unit sphere, float64.
        read_truth: makes or reads the true surface, in the frame of the unit sphere; None where nobody knows it.
        notes: what was done on the way, for people.
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
        """The true surface, in the frame of the unit sphere, where it is known; made when it is first asked for."""
        return None if self.read_truth is None else self.read_truth()

    @cached_property
    def digest(self) -> str:
        """What tells these maps, masks and cameras from others."""
        digest = hashlib.sha256()
        for view in self.maps.views:
            digest.update(f"{view.name} {view.size} {view.camera.K.tolist()}".encode())
            parts = (view.normals, view.mask, view.camera.world_from_camera, view.depth)
            for part in (part for part in parts if part is not None):
                digest.update(part.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def pixels(self) -> "Pixels":
        """The pixels of the training views, on the training device."""
        return Pixels.of([self.maps.views[i] for i in self.train], self.device)

    def camera(self, view: int, world_from_camera: Float[Tensor, "4 4"]) -> Camera:
        """Return the camera of a view, at another place."""
        known = self.maps.views[view].camera
        lens = {name: getattr(known, name) for name in ("width", "height", "fx", "fy", "cx", "cy")}
        return Camera(name=known.name, **lens, world_from_camera=world_from_camera)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pixels:
    """All pixels of some views in one row of memory, one view after the other.

    Attributes:
        normals: in camera axes; 0 where there is none.
        mask: the silhouettes.
        known: pixels in the mask that have a normal.
        distance: integrated, along the ray, up to one scale per view; 0 where there is none.
        offsets: first pixel of each view.
        widths: of the views, pixels.
        heights: of the views, pixels.
        lenses: fx, fy, cx, cy of the views.
        regions: per view, numbers of its pixels in the mask, near it, and far from it.
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
        """Gather them."""
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
        """Count the views."""
        return len(self.offsets)

    @property
    def has_depth(self) -> bool:
        """Whether anything is known of the distance."""
        return bool((self.distance > 0).any())

    def directions(self, view: Int64[Tensor, " n"], pixel: Int64[Tensor, " n"]) -> Float[Tensor, "n 3"]:
        """Return unit directions, in camera axes, through the centres of pixels.

        Args:
            view: of each pixel.
            pixel: its number in its view, row by row.
        """
        fx, fy, cx, cy = self.lenses[view].unbind(-1)
        width = self.widths[view]
        x = pixel % width + 0.5
        y = pixel // width + 0.5
        directions = torch.stack([(x - cx) / fx, (y - cy) / fy, torch.ones_like(fx)], -1)
        return directions / directions.norm(dim=-1, keepdim=True)


def _distance(view: NormalView) -> Float[Tensor, "h w"]:
    """Depth along the axis, as distance along the ray."""
    if view.depth is None:
        return torch.zeros(view.size)
    return view.depth * view.camera.directions().norm(dim=-1).to(view.depth)


def _regions(mask: Bool[Tensor, "h w"], device: torch.device) -> tuple[Int64[Tensor, " _"], ...]:
    reach = max(round(BAND * max(mask.shape)), 1)
    away = torch.from_numpy(ndimage.distance_transform_edt(~mask.cpu().numpy()))
    parts = (mask, ~mask & (away <= reach), ~mask & (away > reach))
    return tuple(torch.nonzero(part.reshape(-1))[:, 0].to(device) for part in parts)
