"""Read the photos of a trained splat model without its COLMAP folder, with cameras from `cameras.json`."""

from pathlib import Path

from fieldwatch.recon.data.gaussians import SplatFolder, SplatFolderError, read_point_ply
from fieldwatch.recon.data.photos import (
    PhotoCandidate,
    PhotoFolder,
    PhotoOptions,
    PhotoSet,
    PosedPhoto,
    assemble,
    check_photos,
    no_points,
)
from fieldwatch.recon.geometry import Camera, Lens


def read_splat_photos(
    folder: SplatFolder, images: Path | str, options: PhotoOptions | None = None, *, masks: Path | str | None = None
) -> PhotoSet:
    """Read the photos that a splat model was trained on, with the cameras stored in its run folder.

    Prefer the COLMAP folder if it is available: other trainers do not store principal points, which are then assumed
    to be at the image center. The points are the initial points of the run (`input.ply`), if it kept them.

    Args:
        folder: run folder.
        images: folder of the photos; downscaled copies are fine.
        options: size, split and background of the photos.
        masks: folder of the masks; None uses every pixel. Black pixels are excluded from training.

    Raises:
        SplatFolderError: if the run folder has no cameras, or the folder of the photos or masks does not exist.
        PhotoError: if photos are missing, unreadable, or do not have the aspect ratio of their cameras.
    """
    photo_path = Path(images).expanduser()
    # cameras.json is optional in a SplatFolder.
    if not folder.cameras or not photo_path.is_dir():
        missing = f"{photo_path} is not a folder" if folder.cameras else f"{folder.folder} has no cameras.json"
        msg = f"{missing}: use -s to pass the folder that the model was trained from (images/ and sparse/)"
        raise SplatFolderError(msg)
    options = options or PhotoOptions()
    photo_folder = PhotoFolder(photo_path)
    mask_folder = _mask_folder(masks)
    usable = check_photos(
        [_candidate(camera.name, photo_folder, mask_folder) for camera in folder.cameras],
        skip=options.skip_unreadable,
        leave_out=options.leave_out,
        most_decoded=options.most_decoded,
        source=f"the splats in {folder.folder}",
        where=photo_folder.holds,
    )
    views = [
        PosedPhoto(
            # cameras.json has names without extension; the file name restores it.
            name=photo.path.relative_to(photo_path).as_posix(),
            path=photo.path,
            lens=_lens(camera),
            world_from_camera=camera.world_from_camera,
            mask=photo.mask,
            transparent=photo.transparent,
            blank=photo.blank,
        )
        for camera in folder.cameras
        if (photo := usable.photos.get(camera.name)) is not None
    ]
    # 3D Gaussian splatting copies the initial points there.
    initial_points = folder.folder / "input.ply"
    points, colors = read_point_ply(initial_points) if initial_points.is_file() else no_points()
    return assemble(
        views,
        options,
        points=points,
        colors=colors,
        source=str(folder.folder),
        notes=usable.notes,
        left_out=usable.left_out,
    )


def _mask_folder(masks: Path | str | None) -> PhotoFolder | None:
    if masks is None:
        return None
    path = Path(masks).expanduser()
    if not path.is_dir():
        raise SplatFolderError(f"{path} is not a folder: pass the folder of the masks, or omit it to use every pixel")
    return PhotoFolder(path)


def _candidate(name: str, photos: PhotoFolder, masks: PhotoFolder | None) -> PhotoCandidate:
    path = photos.find(name)
    if masks is None or path is None:
        return PhotoCandidate(name=name, path=path)
    # COLMAP names masks after the photo with its extension, which cameras.json lacks.
    return PhotoCandidate(name=name, path=path, mask=masks.find_mask(path.relative_to(photos.folder).as_posix()))


def _lens(camera: Camera) -> Lens:
    lens = (camera.fx, camera.fy, camera.cx, camera.cy)
    return Lens.of("PINHOLE", camera.width, camera.height, lens)
