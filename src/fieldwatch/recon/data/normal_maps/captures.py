"""Read custom captures: normal maps and masks of photos registered by COLMAP."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from fieldwatch.recon.data.colmap import ColmapModel, RegisteredImage, SparsePoints, binary, read_colmap_model, text
from fieldwatch.recon.data.image_names import IMAGE_SUFFIXES, natural_key
from fieldwatch.recon.data.normal_maps.assembly import REACH, ReadOptions, ViewFiles, assembled, read_maps
from fieldwatch.recon.data.normal_maps.axes import AXES, Channels, Choices, Convention, PixelCenter, Space
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.folder import stated_axes
from fieldwatch.recon.data.normal_maps.layout import NORMAL_FOLDERS, subfolder, view_of_maps
from fieldwatch.recon.data.normal_maps.map_files import MASK_SUFFIXES, NORMAL_SUFFIXES, NormalFile
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.geometry import Camera, Lens

# Tried in this order; the first folder that contains a model is used.
MODEL_FOLDERS = ("sparse/0", "sparse", ".", "dense/sparse", "colmap/sparse/0")
_NUMBER = re.compile(r"(\d+)$")
_SHAPE_TOLERANCE = 1.0  # pixels of rounding when the aspect ratios of maps and photos are compared


@dataclass(frozen=True, kw_only=True)
class _CaptureFiles:
    """Files and pose of one view."""

    name: str
    normals: Path | None
    mask: Path | None
    image: RegisteredImage


def read_normal_captures(  # noqa: PLR0913 - independent options of the folder layout
    folder: Path | str,
    *,
    normals: str | None = None,
    masks: str | None = None,
    sparse: str | None = None,
    axes: str | None = None,
    space: Space | None = None,
    channels: Channels | None = None,
    pixel_center: PixelCenter | None = None,
    ratio: float = REACH,
    exclude: Sequence[str | int] = (),
    fill_holes: bool = False,
) -> NormalSet:
    """Read normal maps and masks of photos registered by COLMAP, and determine the object's unit sphere.

    Files are matched to photos by name: `normals/IMG_7.npy` and `masks/IMG_7.png` (or `IMG_7.jpg.png`, COLMAP's
    convention) belong to `IMG_7.jpg` of the model, in the same subfolder if there are any. The camera frame has the
    axes of the model; its unit sphere is scaled to the ball that encloses the visual hull of the masks.
    `world_from_unit` transforms back to model coordinates. Maps may have another size than the photos with the same
    aspect ratio.

    Args:
        folder: folder that contains normals, masks and the model.
        normals: folder of normals; None uses the first existing one of `normals`, `normal`, ...
        masks: folder of masks, `normals` for the pixels that have one, or `none`; None uses `mask` or `masks` if there
            are any, else the pixels with a normal.
        sparse: folder of the sparse model, binary or text, with or without points; None uses the first existing one of
            `sparse/0`, `sparse`, ...
        axes: axes of the normals, as of `read_normal_maps`; None or `auto` finds them from the data.
        space: whether normals are in camera or world axes; None finds it.
        channels: `rgb` or `bgr`; None finds it.
        pixel_center: `half` (COLMAP's convention) or `whole`; None finds it.
        ratio: distance that the hull reaches from the origin of the unit sphere, greater than 0 and at most 1.
        exclude: photos to leave out, by name with or without extension, or by the number at the end of their names.
        fill_holes: whether to add holes of the masks that contain normals to the masks.

    Raises:
        NormalMapError: if a file is missing, ambiguous, unreadable or does not have the aspect ratio of its photo, a
            lens has distortion, or the masks have no common point.
        ColmapError: if there is no model or it is damaged.
    """
    folder = Path(folder).expanduser()
    notes = list[str]()
    choices = Choices(axes=stated_axes(axes), space=space, channels=channels, pixel_center=pixel_center)
    reading = ReadOptions(choices=choices, masks=masks, fill_holes=fill_holes, ratio=ratio)
    mask_folder = reading.mask_folder(folder, notes)
    normal_folder = None
    if normals is not None or mask_folder is None or any((folder / name).is_dir() for name in NORMAL_FOLDERS):
        normal_folder = subfolder(folder, (normals,) if normals else NORMAL_FOLDERS, "normals", notes)
    model_path = model_folder(folder, sparse)
    model = _read_model(model_path)
    captures = _matched_files(folder, normal_folder, mask_folder, model, exclude)
    read = [_view(capture, model.lenses[capture.image.camera_id], model_path, notes) for capture in captures]
    result = assembled(
        [view for view, _ in read],
        [file for _, file in read],
        reading,
        Convention(axes=AXES["opengl"]),
        folder=folder,
        masks=mask_folder,
        notes=notes,
        points=model.points.positions,
    )
    return replace(result, notes=tuple(_counted(result.notes)))


def model_folder(folder: Path, sparse: str | None = None) -> Path:
    """Return the folder of the sparse model: `sparse`, or the first common location that has a model.

    Raises:
        NormalMapError: if there is no model.
    """
    names = (sparse,) if sparse else MODEL_FOLDERS
    candidates = [folder / name for name in names if has_model(folder / name)]
    if not candidates:
        msg = (
            f"no COLMAP model in {folder}: expected cameras, images and points3D as .bin or .txt in "
            f"{' or '.join(names)}; copy the model there, or set sparse to its folder"
        )
        raise NormalMapError(msg)
    return candidates[0]


def has_model(folder: Path) -> bool:
    """Return whether a folder contains the cameras and images of a sparse model."""
    return any(all((folder / f"{n}.{end}").is_file() for n in ("cameras", "images")) for end in ("bin", "txt"))


def _read_model(folder: Path) -> ColmapModel:
    """Read a model with or without points, which models of externally calibrated cameras lack.

    Raises:
        NormalMapError: if the model has no photos, or a photo refers to a missing camera.
        ColmapError: if a file is damaged.
    """
    # Like COLMAP, prefer binary files if both formats exist.
    ending = "bin" if (folder / "cameras.bin").is_file() else "txt"
    if _has_points(folder / f"points3D.{ending}"):
        return read_colmap_model(folder)
    files = binary if ending == "bin" else text
    lenses = files.read_cameras(folder / f"cameras.{ending}")
    images = files.read_images(folder / f"images.{ending}")
    orphans = [image.name for image in images if image.camera_id not in lenses]
    if orphans or not images:
        problem = f"the cameras of {_listed(orphans)} are missing" if orphans else "it has no photos"
        msg = f"COLMAP model {folder} is incomplete: {problem}; copy cameras and images from the same model"
        raise NormalMapError(msg)
    # The points are only used for a note, so models without them are fine.
    nothing = torch.zeros(0, dtype=torch.int64)
    points = SparsePoints(
        positions=torch.zeros(0, 3, dtype=torch.float64),
        colors=torch.zeros(0, 3, dtype=torch.uint8),
        errors=torch.zeros(0, dtype=torch.float64),
        track_points=nothing,
        track_images=nothing,
    )
    return ColmapModel(lenses=lenses, images=tuple(images), points=points)


def _has_points(path: Path) -> bool:
    """Return whether a points3D file exists and contains points."""
    if not path.is_file():
        return False
    if path.suffix == ".bin":
        # A binary file begins with the number of points as eight bytes.
        with path.open("rb") as file:
            return file.read(8) != bytes(8)
    with path.open(encoding="utf-8", errors="replace") as lines:
        return any(line.strip() and not line.startswith("#") for line in lines)


def _matched_files(
    folder: Path,
    normal_folder: Path | None,
    mask_folder: Path | None,
    model: ColmapModel,
    exclude: Sequence[str | int],
) -> list[_CaptureFiles]:
    """Match normals, masks and photos by name; return them in natural order.

    Raises:
        NormalMapError: if a file is missing or ambiguous.
    """
    normals = files_by_name(normal_folder, NORMAL_SUFFIXES)
    masks = files_by_name(mask_folder, MASK_SUFFIXES)
    # Maps without subfolders are matched by the file name of the photo alone.
    flat = not any("/" in name for name in (*normals, *masks))
    images = _images(model, flat=flat)
    known = set(normals) | set(masks) | set(images)
    excluded = excluded_names(known, exclude, folder)
    names_by_source: dict[str, dict[str, Any]] = {"the COLMAP model": images}
    for place, files in ((normal_folder, normals), (mask_folder, masks)):
        names_by_source |= {} if place is None else {f"{place.name}/": files}
    # All problems are collected, so that one error reports every missing file.
    lacks = {
        source: sorted(known - excluded - set(names), key=natural_key) for source, names in names_by_source.items()
    }
    if wrong := [f"{source} lacks {_listed(names)}" for source, names in lacks.items() if names]:
        msg = (
            f"{folder}: every photo needs normals, a mask and a pose, but {'; '.join(wrong)}; files are matched by "
            "the name of the photo: add the missing files, or leave these photos out (--exclude NAME ...)"
        )
        raise NormalMapError(msg)
    used = sorted(known - excluded, key=natural_key)
    if not used:
        msg = f"{folder}: all {len(known)} photos with normals, mask and pose are left out: exclude fewer"
        raise NormalMapError(msg)
    # View names are used as file names, so they must not contain slashes.
    return [
        _CaptureFiles(name=n.replace("/", "_"), normals=normals.get(n), mask=masks.get(n), image=images[n])
        for n in used
    ]


def files_by_name(folder: Path | None, suffixes: frozenset[str]) -> dict[str, Path]:
    """Return the files in a folder and its subfolders by photo name without extension; none without a folder."""
    paths = dict[str, Path]()
    if folder is None:
        return paths
    for path in sorted(folder.rglob("*")):
        # macOS writes hidden "._" files next to the real ones on other file systems.
        if path.suffix.lower() not in suffixes or path.name.startswith("."):
            continue
        name = photo_name(path.relative_to(folder).with_suffix("").as_posix())
        if name in paths:
            msg = f"{paths[name]} and {path} both belong to photo {name!r}: remove or rename one of them"
            raise NormalMapError(msg)
        paths[name] = path
    return paths


def _images(model: ColmapModel, *, flat: bool) -> dict[str, RegisteredImage]:
    """Return the photos of a model by name without extension; if `flat`, also without subfolders."""
    images = dict[str, RegisteredImage]()
    for image in model.images:
        # Models written on Windows have backslashes.
        name = photo_name(image.name.replace("\\", "/").removeprefix("./"))
        name = PurePosixPath(name).name if flat else name
        if name in images:
            msg = (
                f"photos {images[name].name!r} and {image.name!r} of the COLMAP model both match maps named "
                f"{name!r}: put the maps into the same subfolders as the photos, or remove one photo from the model"
            )
            raise NormalMapError(msg)
        images[name] = image
    return images


def photo_name(name: str) -> str:
    """Return a name without the suffix of a picture."""
    path = PurePosixPath(name)
    return path.with_suffix("").as_posix() if path.suffix.lower() in IMAGE_SUFFIXES else name


def excluded_names(known: set[str], exclude: Sequence[str | int], folder: Path) -> set[str]:
    """Return the names of the photos to leave out, stated by name or number.

    Raises:
        NormalMapError: if a photo does not exist, or several have the number.
    """
    excluded = set[str]()
    for wanted in exclude:
        if isinstance(wanted, int):
            matches = {name for name in known if (match := _NUMBER.search(name)) and int(match[1]) == wanted}
        else:
            matches = {photo_name(wanted)} & known
        if len(matches) != 1:
            problem = "several photos have" if matches else "no photo has"
            choices = _listed(sorted(matches or known, key=natural_key))
            msg = f"{folder}: cannot leave out {wanted!r}: {problem} this name or number; choose from {choices}"
            raise NormalMapError(msg)
        excluded |= matches
    return excluded


def _view(
    capture: _CaptureFiles, lens: Lens, model_path: Path, notes: list[str]
) -> tuple[NormalView, NormalFile | None]:
    """Read one view, with its camera in model coordinates."""
    if lens.distorts:
        msg = (
            f"{model_path}: photo {capture.image.name!r} has a {lens.model} lens with distortion, but normal maps "
            "require pinhole cameras: run 'colmap image_undistorter', create normals and masks for the photos in its "
            "images/, and use its sparse/"
        )
        raise NormalMapError(msg)
    return posed_view(
        ViewFiles(normals=capture.normals, mask=capture.mask),
        Camera(
            name=capture.name,
            width=lens.width,
            height=lens.height,
            fx=lens.fx,
            fy=lens.fy,
            cx=lens.cx,
            cy=lens.cy,
            world_from_camera=capture.image.world_from_camera,
        ),
        f"its photo {capture.image.name!r}",
        notes,
    )


def posed_view(files: ViewFiles, camera: Camera, photo: str, notes: list[str]) -> tuple[NormalView, NormalFile | None]:
    """Read the maps of a view, and resize its camera and mask to the normals.

    Args:
        files: files of the view.
        camera: camera of the photo.
        photo: name of the photo, for messages.
        notes: notes about the reading.

    Raises:
        NormalMapError: if a file is unreadable or has another aspect ratio than the photo.
    """
    normals, mask = read_maps(files)
    shape = mask.shape if normals is None else normals.not_finite.shape
    height = int(shape[0])
    width = int(shape[1])
    first = files.normals or files.mask
    assert first is not None  # noqa: S101  one of them was read
    _same_shape(first, (width, height), photo, (camera.width, camera.height))
    if mask.shape != (height, width) and files.mask is not None:
        _same_shape(files.mask, (mask.shape[1], mask.shape[0]), str(first), (width, height))
        mask = _resampled(mask, height, width)
        notes.append("masks were resized to their normals")
    if (camera.width, camera.height) != (width, height):
        notes.append("maps differ in size from their photos; their cameras were resized")
    # The intrinsics refer to the photo; `resized` adapts them to the maps.
    return view_of_maps(camera.resized(width, height), normals, mask), normals


def _same_shape(path: Path, size: tuple[int, int], other: str, other_size: tuple[int, int]) -> None:
    """Check that two maps have the same aspect ratio, so that neither was cropped, rotated or squeezed.

    Raises:
        NormalMapError: if the aspect ratios differ.
    """
    width, height = size
    other_width, other_height = other_size
    if abs(width * other_height - height * other_width) > _SHAPE_TOLERANCE * max(other_width, other_height):
        msg = (
            f"{path} is {width}x{height} and {other} is {other_width}x{other_height} (width x height), a different "
            "aspect ratio: create the map from the whole photo, with equal scale in both directions"
        )
        raise NormalMapError(msg)


def _resampled(mask: Bool[Tensor, "h w"], height: int, width: int) -> Bool[Tensor, "height width"]:
    """Resize a mask; a pixel is inside if more than half of its area is."""
    coverage = torch.nn.functional.interpolate(mask[None, None].float(), (height, width), mode="area")
    return coverage[0, 0] > 0.5


def _counted(notes: Iterable[str]) -> list[str]:
    """Merge equal notes of several views into one note with their number."""
    return [note if number == 1 else f"{note} ({number} views)" for note, number in Counter(notes).items()]


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:8])
    return f"{listed}, ... ({len(names)})" if len(names) > 8 else listed
