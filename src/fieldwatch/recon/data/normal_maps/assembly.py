"""Assembly of sets whose cameras are in any world: the object's unit sphere, then the conventions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.data.normal_maps.axes import Choices, Convention
from fieldwatch.recon.data.normal_maps.conventions import fills_picture
from fieldwatch.recon.data.normal_maps.enclosing_ball import (
    EnclosingBall,
    cut_masks,
    nearest_to_rays,
    object_ball,
    refuse_black,
)
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.layout import (
    MASK_FOLDERS,
    MESH,
    holes_filled,
    known_pixels,
    subfolder,
    view_of_maps,
)
from fieldwatch.recon.data.normal_maps.map_files import NormalFile, load_normal_file, read_mask_file
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.data.normal_maps.settle import encoding_note, settled
from fieldwatch.recon.geometry import Camera

REACH = 0.8
"""Default distance that the object reaches from the origin of the unit sphere, where files do not state it."""
NONE = "none"
"""Value of `masks` that uses no silhouettes: only pixels with a normal are trained."""
NORMALS = "normals"
"""Value of `masks` that takes the pixels with a normal as silhouettes."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a set is read, whatever its layout.

    Attributes:
        choices: conventions that the user states.
        masks: folder of masks; ``normals`` takes the pixels with a normal, ``none`` uses no silhouettes; None takes the
            usual folders, else the pixels with a normal.
        fill_holes: whether to add holes of the masks that contain normals to the masks.
        ratio: extent of the object in the unit sphere, for layouts that do not state it.
    """

    choices: Choices = Choices()  # noqa: RUF009  immutable
    masks: str | None = None
    fill_holes: bool = False
    ratio: float = REACH

    def __post_init__(self) -> None:
        """Check the ratio."""
        if not 0 < self.ratio <= 1:
            msg = (
                "ratio, the extent of the object in the unit sphere, must be greater than 0 and at most 1, got "
                f"{self.ratio}"
            )
            raise NormalMapError(msg)

    def mask_folder(self, folder: Path, notes: list[str]) -> Path | None:
        """Return the folder of masks; None if silhouettes come from the normals or there are none.

        Raises:
            NormalMapError: if a folder is named and missing.
        """
        if self.masks in {NONE, NORMALS}:
            return None
        if self.masks is not None:
            return subfolder(folder, (self.masks,), "masks", notes)
        if not any((folder / name).is_dir() for name in MASK_FOLDERS):
            return None
        return subfolder(folder, MASK_FOLDERS, "masks", notes)


@dataclass(frozen=True, kw_only=True)
class ViewFiles:
    """Files of one view.

    Attributes:
        normals: normal map; None for sets of masks only.
        mask: mask; None if the normals tell where the object is.
    """

    normals: Path | None
    mask: Path | None


def read_maps(files: ViewFiles) -> tuple[NormalFile | None, Bool[Tensor, "h w"]]:
    """Read a normal map and its mask; without a mask, the pixels that have a normal.

    Raises:
        NormalMapError: if a file is unreadable, or the view has neither.
    """
    normals = None if files.normals is None else load_normal_file(files.normals)
    if files.mask is not None:
        return normals, read_mask_file(files.mask)
    if normals is None:
        msg = "a view needs normals or a mask, and has neither: add one of them, or leave it out with --exclude"
        raise NormalMapError(msg)
    return normals, known_pixels(normals)


def silhouettes_of(reading: ReadOptions, views: Sequence[NormalView], masks: Path | None, notes: list[str]) -> bool:
    """Return whether the masks of views are silhouettes, and say where they come from.

    Raises:
        NormalMapError: if there are no masks, and normals cover whole pictures, so that they show no object.
    """
    if masks is not None:
        return True
    if reading.masks == NONE:
        notes.append("masks: none, as given: only pixels with a normal are trained, and nothing carves the background")
        return False
    full = [view.name for view in views if fills_picture(view.mask)]
    if len(full) > len(views) / 2:
        msg = (
            f"there are no masks, and the normals of {len(full)} of {len(views)} views cover the whole picture, so "
            "nothing tells the object from its background: add a folder mask/ (white on the object; --masks NAME), or "
            "train every pixel as a surface within the sphere with --masks none"
        )
        raise NormalMapError(msg)
    given = ", as given" if reading.masks == NORMALS else ""
    notes.append(f"masks: the pixels that have a normal{given or ' (there is no folder of masks)'}; --masks overrules")
    return True


def assembled(  # noqa: PLR0913  the parts of a set
    views: Sequence[NormalView],
    files: Sequence[NormalFile | None],
    reading: ReadOptions,
    usual: Convention,
    *,
    folder: Path,
    masks: Path | None,
    notes: list[str],
    points: Float[Tensor, "points 3"] | None = None,
) -> NormalSet:
    """Return a set whose unit sphere is found from its masks, or from what the cameras look at.

    Args:
        views: views in the world of their poses, with normals in the channels of the files.
        files: contents of their files.
        reading: how the set is read.
        usual: convention of the layout.
        folder: folder of the set.
        masks: folder of masks; None if there is none.
        notes: notes so far.
        points: points of the scene, for a note.

    Raises:
        NormalMapError: if the masks have no common point, are black, or the cameras are parallel.
    """
    silhouettes = silhouettes_of(reading, views, masks, notes)
    if silhouettes:
        refuse_black(views)
    if reading.fill_holes:
        views = [holes_filled(view, notes) for view in views]
    ball = object_ball(views) if silhouettes else seen_ball([view.camera for view in views])
    notes += object_notes(views, ball, points, silhouettes=silhouettes)
    # The radius of the ball becomes `ratio` in the unit frame.
    scale = ball.radius / reading.ratio
    world_from_unit = torch.diag(torch.tensor([scale, scale, scale, 1.0], dtype=torch.float64))
    world_from_unit[:3, 3] = ball.center
    inside = [into_sphere(view, ball.center, scale) for view in views]
    known = [file for file in files if file is not None]
    if known:
        notes.append(encoding_note(known))
    result = settled(inside, reading.choices, usual, notes, silhouettes=silhouettes)
    return NormalSet(
        views=tuple(result.views),
        world_from_unit=world_from_unit,
        mesh=folder / MESH if (folder / MESH).is_file() else None,
        source=str(folder),
        notes=tuple(notes),
        convention=result.convention,
        noise=result.noise,
        silhouettes=silhouettes,
    )


def seen_ball(cameras: Sequence[Camera]) -> EnclosingBall:
    """Return the largest ball around the point that the cameras look at that fits into all pictures.

    Raises:
        NormalMapError: if the cameras are parallel.
    """
    origins = torch.stack([camera.position.double() for camera in cameras])
    axes = torch.stack([camera.forward.double() for camera in cameras])
    center = nearest_to_rays(origins, axes)
    radii = []
    for camera, origin in zip(cameras, origins, strict=True):
        # The narrower half of the field of view.
        slope = min(camera.cx / camera.fx, camera.cy / camera.fy, (camera.width - camera.cx) / camera.fx)
        slope = min(slope, (camera.height - camera.cy) / camera.fy)
        radii.append(float((center - origin).norm()) * slope / (1 + slope**2) ** 0.5)
    return EnclosingBall(center, min(radii))


def into_sphere(view: NormalView, center: Float[Tensor, "3"], scale: float) -> NormalView:
    """Return a view whose camera is in the frame of the unit sphere, which has the axes of the world."""
    pose = view.camera.world_from_camera.clone()
    pose[:3, 3] = (pose[:3, 3] - center) / scale
    return replace(view, camera=replace(view.camera, world_from_camera=pose))


def object_notes(
    views: Sequence[NormalView],
    ball: EnclosingBall,
    points: Float[Tensor, "points 3"] | None,
    *,
    silhouettes: bool = True,
) -> list[str]:
    """Return notes about the object: its enclosing ball, truncated masks, and the points on it."""
    where = ", ".join(f"{value:.4g}" for value in ball.center.tolist())
    if not silhouettes:
        return [f"the cameras look at ({where}), and all of them see {ball.radius:.4g} units around it"]
    notes = [f"the visual hull lies within {ball.radius:.4g} units of ({where}) in model coordinates"]
    if cut_names := cut_masks(views):
        listed = ", ".join(cut_names[:8]) + (f", ... ({len(cut_names)})" if len(cut_names) > 8 else "")
        notes.append(f"{len(cut_names)} masks touch the image edge ({listed}): the object may extend beyond it")
    if points is None or not len(points):
        return notes
    on_object = torch.stack([_inside_mask(view, points) for view in views]).double().mean(0) >= _ON_OBJECT_SHARE
    beyond = int((on_object & ((points - ball.center).norm(dim=-1) > ball.radius)).sum())
    summary = f"{int(on_object.sum())} of {len(points)} sparse points lie inside the masks of most views"
    return [*notes, summary + (f"; {beyond} of these lie outside the ball" if beyond else "")]


_ON_OBJECT_SHARE = 0.75  # fraction of the views whose masks must contain a sparse point of the object


def _inside_mask(view: NormalView, points: Float[Tensor, "n 3"]) -> Bool[Tensor, "n"]:
    pixels, depth = view.camera.project(points)
    limits = torch.tensor([view.size[1], view.size[0]])
    in_picture = (depth > 0) & (pixels >= 0).all(-1) & (pixels < limits).all(-1)
    # Points outside the image get index 0, which `in_picture` masks again.
    column, row = torch.where(in_picture[:, None], pixels, torch.zeros_like(pixels)).floor().long().unbind(-1)
    return in_picture & view.mask[row, column]


__all__ = [
    "NONE",
    "NORMALS",
    "REACH",
    "ReadOptions",
    "ViewFiles",
    "assembled",
    "into_sphere",
    "object_notes",
    "read_maps",
    "seen_ball",
    "silhouettes_of",
    "view_of_maps",
]
