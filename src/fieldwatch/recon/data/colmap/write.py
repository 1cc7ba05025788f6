"""A set of photos as a COLMAP folder, which every splat trainer reads."""

from pathlib import Path

from PIL import Image

from fieldwatch.files import output_names, output_path, whole_file
from fieldwatch.recon.data.colmap.binary import write_cameras, write_images, write_points
from fieldwatch.recon.data.photos import PhotoSet
from fieldwatch.recon.geometry import Camera, Lens, matrix_to_quaternion


def write_colmap(folder: Path | str, photos: PhotoSet) -> Path:
    """Write photos (PNG), masks, pinhole cameras and points; tracks and observations stay empty.

    Args:
        folder: made if it does not exist; gets `images/`, `sparse/0/` and, where there are masks, `masks/`.
        photos: names become those of files, with the extension `.png`, see `output_names`.
    """
    folder = Path(folder)
    sparse = output_path(folder, "sparse", "0")
    names = output_names(photos.names, ".png", drop_suffix=True)
    lenses: dict[int, Lens] = {}
    images: list[tuple[int, str, int, list[float]]] = []
    numbers: dict[Lens, int] = {}
    for name, photo in zip(names, photos, strict=True):
        lens = _lens(photo.camera)
        camera = numbers.setdefault(lens, len(numbers) + 1)
        lenses[camera] = lens
        images.append((photo.index + 1, name, camera, _pose(photo.camera)))
        _save(Image.fromarray(photo.image.numpy()), output_path(folder, "images", name))
        if photo.mask is not None:
            _save(Image.fromarray(photo.mask.numpy()), output_path(folder, "masks", f"{name}.png"))
    write_cameras(sparse / "cameras.bin", lenses)
    write_images(sparse / "images.bin", images)
    write_points(sparse / "points3D.bin", photos.points, photos.colours)
    return folder


def _lens(camera: Camera) -> Lens:
    lens = (camera.fx, camera.fy, camera.cx, camera.cy)
    return Lens.of("PINHOLE", camera.width, camera.height, lens)


def _pose(camera: Camera) -> list[float]:
    """w, x, y, z and the translation of `camera_from_world`."""
    motion = camera.camera_from_world.double()
    return [*matrix_to_quaternion(motion[:3, :3]).tolist(), *motion[:3, 3].tolist()]


def _save(image: Image.Image, path: Path) -> None:
    with whole_file(path) as draft:
        image.save(draft, "PNG")
