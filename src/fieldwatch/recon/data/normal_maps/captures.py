"""Read custom captures: normal maps and masks of photos registered by COLMAP."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.data.colmap import ColmapModel, RegisteredImage, SparsePoints, binary, read_colmap_model, text
from fieldwatch.recon.data.image_names import IMAGE_SUFFIXES, natural_key
from fieldwatch.recon.data.normal_maps.enclosing_ball import EnclosingBall, cut_masks, object_ball, refuse_black
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.layout import (
    MASK_FOLDERS,
    MESH,
    NORMAL_FOLDERS,
    Axes,
    holes_filled,
    in_opencv,
    subfolder,
    view_of_maps,
)
from fieldwatch.recon.data.normal_maps.map_files import MASK_SUFFIXES, NORMAL_SUFFIXES, read_mask_file, read_normal_file
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.geometry import Camera, Lens

REACH = 0.8
"""Default distance that the visual hull of custom captures reaches from the origin of the unit sphere."""

# Tried in this order; the first folder that contains a model is used.
MODEL_FOLDERS = ("sparse/0", "sparse", ".", "dense/sparse", "colmap/sparse/0")
_NUMBER = re.compile(r"(\d+)$")
_ON_OBJECT_SHARE = 0.75  # fraction of the views whose masks must contain a sparse point of the object
_SHAPE_TOLERANCE = 1.0  # pixels of rounding when the aspect ratios of maps and photos are compared


@dataclass(frozen=True, kw_only=True)
class _CaptureFiles:
    """Files and pose of one view."""

    name: str
    normals: Path
    mask: Path
    image: RegisteredImage


def read_normal_captures(  # noqa: PLR0913 - independent options of the folder layout
    folder: Path | str,
    *,
    normals: str | None = None,
    masks: str | None = None,
    sparse: str | None = None,
    axes: Axes = "auto",
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
        normals: folder of camera-space normals; None uses the first existing one of `normals`, `normal`, ...
        masks: folder of masks; None uses `mask` or `masks`.
        sparse: folder of the sparse model, binary or text, with or without points; None uses the first existing one of
            `sparse/0`, `sparse`, ...
        axes: axes of the normals in the files; `auto` detects them by the sign of z.
        ratio: distance that the hull reaches from the origin of the unit sphere, greater than 0 and at most 1.
        exclude: photos to leave out, by name with or without extension, or by the number at the end of their names.
        fill_holes: whether to add holes of the masks that contain normals to the masks.

    Raises:
        NormalMapError: if a file is missing, ambiguous, unreadable or does not have the aspect ratio of its photo, a
            lens has distortion, the axes cannot be detected, or the masks have no common point.
        ColmapError: if there is no model or it is damaged.
    """
    folder = Path(folder).expanduser()
    notes = list[str]()
    if not 0 < ratio <= 1:
        msg = f"ratio, the extent of the object in the unit sphere, must be greater than 0 and at most 1, got {ratio}"
        raise NormalMapError(msg)
    normal_folder = subfolder(folder, (normals,) if normals else NORMAL_FOLDERS, "normals", notes)
    # Explicit names must exist, default names are tried in order.
    mask_folder = subfolder(folder, (masks,) if masks else MASK_FOLDERS, "masks", notes)
    model_path = model_folder(folder, sparse)
    model = _read_model(model_path)
    captures = _matched_files(folder, normal_folder, mask_folder, model, exclude)
    views = [_view(capture, model.lenses[capture.image.camera_id], model_path, notes) for capture in captures]
    # Black masks are reported here, since the steps below would fail on them with less specific errors.
    refuse_black(views)
    views = in_opencv(views, axes, folder, notes)
    if fill_holes:
        views = [holes_filled(view, notes) for view in views]
    ball = object_ball(views)
    notes += _object_notes(views, ball, model)
    # The radius of the enclosing ball becomes `ratio` in the unit frame.
    scale = ball.radius / ratio
    world_from_unit = torch.diag(torch.tensor([scale, scale, scale, 1.0], dtype=torch.float64))
    world_from_unit[:3, 3] = ball.center
    return NormalSet(
        views=tuple(_into_sphere(view, ball.center, scale) for view in views),
        world_from_unit=world_from_unit,
        mesh=folder / MESH if (folder / MESH).is_file() else None,
        source=str(folder),
        notes=tuple(_counted(notes)),
    )


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
    folder: Path, normal_folder: Path, mask_folder: Path, model: ColmapModel, exclude: Sequence[str | int]
) -> list[_CaptureFiles]:
    """Match normals, masks and photos by name; return them in natural order.

    Raises:
        NormalMapError: if a file is missing or ambiguous.
    """
    normals = _by_name(normal_folder, NORMAL_SUFFIXES)
    masks = _by_name(mask_folder, MASK_SUFFIXES)
    # Maps without subfolders are matched by the file name of the photo alone.
    flat = not any("/" in name for name in (*normals, *masks))
    images = _images(model, flat=flat)
    known = set(normals) | set(masks) | set(images)
    excluded = _excluded_names(known, exclude, folder)
    names_by_source = {f"{normal_folder.name}/": normals, f"{mask_folder.name}/": masks, "the COLMAP model": images}
    # All problems are collected, so that one error reports every missing file.
    lacks = {
        source: sorted(known - excluded - set(names), key=natural_key) for source, names in names_by_source.items()
    }
    if wrong := [f"{source} lacks {_listed(names)}" for source, names in lacks.items() if names]:
        msg = (
            f"{folder}: every photo needs normals, a mask and a pose, but {'; '.join(wrong)}; files are matched by "
            "the name of the photo: add the missing files, or leave these photos out (exclude)"
        )
        raise NormalMapError(msg)
    used = sorted(known - excluded, key=natural_key)
    if not used:
        msg = f"{folder}: all {len(known)} photos with normals, mask and pose are left out: exclude fewer"
        raise NormalMapError(msg)
    # View names are used as file names, so they must not contain slashes.
    return [_CaptureFiles(name=n.replace("/", "_"), normals=normals[n], mask=masks[n], image=images[n]) for n in used]


def _by_name(folder: Path, suffixes: frozenset[str]) -> dict[str, Path]:
    """Return the files in a folder and its subfolders by photo name without extension."""
    paths = dict[str, Path]()
    for path in sorted(folder.rglob("*")):
        # macOS writes hidden "._" files next to the real ones on other file systems.
        if path.suffix.lower() not in suffixes or path.name.startswith("."):
            continue
        name = _photo_name(path.relative_to(folder).with_suffix("").as_posix())
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
        name = _photo_name(image.name.replace("\\", "/").removeprefix("./"))
        name = PurePosixPath(name).name if flat else name
        if name in images:
            msg = (
                f"photos {images[name].name!r} and {image.name!r} of the COLMAP model both match maps named "
                f"{name!r}: put the maps into the same subfolders as the photos, or remove one photo from the model"
            )
            raise NormalMapError(msg)
        images[name] = image
    return images


def _photo_name(name: str) -> str:
    path = PurePosixPath(name)
    return path.with_suffix("").as_posix() if path.suffix.lower() in IMAGE_SUFFIXES else name


def _excluded_names(known: set[str], exclude: Sequence[str | int], folder: Path) -> set[str]:
    excluded = set[str]()
    for wanted in exclude:
        if isinstance(wanted, int):
            matches = {name for name in known if (match := _NUMBER.search(name)) and int(match[1]) == wanted}
        else:
            matches = {_photo_name(wanted)} & known
        if len(matches) != 1:
            problem = "several photos have" if matches else "no photo has"
            choices = _listed(sorted(matches or known, key=natural_key))
            msg = f"{folder}: cannot leave out {wanted!r}: {problem} this name or number; choose from {choices}"
            raise NormalMapError(msg)
        excluded |= matches
    return excluded


def _view(capture: _CaptureFiles, lens: Lens, model_path: Path, notes: list[str]) -> NormalView:
    """Read one view, with its camera in model coordinates."""
    if lens.distorts:
        msg = (
            f"{model_path}: photo {capture.image.name!r} has a {lens.model} lens with distortion, but normal maps "
            "require pinhole cameras: run 'colmap image_undistorter', create normals and masks for the photos in its "
            "images/, and use its sparse/"
        )
        raise NormalMapError(msg)
    normals = read_normal_file(capture.normals)
    mask = read_mask_file(capture.mask)
    height = int(normals.shape[0])
    width = int(normals.shape[1])
    _same_shape(capture.normals, (width, height), f"its photo {capture.image.name!r}", (lens.width, lens.height))
    if mask.shape != (height, width):
        _same_shape(capture.mask, (mask.shape[1], mask.shape[0]), str(capture.normals), (width, height))
        mask = _resampled(mask, height, width)
        notes.append("masks were resized to their normals")
    if (lens.width, lens.height) != (width, height):
        notes.append("maps differ in size from their photos; their cameras were resized")
    # COLMAP's intrinsics refer to the photo; `resized` below adapts them to the maps.
    intrinsics = {"fx": lens.fx, "fy": lens.fy, "cx": lens.cx, "cy": lens.cy}
    pose = capture.image.world_from_camera
    camera = Camera(name=capture.name, width=lens.width, height=lens.height, **intrinsics, world_from_camera=pose)
    return view_of_maps(camera.resized(width, height), normals, mask)


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


def _into_sphere(view: NormalView, center: Float[Tensor, "3"], scale: float) -> NormalView:
    pose = view.camera.world_from_camera.clone()
    # The unit frame has the axes of the model, so only the position changes.
    pose[:3, 3] = (pose[:3, 3] - center) / scale
    return replace(view, camera=replace(view.camera, world_from_camera=pose))


def _object_notes(views: Sequence[NormalView], ball: EnclosingBall, model: ColmapModel) -> list[str]:
    """Return notes about the object: its enclosing ball, truncated masks, and the sparse points on it."""
    where = ", ".join(f"{value:.4g}" for value in ball.center.tolist())
    notes = [f"the visual hull lies within {ball.radius:.4g} units of ({where}) in model coordinates"]
    if cut_names := cut_masks(views):
        notes.append(
            f"{len(cut_names)} masks touch the image edge ({_listed(cut_names)}): the object may extend beyond it"
        )
    points = model.points.positions
    if not len(points):
        return notes
    on_object = torch.stack([_inside_mask(view, points) for view in views]).double().mean(0) >= _ON_OBJECT_SHARE
    beyond = int((on_object & ((points - ball.center).norm(dim=-1) > ball.radius)).sum())
    summary = f"{int(on_object.sum())} of {len(points)} sparse points lie inside the masks of most views"
    return [*notes, summary + (f"; {beyond} of these lie outside the ball" if beyond else "")]


def _inside_mask(view: NormalView, points: Float[Tensor, "n 3"]) -> Bool[Tensor, "n"]:
    pixels, depth = view.camera.project(points)
    limits = torch.tensor([view.size[1], view.size[0]])
    in_picture = (depth > 0) & (pixels >= 0).all(-1) & (pixels < limits).all(-1)
    # Points outside the image get index 0, which `in_picture` masks again.
    column, row = torch.where(in_picture[:, None], pixels, torch.zeros_like(pixels)).floor().long().unbind(-1)
    return in_picture & view.mask[row, column]


def _counted(notes: Iterable[str]) -> list[str]:
    """Merge equal notes of several views into one note with their number."""
    return [note if number == 1 else f"{note} ({number} views)" for note, number in Counter(notes).items()]


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:8])
    return f"{listed}, ... ({len(names)})" if len(names) > 8 else listed
