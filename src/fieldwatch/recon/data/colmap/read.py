"""Read a COLMAP scene for training: model, photos, masks and split."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwatch.recon.data.colmap import binary, text
from fieldwatch.recon.data.colmap.error import ColmapError
from fieldwatch.recon.data.colmap.model import ColmapModel, SparsePoints
from fieldwatch.recon.data.photos import (
    PhotoCandidate,
    PhotoFolder,
    PhotoOptions,
    PhotoSet,
    PosedPhoto,
    UsablePhotos,
    assemble,
    check_photos,
    shortened,
)

# Layouts of COLMAP, a bare model, 3DGS' convert.py, Nerfstudio and COLMAP's dense workspace, tried in this order.
_MODEL_FOLDERS = ("sparse/0", "sparse", ".", "distorted/sparse/0", "colmap/sparse/0", "dense/sparse")
_PHOTO_FOLDERS = ("images", "input", "rgb", "photos")
_FILES = ("cameras", "images", "points3D")


def read_colmap_model(folder: Path | str) -> ColmapModel:
    """Read a sparse model: cameras, images and points3D as `.bin` or `.txt` files in `folder`.

    Raises:
        ColmapError: if a file is missing or damaged, no photo was registered, or a camera model is unknown.
    """
    folder = Path(folder)
    ending = _ending(folder)
    missing = [f"{name}.{ending}" for name in _FILES if not (folder / f"{name}.{ending}").is_file()]
    if missing:
        msg = f"COLMAP model {folder} is missing {', '.join(missing)}: copy all three files of the model there"
        raise ColmapError(msg)
    files = binary if ending == "bin" else text
    cameras, images, points = (folder / f"{name}.{ending}" for name in _FILES)
    lenses = files.read_cameras(cameras)
    registered = files.read_images(images)
    if not registered:
        msg = (
            f"{images} contains no registered photos: the reconstruction failed; take photos that overlap more and "
            "run COLMAP again"
        )
        raise ColmapError(msg)
    # Mixing files of two models is a common mistake after copying.
    orphans = [image for image in registered if image.camera_id not in lenses]
    if orphans:
        msg = (
            f"photo {orphans[0].name!r} in {images} refers to camera {orphans[0].camera_id}, but {cameras.name} only "
            f"has cameras {sorted(lenses)}: the files belong to different models; copy all three from one model"
        )
        raise ColmapError(msg)
    return ColmapModel(lenses=lenses, images=tuple(registered), points=files.read_points(points))


def read_colmap_observations(folder: Path | str, most: int = 200) -> dict[int, NDArray[np.float64]]:
    """Read where the photos of a sparse model observe its points.

    Args:
        folder: folder of the model.
        most: largest number of observations per photo; more are thinned evenly.

    Returns:
        By the id of the photo, rows of x and y in pixels and the id of the point; no rows in models without them.

    Raises:
        ColmapError: if the file is damaged.
    """
    ending = _ending(Path(folder))
    files = binary if ending == "bin" else text
    return files.read_observations(Path(folder) / f"images.{ending}", most)


def read_colmap(
    folder: Path | str,
    options: PhotoOptions | None = None,
    *,
    images: Path | str | None = None,
    masks: Path | str | None = None,
) -> PhotoSet:
    """Read a COLMAP scene: photos, cameras and points, undistorted, resized and split.

    Points seen only by held-out photos are dropped, so no information about those photos leaks into training.

    Args:
        folder: scene folder with `images` and `sparse/0` (or `sparse`, or the model files themselves).
        options: size, split and background of the photos.
        images: photo folder to use instead of `images`, relative to `folder` or absolute. Downscaled copies are fine.
        masks: mask folder to use instead of `masks`, which is used if it exists. Black pixels are excluded from
            training.

    Raises:
        ColmapError: if there is no model, or it is damaged or has no photos.
        PhotoError: if photos are missing, unreadable, or do not have the aspect ratio of their cameras.
    """
    folder = Path(folder).expanduser()
    options = options or PhotoOptions()
    model_folder, notes = _find_model(folder)
    model = read_colmap_model(model_folder)
    photo_folder = PhotoFolder(_photo_folder(folder, images))
    mask_folder = _mask_folder(folder, masks)
    candidates = [
        PhotoCandidate(
            name=i.name,
            path=photo_folder.find(i.name),
            mask=None if mask_folder is None else mask_folder.find_mask(i.name),
        )
        for i in model.images
    ]
    usable = check_photos(
        candidates,
        skip=options.skip_unreadable,
        leave_out=options.leave_out,
        most_decoded=options.most_decoded,
        source=f"model {model_folder}",
        where=photo_folder.holds,
    )
    notes += usable.notes
    unused = photo_folder.unused(candidate.path for candidate in candidates if candidate.path is not None)
    if unused:
        notes.append(f"{len(unused)} photos are not part of the model and are ignored: {shortened(unused)}")
    photos = assemble(
        _views(model, usable),
        options,
        points=model.points.positions.float(),
        colors=model.points.colors,
        source=str(folder),
        left_out=usable.left_out,
    )
    return _without_held_out_points(photos, model, notes)


def _views(model: ColmapModel, usable: UsablePhotos) -> list[PosedPhoto]:
    """Return path, lens and pose of every usable photo."""
    return [
        PosedPhoto(
            name=image.name,
            path=photo.path,
            lens=model.lenses[image.camera_id],
            world_from_camera=image.world_from_camera,
            mask=photo.mask,
            transparent=photo.transparent,
            blank=photo.blank,
        )
        for image in model.images
        if (photo := usable.photos.get(image.name)) is not None
    ]


def _without_held_out_points(photos: PhotoSet, model: ColmapModel, notes: list[str]) -> PhotoSet:
    image_ids = {image.name: image.image_id for image in model.images}
    names = photos.names
    keep = _observed_by(model.points, [image_ids[names[i]] for i in photos.train])
    if not len(keep):
        notes.append(f"{photos.source} has no points: Gaussians must be initialized from random points")
    if not keep.all():
        notes.append(f"{int((~keep).sum())} of {len(keep)} points are left out: no training photo sees them")
    return photos.having(points=photos.points[keep], colors=photos.colors[keep], notes=(*notes, *photos.notes))


def _observed_by(points: SparsePoints, image_ids: list[int]) -> torch.Tensor:
    """Return a mask of the points that at least one of these photos sees; all points in a model without tracks."""
    # Models written by other tools have no tracks, so every point is kept.
    if not len(points.track_images):
        return torch.ones(len(points.positions), dtype=torch.bool)
    # A point observed only by held-out photos would leak their geometry into training.
    training = torch.isin(points.track_images, torch.tensor(image_ids))
    observed = torch.zeros(len(points.positions), dtype=torch.bool)
    observed[points.track_points[training]] = True
    return observed


def _ending(folder: Path) -> str:
    # Binary files take precedence, as in COLMAP; without any files, errors mention the .bin names.
    return "bin" if (folder / "cameras.bin").is_file() or not (folder / "cameras.txt").is_file() else "txt"


def _find_model(folder: Path) -> tuple[Path, list[str]]:
    """Return the model folder; of several (`sparse/0`, `sparse/1`), the one with the largest images file."""
    if not folder.is_dir():
        msg = f"{folder} is not a folder: pass the folder that contains images/ and sparse/, as written by COLMAP"
        raise ColmapError(msg)
    # COLMAP numbers the components of a disconnected reconstruction. File size approximates the number of photos.
    models = [path for path in sorted((folder / "sparse").glob("*")) if path.is_dir() and _has_model(path)]
    if len(models) > 1:
        best = max(models, key=lambda path: (path / f"images.{_ending(path)}").stat().st_size)
        return best, [f"using the largest of {len(models)} models in {folder / 'sparse'}: {best.name}"]
    for name in _MODEL_FOLDERS:
        if _has_model(folder / name):
            return folder / name, []
    entries = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    msg = (
        f"no COLMAP model in {folder}: expected cameras, images and points3D as .bin or .txt in sparse/0, found: "
        f"{entries}; pass the folder that contains images/ and sparse/, or find cameras for the photos with "
        "`fieldwatch data photos FOLDER -o scene`"
    )
    raise ColmapError(msg)


def _has_model(folder: Path) -> bool:
    return any((folder / f"{name}.{ending}").is_file() for name in ("cameras", "images") for ending in ("bin", "txt"))


def _photo_folder(folder: Path, images: Path | str | None) -> Path:
    if images is not None:
        chosen = folder / images
        if chosen.is_dir():
            return chosen
        msg = f"{chosen} is not a folder: pass the folder of the photos that {folder} was reconstructed from"
        raise ColmapError(msg)
    # Photos may also be in the scene folder itself.
    return next((folder / name for name in _PHOTO_FOLDERS if (folder / name).is_dir()), folder)


def _mask_folder(folder: Path, masks: Path | str | None) -> PhotoFolder | None:
    # The default folder is optional, an explicit one must exist.
    chosen = folder / (masks or "masks")
    if masks is not None and not chosen.is_dir():
        msg = f"{chosen} is not a folder: pass the folder of the masks, or omit it to use every pixel"
        raise ColmapError(msg)
    return PhotoFolder(chosen) if chosen.is_dir() else None
