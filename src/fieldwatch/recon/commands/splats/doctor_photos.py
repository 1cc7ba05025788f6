"""Checks of photos with cameras (COLMAP or transforms.json) for ``fieldwatch doctor``."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.cli.kit import DataFinding, DataReport
from fieldwatch.recon.commands.splats.doctor_colors import (
    MOST_PHOTOS,
    PhotoColors,
    background_findings,
    reduced_pixels,
    sample_colors,
)
from fieldwatch.recon.commands.splats.doctor_point_colors import color_findings, hidden_findings
from fieldwatch.recon.commands.splats.doctor_reprojection import (
    content_findings,
    in_picture,
    observed_points,
    reprojection_findings,
)
from fieldwatch.recon.data import PhotoOptions, PhotoSet, read_colmap, read_transforms
from fieldwatch.recon.data.colmap import ColmapModel, read_colmap_model, read_colmap_observations
from fieldwatch.recon.data.exports import is_camera_export, read_camera_export
from fieldwatch.recon.geometry import Camera, far_cameras
from fieldwatch.rules import Severity

MODELS = ("sparse/0", "sparse", ".", "distorted/sparse/0", "colmap/sparse/0", "dense/sparse")
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
_FOLDERS = ("images", "input", "rgb", "photos")
# Number of photos that are decoded to prove that they are complete, longer side at which pixels are compared, and
# number of points whose visibility is checked.
_MAX_CHECKED, _COMPARED_SIDE, _MAX_PROJECTED = 200, 1024, 5000
# Exposure: the tolerance in stops.
_MAX_STOPS = 1.0
# A single exposure: so many robust deviations from the median, with a smallest spread in stops, for so few photos.
_FAR_EXPOSURE, _MIN_SPREAD, _MAX_FAR_SHARE = 5.0, 0.1, 0.1
# Focal length over the longer side (150 degrees to a strong telephoto lens), and ratio of the two focal lengths.
_FOCAL, _MAX_ASPECT = (0.13, 20.0), 1.5
# Fraction of white pixels below which a mask shows nothing.
_MIN_MASK = 0.001
# Fractions of unregistered photos, of observations behind their camera, and of points outside of all photos.
_MAX_UNUSED_SHARE, _MAX_BEHIND_SHARE, _MAX_UNSEEN_SHARE = 0.1, 0.01, 0.05
# Number of pairs of neighboring photos that are compared, and shares of repeated ones that matter, and that spoil a
# training.
_MOST_PAIRS, _MAX_REPEATED_SHARE, _SPOILT_REPEATED_SHARE = 100, 0.05, 0.2
# Fraction of photos with few points.
_MAX_WEAK_SHARE = 0.1
# Points per photo, mean reprojection error in pixels, and points per scene.
_MIN_POINTS_PER_PHOTO, _MAX_REPROJECTION_ERROR = 30, 2.0
_MIN_POINTS = 100


def photos_report(path: Path, _options: None) -> DataReport:
    """Read and check a scene of photos with cameras.

    Raises:
        ColmapError: the model is missing or damaged.
        TransformsError: transforms.json cannot be read.
        ExportError: the export of another program cannot be read.
        PhotoError: photos are missing or unreadable, or their sizes do not match the cameras.
        PlyError: the point cloud named in transforms.json cannot be read.
    """
    # Full size: the facts are those of the files, whatever a training would scale down to.
    options = PhotoOptions(longer_side=1 << 16, most_decoded=_MAX_CHECKED)
    if not (has_colmap(path) or has_transforms(path)) and is_camera_export(path):
        read: Callable[[Path, PhotoOptions], PhotoSet] = read_camera_export
        kind = "photos with cameras of another program"
    elif path.is_file() or has_transforms(path):
        read = read_transforms
        kind = "photos with cameras (transforms.json)"
    else:
        read = read_colmap
        kind = "photos with cameras (COLMAP)"
    model = _model(path) if read is read_colmap else None
    photos = read(path, options)
    notes = photos.notes
    if len(photos) > _MAX_CHECKED:
        notes += (f"{_MAX_CHECKED} of {len(photos)} photos were decoded completely; a training decodes all of them",)
    # Pixels are compared at a smaller size: undistorting photos of 12 megapixels takes seconds each.
    compared = read(path, replace(options, longer_side=_COMPARED_SIDE, most_decoded=0))
    return DataReport(
        path=path,
        kind=kind,
        facts=photo_facts(photos, model),
        notes=notes,
        findings=_ranked([*far_findings(photos), *scene_findings(compared, sample_colors(compared), path, model)]),
        command=f"fieldwatch train splats --data {path}",
    )


def check_scene(photos: PhotoSet, path: Path | None, background: Float[Tensor, "3"]) -> tuple[DataFinding, ...]:
    """Check the photos of a training; the background comes first, since it explains most of a bad result.

    Args:
        photos: photos at the size at which they are trained on.
        path: folder with the sparse model that they come from; None or a folder without one checks the photos alone.
        background: background color of the training, RGB in [0, 1].

    Raises:
        ColmapError: the model is damaged.
    """
    model = None if path is None or not path.is_dir() or has_transforms(path) else _model(path)
    colors = sample_colors(photos)
    found = scene_findings(photos, colors, path if model is not None else None, model)
    return (*background_findings(photos, colors, background), *found)


def scene_findings(
    photos: PhotoSet, colors: Mapping[int, PhotoColors], path: Path | None, model: ColmapModel | None
) -> tuple[DataFinding, ...]:
    """Return the findings of all checks, the most severe first."""
    findings = [*camera_findings(photos), *intrinsics_findings(photos), *exposure_findings(photos, colors)]
    if model is not None and path is not None:
        folder = _model_folder(path)
        observations = {} if folder is None else read_colmap_observations(folder)
        observed = observed_points(model, observations)
        reprojected = list(reprojection_findings(model, observed))
        # Without right projections, colors and depths say nothing further.
        findings += reprojected or [
            *model_findings(photos, model),
            *content_findings(photos, observed),
            *color_findings(photos, observed),
            *hidden_findings(photos, observed),
        ]
        findings += unused_findings(path, photos)
    elif len(photos.points):
        findings += point_findings(photos)
    findings += [*mask_findings(photos), *repeated_findings(photos)]
    return _ranked(findings)


def _ranked(findings: Sequence[DataFinding]) -> tuple[DataFinding, ...]:
    """Sort findings by severity; those of one severity stay in the order of the checks."""
    ranks = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted(findings, key=lambda finding: ranks[finding.severity]))


def far_findings(photos: PhotoSet) -> Iterator[DataFinding]:
    """Check for cameras far away from all others; a training notes them by itself."""
    if far := [photos.names[i] for i in far_cameras(photos.cameras)]:
        yield DataFinding(
            name="far",
            severity="warning",
            message=f"{len(far)} cameras are over 20 times as far away as the others: {_listed(far)}.",
            remedy="Their poses are probably wrong: remove these photos from the reconstruction.",
        )


def has_transforms(folder: Path) -> bool:
    """Return whether a folder has a transforms.json or transforms_train.json."""
    return any((folder / name).is_file() for name in ("transforms.json", "transforms_train.json"))


def has_colmap(folder: Path) -> bool:
    """Return whether a folder has a part of a COLMAP model in one of the usual subfolders."""
    # One part is enough: an incomplete model should be reported as damaged, not as an unknown kind.
    folders = [folder / name for name in MODELS] + [p for p in sorted((folder / "sparse").glob("*")) if p.is_dir()]
    files = [f"{name}.{ending}" for name in ("cameras", "images") for ending in ("bin", "txt")]
    return any((place / file).is_file() for place in folders for file in files)


def photo_facts(photos: PhotoSet, model: ColmapModel | None) -> dict[str, Any]:
    """Return counts, sizes and intrinsics of a scene."""
    focal = [camera.fx for camera in photos.cameras]
    facts: dict[str, Any] = {
        "photos": len(photos),
        "for training": len(photos.train),
        "held out": len(photos.test),
        "sizes (width x height)": dict(Counter(f"{c.width}x{c.height}" for c in photos.cameras)),
        "focal length in pixels": [min(focal), max(focal)],
        "points": len(photos.points),
        "extent of the cameras": photos.extent,
        "masks": "yes" if photos.masked else None,
    }
    if model is not None:
        facts["lenses"] = dict(Counter(model.lenses[image.camera_id].model for image in model.images))
        facts["calibrated sizes"] = dict(Counter(f"{c.width}x{c.height}" for c in model.lenses.values()))
        facts["reprojection error in pixels"] = float(model.points.errors.mean())
        facts["observations"] = len(model.points.track_images)
    return facts


def camera_findings(photos: PhotoSet) -> Iterator[DataFinding]:
    """Check that poses are rotations, and that the cameras have different positions."""
    invalid = [c.name for c in photos.cameras if _off_rotation(c) > 1e-3]
    if invalid:
        yield DataFinding(
            name="rotation",
            severity="error",
            message=f"{len(invalid)} of {len(photos)} poses are not rotations: {_listed(invalid)}.",
            remedy="Write poses with orthonormal axes and determinant 1.",
        )
    positions = torch.stack([camera.position.double() for camera in photos.cameras])
    spread = float((positions - positions.mean(0)).norm(dim=-1).max())
    # Relative to the coordinates: far from the origin, equal positions differ by rounding.
    if len(photos) > 1 and spread <= 1e-9 * max(float(positions.abs().max()), 1.0):
        yield DataFinding(
            name="cameras",
            severity="error",
            message=f"all {len(photos)} cameras have the same position: without parallax, depth is unknown.",
            remedy="Take photos from different positions instead of turning the camera, and reconstruct again.",
        )
    if len(photos.train) < 3:
        yield DataFinding(
            name="photos",
            severity="warning",
            message=f"only {len(photos.train)} photos for training.",
            remedy="Use more photos: tens for an object, more for a room.",
        )


def model_findings(photos: PhotoSet, model: ColmapModel) -> Iterator[DataFinding]:
    """Check a sparse model: points behind cameras, few points, large errors, photos with few observations."""
    points, cameras = model.points, {camera.name: camera for camera in photos.cameras}
    # Photos may have been left out because their files are missing or damaged.
    observed = {name: rows for name, rows in _observed(model).items() if name in cameras}
    counts = {name: len(rows) for name, rows in observed.items()}
    behind = {name: _behind(points.positions[rows], cameras[name]) for name, rows in observed.items()}
    total = sum(counts.values())
    if total and (count := sum(behind.values())) > _MAX_BEHIND_SHARE * total:
        worst = max(behind, key=lambda name: behind[name])
        yield DataFinding(
            name="behind",
            severity="error",
            message=f"{count} of {total} observed points are behind the camera, most in {worst} ({behind[worst]}).",
            remedy="Poses or points are mirrored or from another model: export it again with 'colmap model_converter'.",
        )
    elif not total:
        # Models of other programs often have no tracks: check visibility by projection.
        yield from point_findings(photos)
    if total and (weak := [name for name, number in counts.items() if number < _MIN_POINTS_PER_PHOTO]):
        yield DataFinding(
            name="weak",
            # Single photos do no harm: their reprojection is checked, too.
            severity="warning" if len(weak) > _MAX_WEAK_SHARE * len(photos) else "note",
            message=(
                f"{len(weak)} photos see fewer than {_MIN_POINTS_PER_PHOTO} points: {_listed(weak)}; their poses "
                "are unreliable."
            ),
            remedy="Inspect them; remove them from the model, or take photos between them and the others.",
        )
    if float(points.errors.mean()) > _MAX_REPROJECTION_ERROR:
        yield DataFinding(
            name="reprojection",
            severity="warning",
            message=f"mean reprojection error of {float(points.errors.mean()):.1f} pixels; it should be below 1.",
            remedy="Run 'colmap bundle_adjuster', or reconstruct again with one camera for all photos of it.",
        )
    if len(points.positions) < _MIN_POINTS:
        yield DataFinding(
            name="points",
            severity="warning",
            message=f"the model has only {len(points.positions)} points to initialize Gaussians from.",
            remedy="Take photos of a textured scene with more overlap.",
        )


def point_findings(photos: PhotoSet) -> Iterator[DataFinding]:
    """Check points without tracks: each one must project into some photo."""
    points = photos.points[:: max(-(-len(photos.points) // _MAX_PROJECTED), 1)]
    in_some_photo = torch.zeros(len(points), dtype=torch.bool)
    for camera in photos.cameras:
        pixels, depth = camera.project(points.to(camera.world_from_camera))
        in_some_photo |= in_picture(pixels, depth, camera.width, camera.height)
    unseen = int((~in_some_photo).sum())
    if unseen > _MAX_UNSEEN_SHARE * len(in_some_photo):
        yield DataFinding(
            name="points",
            severity="error" if unseen > 0.5 * len(in_some_photo) else "warning",
            message=f"{unseen} of {len(in_some_photo)} points are in no photo: behind or outside of every camera.",
            remedy="Points and poses have different coordinates: check applied_transform, and the axes of the poses.",
        )


def unused_findings(path: Path, photos: PhotoSet) -> Iterator[DataFinding]:
    """Check how many photos COLMAP could not register."""
    folder = next((path / name for name in _FOLDERS if (path / name).is_dir()), None)
    # transforms.json and some exports keep photos elsewhere: then there is nothing to count.
    if folder is None:
        return
    # Files of macOS and of some synchronization tools begin with a dot.
    files = [p for p in folder.rglob("*") if p.suffix.lower() in PICTURES and not p.name.startswith(".")]
    unused = len(files) - len(photos)
    if unused > 0:
        yield DataFinding(
            name="unregistered",
            severity="warning" if unused > _MAX_UNUSED_SHARE * len(files) else "note",
            message=f"{unused} of {len(files)} photos in {folder} are not in the model and are not used.",
            remedy="COLMAP could not register them: take photos with more overlap; a few blurred ones do not matter.",
        )


def exposure_findings(photos: PhotoSet, colors: Mapping[int, PhotoColors]) -> Iterator[DataFinding]:
    """Compare the brightness of photos whose colors were sampled."""
    stops = {photos.names[index]: each.stops for index, each in colors.items()}
    values = torch.tensor(list(stops.values()), dtype=torch.float64)
    median = float(values.median())
    if black := [name for name, value in stops.items() if value == -math.inf]:
        yield DataFinding(
            name="black",
            severity="error",
            message=f"{len(black)} of {len(stops)} checked photos are black: {_listed(black)}.",
            remedy="Copy these photos again, or leave them out.",
        )
    outliers = {name: value - median for name, value in stops.items() if _MAX_STOPS < abs(value - median) < math.inf}
    if not outliers:
        return
    worst = max(outliers, key=lambda name: abs(outliers[name]))
    usual = 1.4826 * float((values - median).abs().median())
    # A photo far beyond the spread of all others was exposed otherwise; many such photos are another content.
    alone = {name: value for name, value in outliers.items() if abs(value) > _FAR_EXPOSURE * max(usual, _MIN_SPREAD)}
    severity: Severity = "warning" if alone and len(alone) <= max(_MAX_FAR_SHARE * len(stops), 1) else "note"
    named = sorted(alone if severity == "warning" else outliers, key=lambda name: -abs(outliers[name]))
    yield DataFinding(
        name="exposure",
        severity=severity,
        message=(
            f"{len(named)} of {len(stops)} checked photos differ from the median brightness by more than "
            f"{_MAX_STOPS:g} stop: {_listed(named)} (worst: {worst}, {outliers[worst]:+.1f})."
        ),
        remedy="If the exposure differs, and not the content, train with --exposure True, or remove these photos.",
    )


def repeated_findings(photos: PhotoSet) -> Iterator[DataFinding]:
    """Compare each photo with the next one, in at most a hundred pairs: equal pixels were not seen from two places."""
    step = -(-len(photos) // _MOST_PAIRS)
    pairs = range(0, len(photos) - 1, max(step, 1))
    # Most photos differ at a small size, too, which is decoded much faster; neighboring pairs share a photo.
    small = lru_cache(maxsize=2)(partial(reduced_pixels, photos))
    repeated = [photos.names[i + 1] for i in pairs if torch.equal(small(i), small(i + 1)) and _is_repeated(photos, i)]
    share = len(repeated) / max(len(pairs), 1)
    if not repeated:
        return
    yield DataFinding(
        name="repeated",
        severity="warning" if share > _MAX_REPEATED_SHARE else "note",
        message=(
            f"{len(repeated)} of {len(pairs)} checked photos repeat the one before, though their cameras are in other "
            f"places: {_listed(repeated)}."
        ),
        remedy=(
            "Remove the repeated photos and their poses, as where a film has each frame twice, or copy the photos "
            "again if names and photos were confused."
        ),
        certain=share > _SPOILT_REPEATED_SHARE,
    )


def _is_repeated(photos: PhotoSet, index: int) -> bool:
    """Return whether a photo and the next one have the same pixels, which are not of one color, and other poses."""
    camera, following = photos.cameras[index], photos.cameras[index + 1]
    if (camera.width, camera.height) != (following.width, following.height):
        return False
    if torch.equal(camera.world_from_camera, following.world_from_camera):
        return False
    image = photos[index].image
    return torch.equal(image, photos[index + 1].image) and bool((image != image[0, 0]).any())


def intrinsics_findings(photos: PhotoSet) -> Iterator[DataFinding]:
    """Compare focal lengths and principal points with the sizes of the photos."""
    strange: dict[str, str] = {}
    for camera in photos.cameras:
        side = max(camera.width, camera.height)
        focal = max(camera.fx, camera.fy) / side
        outside = not (0 < camera.cx < camera.width and 0 < camera.cy < camera.height)
        if not _FOCAL[0] < focal < _FOCAL[1]:
            strange[camera.name] = f"focal length {max(camera.fx, camera.fy):.4g} at {side} pixels"
        elif outside:
            strange[camera.name] = f"principal point ({camera.cx:.4g}, {camera.cy:.4g}) outside the photo"
        elif not 1 / _MAX_ASPECT < camera.fx / camera.fy < _MAX_ASPECT:
            strange[camera.name] = f"focal lengths {camera.fx:.4g} and {camera.fy:.4g}"
    if strange:
        name = next(iter(strange))
        yield DataFinding(
            name="intrinsics",
            severity="warning",
            message=(
                f"the intrinsics of {len(strange)} of {len(photos)} cameras are unusual for the sizes of their photos: "
                f"{_listed(list(strange))} ({name}: {strange[name]})."
            ),
            remedy="Check that cameras and photos have the same size and unit (pixels), as COLMAP wrote them.",
        )


def mask_findings(photos: PhotoSet) -> Iterator[DataFinding]:
    """Check that masks show something and hide something, in at most about forty photos, evenly spaced."""
    if not photos.masked:
        return
    indices = range(0, len(photos), max(len(photos) // MOST_PHOTOS, 1))
    masks = {photos.names[i]: photos[i].mask for i in indices}
    shares = {name: float((mask > 127).float().mean()) for name, mask in masks.items() if mask is not None}
    nothing = [name for name, share in shares.items() if share < _MIN_MASK]
    if nothing:
        yield DataFinding(
            name="masks",
            severity="error" if len(nothing) > len(shares) / 2 else "warning",
            message=f"{len(nothing)} of {len(shares)} checked masks show nothing: {_listed(nothing)}.",
            remedy="White pixels are used, black ones are not: invert the masks, or leave --masks out.",
        )
    if shares and min(shares.values()) > 1 - _MIN_MASK:
        yield DataFinding(
            name="masks",
            severity="note",
            message=f"all {len(shares)} checked masks show everything: they have no effect.",
            remedy="White pixels are used, black ones are not: check that the masks are the right files.",
        )


def _model(path: Path) -> ColmapModel | None:
    """Return the model that `read_colmap` takes."""
    folder = _model_folder(path)
    return None if folder is None else read_colmap_model(folder)


def _model_folder(path: Path) -> Path | None:
    """Return the folder of the model that `read_colmap` takes: of several, the one with the largest file of photos."""
    several = [p for p in sorted((path / "sparse").glob("*")) if p.is_dir() and has_model(p)]
    if several:
        return max(several, key=lambda p: _images(p).stat().st_size)
    return next((path / name for name in MODELS if has_model(path / name)), None)


def has_model(folder: Path) -> bool:
    """Whether a folder holds the photos of a sparse model."""
    return _images(folder).is_file()


def _images(folder: Path) -> Path:
    binary = folder / "images.bin"
    return binary if binary.is_file() else folder / "images.txt"


def _off_rotation(camera: Camera) -> float:
    turn = camera.world_from_camera[:3, :3].double()
    # A mirrored pose has orthonormal axes, too: only the determinant reveals it.
    mirrored = float(torch.linalg.det(turn)) < 0
    return 2.0 if mirrored else float((turn @ turn.T - torch.eye(3, dtype=torch.float64)).abs().max())


def _observed(model: ColmapModel) -> dict[str, Tensor]:
    """Return the rows of the points that each photo observes, by its name."""
    # Sorted by photo, so that each photo's observations are one slice.
    images, order = model.points.track_images.sort()
    numbers = torch.tensor([image.image_id for image in model.images])
    first = torch.searchsorted(images, numbers)
    last = torch.searchsorted(images, numbers, right=True)
    rows = model.points.track_points[order]
    spans = zip(model.images, first.tolist(), last.tolist(), strict=True)
    return {image.name: rows[begin:end] for image, begin, end in spans}


def _behind(points: Tensor, camera: Camera) -> int:
    return int((camera.project(points.double())[1] <= 0).sum())


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:5])
    return f"{listed}, ... ({len(names)})" if len(names) > 5 else listed
