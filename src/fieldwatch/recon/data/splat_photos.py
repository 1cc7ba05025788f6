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


def read_splat_photos(folder: SplatFolder, images: Path | str, options: PhotoOptions | None = None) -> PhotoSet:
    """Read the photos that a splat model was trained on, with the cameras stored in its run folder.

    Prefer the COLMAP folder if it is available: other trainers do not store principal points, which are then assumed
    to be at the image center. The points are the initial points of the run (`input.ply`), if it kept them.

    Args:
        folder: run folder.
        images: folder of the photos; downscaled copies are fine.
        options: size, split and background of the photos.

    Raises:
        SplatFolderError: if the run folder has no cameras, or the photo folder does not exist.
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
    usable = check_photos(
        [PhotoCandidate(name=camera.name, path=photo_folder.find(camera.name)) for camera in folder.cameras],
        skip=options.skip_unreadable,
        leave_out=options.leave_out,
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
            transparent=photo.transparent,
        )
        for camera in folder.cameras
        if (photo := usable.photos.get(camera.name)) is not None
    ]
    # 3D Gaussian splatting copies the initial points there.
    initial_points = folder.folder / "input.ply"
    points, colours = read_point_ply(initial_points) if initial_points.is_file() else no_points()
    return assemble(
        views,
        options,
        points=points,
        colours=colours,
        source=str(folder.folder),
        notes=usable.notes,
        left_out=usable.left_out,
    )


def _lens(camera: Camera) -> Lens:
    lens = (camera.fx, camera.fy, camera.cx, camera.cy)
    return Lens.of("PINHOLE", camera.width, camera.height, lens)
