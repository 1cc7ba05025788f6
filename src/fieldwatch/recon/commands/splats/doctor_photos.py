"""What the doctor says about photos with cameras: COLMAP's folders and transforms.json."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldwatch.cli.kit import DataFinding, DataReport
from fieldwatch.recon.data import PhotoOptions, PhotoSet, read_colmap, read_transforms
from fieldwatch.recon.data.colmap import ColmapModel, read_colmap_model
from fieldwatch.recon.geometry import Camera

MODELS = ("sparse/0", "sparse", ".", "distorted/sparse/0", "colmap/sparse/0", "dense/sparse")
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
_FOLDERS = ("images", "input", "rgb", "photos")
_MAX_DECODED, _BRIGHTNESS_SIDE = 40, 96  # photos that are decoded, and their longer side, for exposure
_MAX_STOPS = 1.0
_MAX_UNUSED_SHARE, _MAX_BEHIND_SHARE, _MAX_UNSEEN_SHARE = 0.1, 0.01, 0.05
_MIN_POINTS_PER_PHOTO, _MAX_REPROJECTION_ERROR = 30, 2.0
_MIN_POINTS = 100  # points of a scene


def photos_report(path: Path, _options: None) -> DataReport:
    """Read and check a scene of photos with cameras.

    Raises:
        ColmapError: no model, or a damaged one.
        TransformsError: no transforms.json that can be read.
        PhotoError: photos are missing, unreadable or of another shape than their cameras.
        PlyError: the file of points that a transforms.json names cannot be read.
    """
    options = PhotoOptions(longer_side=1 << 16)
    model = None
    if path.is_file() or has_transforms(path):
        photos, kind = read_transforms(path, options), "photos with cameras (transforms.json)"
    else:
        photos, kind = read_colmap(path, options), "photos with cameras (COLMAP)"
        model = _model(path)
    findings = [*camera_findings(photos), *exposure_findings(photos)]
    if model is not None:
        findings += [*model_findings(photos, model), *unused_findings(path, photos)]
    elif len(photos.points):
        findings += point_findings(photos)
    ranks = {"error": 0, "warning": 1, "note": 2}
    return DataReport(
        path=path,
        kind=kind,
        facts=photo_facts(photos, model),
        notes=photos.notes,
        findings=tuple(sorted(findings, key=lambda finding: ranks[finding.severity])),
        command=f"fieldwatch train splats --data {path}",
    )


def has_transforms(folder: Path) -> bool:
    """Whether a folder has a file of the kind transforms.json."""
    return any((folder / name).is_file() for name in ("transforms.json", "transforms_train.json"))


def has_colmap(folder: Path) -> bool:
    """Whether a folder has some part of a COLMAP model where one is looked for."""
    places = [folder / name for name in MODELS] + [p for p in sorted((folder / "sparse").glob("*")) if p.is_dir()]
    files = [f"{name}.{ending}" for name in ("cameras", "images") for ending in ("bin", "txt")]
    return any((place / file).is_file() for place in places for file in files)


def photo_facts(photos: PhotoSet, model: ColmapModel | None) -> dict[str, Any]:
    """Say what a scene holds."""
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
    """Check that cameras are rotations and stand in different places."""
    bent = [c.name for c in photos.cameras if _off_rotation(c) > 1e-3]
    if bent:
        yield DataFinding(
            name="rotation",
            severity="error",
            message=f"{len(bent)} of {len(photos)} poses are no rotations: {_listed(bent)}.",
            remedy="Write poses with orthonormal axes and determinant 1.",
        )
    places = torch.stack([camera.position.double() for camera in photos.cameras])
    spread = float((places - places.mean(0)).norm(dim=-1).max())
    if len(photos) > 1 and spread <= 1e-9 * max(float(places.abs().max()), 1.0):
        yield DataFinding(
            name="cameras",
            severity="error",
            message=f"all {len(photos)} cameras stand in one place: nothing tells how far away anything is.",
            remedy="Take photos from different places, not by turning the camera, and reconstruct again.",
        )
    if len(photos.train) < 3:
        yield DataFinding(
            name="photos",
            severity="warning",
            message=f"{len(photos.train)} photos are there to train on.",
            remedy="Give more photos: tens for an object, more for a room.",
        )


def model_findings(photos: PhotoSet, model: ColmapModel) -> Iterator[DataFinding]:
    """Check a sparse model: points behind cameras, few points, large errors, photos that see hardly any point."""
    points, cameras = model.points, {camera.name: camera for camera in photos.cameras}
    observed = _observed(model)
    seen = {name: len(rows) for name, rows in observed.items()}
    behind = {name: _behind(points.positions[rows], cameras[name]) for name, rows in observed.items()}
    total = sum(seen.values())
    if total and (count := sum(behind.values())) > _MAX_BEHIND_SHARE * total:
        worst = max(behind, key=lambda name: behind[name])
        yield DataFinding(
            name="behind",
            severity="error",
            message=f"{count} of {total} observed points are behind the camera, most in {worst} ({behind[worst]}).",
            remedy="Poses or points are mirrored or of another model: export it again with 'colmap model_converter'.",
        )
    elif not total:
        yield from point_findings(photos)
    if total and (weak := [name for name, number in seen.items() if number < _MIN_POINTS_PER_PHOTO]):
        yield DataFinding(
            name="weak",
            severity="warning",
            message=(
                f"{len(weak)} photos see fewer than {_MIN_POINTS_PER_PHOTO} points: {_listed(weak)}; their poses "
                "are loose."
            ),
            remedy="Look at them; leave them out of the model, or take photos between them and the others.",
        )
    if float(points.errors.mean()) > _MAX_REPROJECTION_ERROR:
        yield DataFinding(
            name="reprojection",
            severity="warning",
            message=f"points are {float(points.errors.mean()):.1f} pixels off on average; good models have below 1.",
            remedy="Run 'colmap bundle_adjuster', or reconstruct again with one camera for all photos of it.",
        )
    if len(points.positions) < _MIN_POINTS:
        yield DataFinding(
            name="points",
            severity="warning",
            message=f"the model has {len(points.positions)} points: little to start Gaussians from.",
            remedy="Take photos that overlap more, of a scene with texture.",
        )


def point_findings(photos: PhotoSet) -> Iterator[DataFinding]:
    """Check points of which nobody says who sees them: some camera has to show each one."""
    in_some_photo = torch.zeros(len(photos.points), dtype=torch.bool)
    for camera in photos.cameras:
        pixels, depth = camera.project(photos.points.to(camera.world_from_camera))
        limits = torch.tensor([camera.width, camera.height])
        in_some_photo |= (depth > 0) & (pixels >= 0).all(-1) & (pixels < limits).all(-1)
    unseen = int((~in_some_photo).sum())
    if unseen > _MAX_UNSEEN_SHARE * len(in_some_photo):
        yield DataFinding(
            name="points",
            severity="error" if unseen > 0.5 * len(in_some_photo) else "warning",
            message=f"{unseen} of {len(in_some_photo)} points are in no photo: behind all cameras or beside them.",
            remedy="Points and poses are of different worlds: check applied_transform, and the axes of the poses.",
        )


def unused_findings(path: Path, photos: PhotoSet) -> Iterator[DataFinding]:
    """Check how many photos COLMAP could not place."""
    folder = next((path / name for name in _FOLDERS if (path / name).is_dir()), None)
    if folder is None:
        return
    files = [p for p in folder.rglob("*") if p.suffix.lower() in PICTURES and not p.name.startswith(".")]
    unused = len(files) - len(photos)
    if unused > 0:
        yield DataFinding(
            name="unregistered",
            severity="warning" if unused > _MAX_UNUSED_SHARE * len(files) else "note",
            message=f"{unused} of {len(files)} photos in {folder} are not in the model and are not used.",
            remedy="COLMAP could not place them: take photos that overlap more; some blurred ones are no loss.",
        )


def exposure_findings(photos: PhotoSet) -> Iterator[DataFinding]:
    """Compare the brightness of photos, at most forty of them, spread over the set."""
    chosen = range(0, len(photos), max(len(photos) // _MAX_DECODED, 1))
    # Without a cache: each photo is looked at once.
    small = photos.having(memory_budget=0)
    stops = {photos.names[i]: _brightness(small[i].image) for i in chosen}
    middle = float(torch.tensor(list(stops.values())).median())
    if black := [name for name, value in stops.items() if value == -math.inf]:
        yield DataFinding(
            name="black",
            severity="error",
            message=f"{len(black)} of {len(stops)} photos that were looked at are black: {_listed(black)}.",
            remedy="Copy these photos again, or leave them out.",
        )
    odd = {name: value - middle for name, value in stops.items() if _MAX_STOPS < abs(value - middle) < math.inf}
    if odd:
        worst = max(odd, key=lambda name: abs(odd[name]))
        yield DataFinding(
            name="exposure",
            severity="note",
            message=(
                f"{len(odd)} of {len(stops)} photos that were looked at are brighter or darker than the middle one by "
                f"more than {_MAX_STOPS:g} stop: {_listed(list(odd))} (worst: {worst}, {odd[worst]:+.1f})."
            ),
            remedy="If it is the exposure and not what they show, train with --exposure True.",
        )


def _model(path: Path) -> ColmapModel | None:
    """Return the model that `read_colmap` took: of several in sparse/, the one with the largest file of photos."""
    several = [p for p in sorted((path / "sparse").glob("*")) if p.is_dir() and has_model(p)]
    if several:
        return read_colmap_model(max(several, key=lambda p: _images(p).stat().st_size))
    place = next((path / name for name in MODELS if has_model(path / name)), None)
    return None if place is None else read_colmap_model(place)


def has_model(folder: Path) -> bool:
    """Whether a folder holds the photos of a sparse model."""
    return _images(folder).is_file()


def _images(folder: Path) -> Path:
    binary = folder / "images.bin"
    return binary if binary.is_file() else folder / "images.txt"


def _off_rotation(camera: Camera) -> float:
    turn = camera.world_from_camera[:3, :3].double()
    mirrored = float(torch.linalg.det(turn)) < 0
    return 2.0 if mirrored else float((turn @ turn.T - torch.eye(3, dtype=torch.float64)).abs().max())


def _observed(model: ColmapModel) -> dict[str, Tensor]:
    """Return the rows of the points that each photo observes, by its name."""
    # Sorted by photo, so that each photo's observations are one slice.
    images, order = model.points.track_images.sort()
    numbers = torch.tensor([image.image_id for image in model.images])
    first, last = torch.searchsorted(images, numbers), torch.searchsorted(images, numbers, right=True)
    rows = model.points.track_points[order]
    spans = zip(model.images, first.tolist(), last.tolist(), strict=True)
    return {image.name: rows[begin:end] for image, begin, end in spans}


def _behind(points: Tensor, camera: Camera) -> int:
    return int((camera.project(points.double())[1] <= 0).sum())


def _brightness(image: Tensor) -> float:
    """Mean of a photo in stops below white; minus infinity if it is black."""
    step = max(max(image.shape[:2]) // _BRIGHTNESS_SIDE, 1)
    mean = float(image[::step, ::step].float().mean()) / 255
    return math.log2(mean) if mean > 0.5 / 255 else -math.inf


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:5])
    return f"{listed}, ... ({len(names)})" if len(names) > 5 else listed
