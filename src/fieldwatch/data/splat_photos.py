"""Photos for a trained splat model that comes without its COLMAP folder: cameras from `cameras.json`."""

from pathlib import Path

from fieldwatch.data.gaussians import SplatFolder, SplatFolderError, read_point_ply
from fieldwatch.data.photos import PhotoOptions, PhotoSet, PictureFolder, View, assemble, no_points
from fieldwatch.geometry import Camera, Lens


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
    paths = PictureFolder(place).find_all(camera.name for camera in folder.cameras)
    views = [
        View(
            name=paths[camera.name].relative_to(place).as_posix(),
            path=paths[camera.name],
            lens=_lens(camera),
            world_from_camera=camera.world_from_camera,
        )
        for camera in folder.cameras
    ]
    first = folder.folder / "input.ply"
    points, colours = read_point_ply(first) if first.is_file() else no_points()
    return assemble(views, options or PhotoOptions(), points=points, colours=colours, source=str(folder.folder))


def _lens(camera: Camera) -> Lens:
    lens = (camera.fx, camera.fy, camera.cx, camera.cy)
    return Lens.of("PINHOLE", camera.width, camera.height, lens)
