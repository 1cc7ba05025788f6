"""Write a photo set as a COLMAP folder, the input format of most splat trainers."""

from pathlib import Path

from PIL import Image

from fieldwatch.files import output_names, output_path, whole_file
from fieldwatch.recon.data.colmap.binary import write_cameras, write_images, write_points
from fieldwatch.recon.data.photos import PhotoSet
from fieldwatch.recon.geometry import Camera, Lens, matrix_to_quaternion


def write_colmap(folder: Path | str, photos: PhotoSet) -> Path:
    """Write photos (PNG), masks, pinhole cameras and points. Tracks and observations are left empty.

    Args:
        folder: destination, created if missing. Receives `images/`, `sparse/0/` and, if there are masks, `masks/`.
        photos: photos to write. Their names become file names with the extension `.png`, see `output_names`.
    """
    folder = Path(folder)
    sparse = output_path(folder, "sparse", "0")
    names = output_names(photos.names, ".png", drop_suffix=True)
    lenses: dict[int, Lens] = {}
    images: list[tuple[int, str, int, list[float]]] = []
    camera_ids: dict[Lens, int] = {}
    for name, photo in zip(names, photos, strict=True):
        lens = _lens(photo.camera)
        # Photos with equal intrinsics share one camera, as COLMAP does with a single calibration.
        camera_id = camera_ids.setdefault(lens, len(camera_ids) + 1)
        lenses[camera_id] = lens
        # COLMAP's ids begin at 1.
        images.append((photo.index + 1, name, camera_id, _pose(photo.camera)))
        _save(Image.fromarray(photo.image.numpy()), output_path(folder, "images", name))
        if photo.mask is not None:
            _save(Image.fromarray(photo.mask.numpy()), output_path(folder, "masks", f"{name}.png"))
    write_cameras(sparse / "cameras.bin", lenses)
    write_images(sparse / "images.bin", images)
    write_points(sparse / "points3D.bin", photos.points, photos.colors)
    return folder


def _lens(camera: Camera) -> Lens:
    lens = (camera.fx, camera.fy, camera.cx, camera.cy)
    return Lens.of("PINHOLE", camera.width, camera.height, lens)


def _pose(camera: Camera) -> list[float]:
    """Return the quaternion (w, x, y, z) and translation of `camera_from_world`."""
    motion = camera.camera_from_world.double()
    return [*matrix_to_quaternion(motion[:3, :3]).tolist(), *motion[:3, 3].tolist()]


def _save(image: Image.Image, path: Path) -> None:
    with whole_file(path) as draft:
        image.save(draft, "PNG")
