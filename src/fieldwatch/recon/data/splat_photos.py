"""Photos for a trained splat model that comes without its COLMAP folder: cameras from `cameras.json`."""

from pathlib import Path

from fieldwatch.recon.data.gaussians import SplatFolder, SplatFolderError, read_point_ply
from fieldwatch.recon.data.photos import (
    Candidate,
    PhotoOptions,
    PhotoSet,
    PictureFolder,
    View,
    assemble,
    no_points,
    sift_photos,
)
from fieldwatch.recon.geometry import Camera, Lens


def read_splat_photos(folder: SplatFolder, images: Path | str, options: PhotoOptions | None = None) -> PhotoSet:
    """Read the photos that a splat model was trained on, with the cameras that its run left.

    Prefer the COLMAP folder where it is at hand: the cameras of other trainers' runs have lost their principal points,
    which are taken to be in the centre. The points are those the run began with (`input.ply`), if it kept them.

    Args:
        folder: of the run.
        images: folder of its photos; smaller copies are fine.
        options: how photos are read.

    Raises:
        SplatFolderError: the run left no cameras, or there is no folder of photos.
        PhotoError: photos are missing, unreadable, or of another shape than their cameras.
    """
    place = Path(images).expanduser()
    if not folder.cameras or not place.is_dir():
        lacking = f"{place} is no folder" if folder.cameras else f"{folder.folder} has no cameras.json"
        msg = f"{lacking}: give the folder that the model was trained from with -s (images/ and sparse/)"
        raise SplatFolderError(msg)
    options = options or PhotoOptions()
    pictures = PictureFolder(place)
    sifted = sift_photos(
        [Candidate(name=camera.name, path=pictures.find(camera.name)) for camera in folder.cameras],
        skip=options.skip_unreadable,
        leave_out=options.leave_out,
        source=f"the splats in {folder.folder}",
        where=pictures.holds,
    )
    views = [
        View(
            name=photo.path.relative_to(place).as_posix(),
            path=photo.path,
            lens=_lens(camera),
            world_from_camera=camera.world_from_camera,
            transparent=photo.transparent,
        )
        for camera in folder.cameras
        if (photo := sifted.photos.get(camera.name)) is not None
    ]
    first = folder.folder / "input.ply"
    points, colours = read_point_ply(first) if first.is_file() else no_points()
    return assemble(
        views,
        options,
        points=points,
        colours=colours,
        source=str(folder.folder),
        notes=sifted.notes,
        left_out=sifted.left_out,
    )


def _lens(camera: Camera) -> Lens:
    lens = (camera.fx, camera.fy, camera.cx, camera.cy)
    return Lens.of("PINHOLE", camera.width, camera.height, lens)
