"""Read an export of cameras with its photos."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch.recon.data.exports.error import ExportError
from fieldwatch.recon.data.exports.model import CameraExport, ExportedCamera
from fieldwatch.recon.data.exports.recognize import cameras_of_export
from fieldwatch.recon.data.gaussians import read_point_ply
from fieldwatch.recon.data.photos import (
    PhotoCandidate,
    PhotoFolder,
    PhotoOptions,
    PhotoSet,
    PosedPhoto,
    assemble,
    check_photos,
    no_points,
    stored_size,
)

_FAR = 1000.0  # distance from the origin, in units of the scene, from which float32 loses digits that matter


def read_camera_export(
    path: Path | str,
    options: PhotoOptions | None = None,
    *,
    images: Path | str | None = None,
    masks: Path | str | None = None,
) -> PhotoSet:
    """Read the photos of an export of Metashape, RealityScan, Polycam or Record3D.

    Points come from the only PLY file beside the cameras, if there is one. Coordinates far from the origin, as of maps,
    are moved to it.

    Args:
        path: file of the cameras, or the folder that contains it.
        options: size, split and background of the photos.
        images: folder of the photos; by default, the folder of the cameras and its subfolders.
        masks: folder of the masks; by default `masks` beside the cameras, if it exists.

    Raises:
        ExportError: if the export cannot be read, or a folder does not exist.
        PhotoError: if photos are missing, unreadable, or do not have the aspect ratio of their cameras.
        PlyError: if the point cloud is damaged.
    """
    path = Path(path).expanduser()
    options = options or PhotoOptions()
    export = cameras_of_export(path)
    photos = PhotoFolder(_folder(export.photos, images) if images is not None else export.photos)
    mask_folder = _mask_folder(export, masks)
    candidates = [_candidate(camera, photos, mask_folder) for camera in export.cameras]
    usable = check_photos(
        candidates,
        skip=options.skip_unreadable,
        leave_out=options.leave_out,
        most_decoded=options.most_decoded,
        source=f"the {export.program} export {export.file}",
        where=photos.holds,
    )
    points, colors, notes = _points(export)
    cameras, points, moved = _near_origin(export.cameras, points)
    views = [
        PosedPhoto(
            name=photo.path.relative_to(photos.folder).as_posix(),
            path=photo.path,
            lens=camera.lens(stored_size(photo.path)),
            world_from_camera=camera.world_from_camera,
            mask=photo.mask,
            transparent=photo.transparent,
            blank=photo.blank,
        )
        for camera in cameras
        if (photo := usable.photos.get(camera.name)) is not None
    ]
    return assemble(
        views,
        options,
        points=points,
        colors=colors,
        source=str(path),
        notes=[f"cameras of {export.program}: {export.file.name}", *export.notes, *notes, *moved, *usable.notes],
        left_out=usable.left_out,
    )


def _folder(base: Path, given: Path | str) -> Path:
    chosen = base / Path(given).expanduser()
    if not chosen.is_dir():
        raise ExportError(f"{chosen} is not a folder: pass the folder of the photos or masks of this export")
    return chosen


def _mask_folder(export: CameraExport, masks: Path | str | None) -> PhotoFolder | None:
    default = export.file.parent / "masks"
    if masks is None:
        return PhotoFolder(default) if default.is_dir() else None
    return PhotoFolder(_folder(export.file.parent, masks))


def _candidate(camera: ExportedCamera, photos: PhotoFolder, masks: PhotoFolder | None) -> PhotoCandidate:
    path = photos.find(camera.name)
    mask = None if masks is None or path is None else masks.find_mask(path.relative_to(photos.folder).as_posix())
    # Metashape's own masks are named after the photo with this ending.
    if masks is not None and mask is None and path is not None:
        mask = masks.find(f"{path.stem}_mask.png")
    return PhotoCandidate(name=camera.name, path=path, mask=mask)


def _points(export: CameraExport) -> tuple[Float[Tensor, "points 3"], UInt8[Tensor, "points 3"], list[str]]:
    """Return points and their colors, and notes."""
    found = [export.points] if export.points is not None else sorted(export.file.parent.glob("*.ply"))
    if len(found) == 1:
        points, colors = read_point_ply(found[0])
        return points, colors, [f"{len(points)} points from {found[0].name}"]
    why = f"{len(found)} PLY files beside the cameras" if found else "the export has no points"
    remedy = "" if found else "; a point cloud exported as PLY beside the cameras is used"
    return *no_points(), [f"{why}: Gaussians must be initialized from random points{remedy}"]


def _near_origin(
    cameras: Sequence[ExportedCamera], points: Float[Tensor, "points 3"]
) -> tuple[list[ExportedCamera], Float[Tensor, "points 3"], list[str]]:
    """Move a scene to the origin if its coordinates are those of a map; training computes in float32."""
    positions = torch.stack([camera.world_from_camera[:3, 3] for camera in cameras])
    center = positions.median(0).values.round()
    spread = float((positions - center).abs().max())
    if float(center.abs().max()) < _FAR * max(spread, 1e-9):
        return list(cameras), points, []
    shift = torch.eye(4, dtype=torch.float64)
    shift[:3, 3] = -center
    moved = [replace(camera, world_from_camera=shift @ camera.world_from_camera) for camera in cameras]
    note = f"coordinates are moved by {[-value for value in center.tolist()]}: they are far from the origin"
    return moved, (points.double() - center).float(), [note]
