"""Features, matches, poses and points of photos, by COLMAP (pycolmap)."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pycolmap

from fieldwatch.recon.data.capture.consistency import remove_contradicting
from fieldwatch.recon.data.capture.error import CaptureError
from fieldwatch.recon.data.capture.model import Chosen, LeftOut, Progress
from fieldwatch.recon.data.capture.pairs import describe, matching_of, pairs_to_match
from fieldwatch.recon.data.capture.settings import CaptureSettings
from fieldwatch.recon.data.capture.sharpness import relative_sharpness

CAMERA_MODEL = "SIMPLE_RADIAL"
"""One focal length and one distortion coefficient: more cannot be determined reliably from ordinary photos."""
ENOUGH = 0.8
"""Fraction of registered photos below which the incremental mapper is tried after the global one."""
_PAIRS_PER_CALL = 64
_LEAST_INLIERS = 15  # COLMAP's default: pairs with fewer are ignored
_FEW_FEATURES = 100
_BLURRED = 0.4  # gradient energy relative to that of the neighbors


@dataclass(frozen=True, kw_only=True)
class RegisteredPhoto:
    """A photo whose camera was found.

    Attributes:
        name: file name in `images/`.
        points: number of points that it shows.
    """

    name: str
    points: int


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """Outcome of mapping.

    Attributes:
        mapper: algorithm that found the model.
        registered: photos with a camera.
        missing: photos without a camera, and why.
        reprojection_error: mean over the observations, pixels.
        points: number of points.
        cameras: intrinsics: model, size and parameters.
        models: number of registered photos of every model that was found, the used one first.
    """

    mapper: str
    registered: tuple[RegisteredPhoto, ...]
    missing: tuple[LeftOut, ...]
    reprojection_error: float
    points: int
    cameras: tuple[dict[str, Any], ...]
    models: tuple[int, ...]


def extract_features(
    database: Path, images: Path, chosen: Chosen, settings: CaptureSettings, progress: Progress
) -> int:
    """Detect and describe features (SIFT, Lowe 2004) in every photo; photos that have some in the database are skipped.

    Returns:
        Number of features.
    """
    _prepare(settings)
    pycolmap.Database.open(str(database)).close()
    _import_photos(database, images, chosen)
    options = pycolmap.FeatureExtractionOptions()
    options.num_threads = settings.threads or -1
    options.use_gpu = False
    options.max_image_size = settings.feature_size
    options.sift.max_num_features = settings.features
    names = [photo.name for photo in chosen.photos]
    # A few per call, so that the progress is known, and little is lost if the process is killed.
    step = max(settings.threads, 4)
    for start in range(0, len(names), step):
        part = names[start : start + step]
        pycolmap.extract_features(
            str(database), str(images), part, extraction_options=options, device=pycolmap.Device.cpu
        )
        progress(start + len(part), len(names))
    with pycolmap.Database.open(str(database)) as opened:
        return int(opened.num_keypoints())


def match_features(
    database: Path, images: Path, chosen: Chosen, settings: CaptureSettings, progress: Progress
) -> dict[str, Any]:
    """Match the features of pairs of photos, and verify the matches by epipolar geometry; matched pairs are skipped.

    Returns:
        Kind of matching, number of pairs, and number of pairs that passed.
    """
    _prepare(settings)
    names = [photo.name for photo in chosen.photos]
    kind = matching_of(chosen.kind, len(names), settings.matching)
    pairs = pairs_to_match(describe([images / name for name in names]), kind)
    matching = pycolmap.FeatureMatchingOptions()
    matching.num_threads = settings.threads or -1
    matching.use_gpu = False
    verification = pycolmap.TwoViewGeometryOptions()
    verification.ransac.random_seed = settings.seed
    listed = pycolmap.ImportedPairingOptions()
    listed.match_list_path = str(database.with_name("pairs.txt"))
    for start in range(0, len(pairs), _PAIRS_PER_CALL):
        part = pairs[start : start + _PAIRS_PER_CALL]
        Path(listed.match_list_path).write_text("".join(f"{names[i]} {names[j]}\n" for i, j in part), encoding="utf-8")
        pycolmap.match_image_pairs(
            str(database),
            matching_options=matching,
            pairing_options=listed,
            verification_options=verification,
            device=pycolmap.Device.cpu,
        )
        progress(start + len(part), len(pairs))
    verified = sum(count >= _LEAST_INLIERS for count in _inliers(database).values())
    return {"matching": kind, "pairs": len(pairs), "verified": verified}


def clear_matches(database: Path) -> None:
    """Delete all matches of a database; features stay."""
    with pycolmap.Database.open(str(database)) as opened:
        opened.clear_matches()
        opened.clear_two_view_geometries()


def map_photos(  # noqa: PLR0913, PLR0917 - the files of a capture, its photos and settings
    database: Path, images: Path, chosen: Chosen, settings: CaptureSettings, model: Path, progress: Progress
) -> Mapped:
    """Find poses and points, and write the largest model.

    The global mapper (GLOMAP, Pan 2024) is tried first. If it fails, or registers fewer than 80 % of the photos, the
    incremental one (Schoenberger 2016) is tried, and the model with more photos is kept. Photos whose pose contradicts
    most of their matches lose it.

    Args:
        database: database with verified matches; not changed.
        images: folder of the photos.
        chosen: photos.
        settings: mapper, threads and seed.
        model: folder for the model; replaced.
        progress: called with the number of registered photos, as far as it is known.

    Raises:
        CaptureError: if no model is found.
    """
    _prepare(settings)
    total = len(chosen.photos)
    found: list[tuple[str, list[pycolmap.Reconstruction]]] = []
    if settings.mapper in ("auto", "global"):
        found.append(("global", _map_globally(database, images, chosen, settings)))
        progress(_most_registered(found), total)
    if settings.mapper == "incremental" or (settings.mapper == "auto" and _most_registered(found) < ENOUGH * total):
        found.append(("incremental", _map_incrementally(database, images, settings, total, progress)))
    mapper, models = max(found, key=lambda pair: _registered(pair[1][0]) if pair[1] else 0)
    if not models or _registered(models[0]) < 2:
        raise CaptureError(_no_model(database, chosen, settings))
    best = models[0]
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir(parents=True)
    contradicting = remove_contradicting(database, best)
    best.update_point_3d_errors()
    best.write(str(model))
    for name in ("global", "incremental"):
        shutil.rmtree(database.with_name(name), ignore_errors=True)
    shown = {image.name: image.num_points3D for image in best.images.values() if image.has_pose}
    return Mapped(
        mapper=mapper,
        registered=tuple(
            RegisteredPhoto(name=photo.name, points=int(shown[photo.name]))
            for photo in chosen.photos
            if photo.name in shown
        ),
        missing=_missing(database, chosen, set(shown), models, contradicting),
        reprojection_error=float(best.compute_mean_reprojection_error()),
        points=int(best.num_points3D()),
        cameras=tuple(_intrinsics(camera) for _, camera in sorted(best.cameras.items())),
        models=tuple(_registered(each) for each in models),
    )


def _prepare(settings: CaptureSettings) -> None:
    pycolmap.logging.minloglevel = int(pycolmap.logging.Level.WARNING)
    pycolmap.set_random_seed(settings.seed)


def _import_photos(database: Path, images: Path, chosen: Chosen) -> None:
    """Write photos and cameras to the database; those that are already there are kept."""
    with pycolmap.Database.open(str(database)) as opened:
        known = {image.name for image in opened.read_all_images()}
    for number, camera in enumerate(chosen.cameras):
        names = [photo.name for photo in chosen.photos if photo.camera == number and photo.name not in known]
        options = pycolmap.ImageReaderOptions()
        options.camera_model = CAMERA_MODEL
        if camera.focal is not None:
            options.camera_params = f"{camera.focal:.6f},{camera.width / 2:g},{camera.height / 2:g},0"
        if names:
            # One call per camera: photos of one call share it.
            pycolmap.import_images(str(database), str(images), pycolmap.CameraMode.SINGLE, names, options)


def _map_globally(
    database: Path, images: Path, chosen: Chosen, settings: CaptureSettings
) -> list[pycolmap.Reconstruction]:
    folder = _new_folder(database.with_name("global"))
    # Calibration changes the database, and must not be applied twice.
    copy = folder / "database.db"
    shutil.copyfile(database, copy)
    if any(camera.focal is None for camera in chosen.cameras):
        calibration = pycolmap.ViewGraphCalibrationOptions()
        calibration.random_seed = settings.seed
        pycolmap.calibrate_view_graph(str(copy), calibration)
    options = pycolmap.GlobalPipelineOptions()
    options.num_threads = settings.threads or -1
    options.random_seed = settings.seed
    options.mapper.global_positioning.use_gpu = False
    options.mapper.bundle_adjustment.ceres.use_gpu = False
    return _largest_first(pycolmap.global_mapping(str(copy), str(images), str(folder), options))


def _map_incrementally(
    database: Path, images: Path, settings: CaptureSettings, total: int, progress: Progress
) -> list[pycolmap.Reconstruction]:
    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads = settings.threads or -1
    options.random_seed = settings.seed
    # Small captures: COLMAP's default of 10 photos would discard their only model.
    options.min_model_size = 3
    registered = 0

    def next_photo() -> None:
        nonlocal registered
        registered += 1
        progress(min(registered, total), total)

    folder = _new_folder(database.with_name("incremental"))
    models = pycolmap.incremental_mapping(
        str(database), str(images), str(folder), options, next_image_callback=next_photo
    )
    return _largest_first(models)


def _new_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _largest_first(models: "dict[int, pycolmap.Reconstruction]") -> "list[pycolmap.Reconstruction]":
    return sorted(models.values(), key=_registered, reverse=True)


def _registered(model: "pycolmap.Reconstruction") -> int:
    return int(model.num_reg_images())


def _most_registered(found: "Sequence[tuple[str, list[pycolmap.Reconstruction]]]") -> int:
    return max((_registered(model) for _, models in found for model in models), default=0)


def _inliers(database: Path) -> dict[tuple[str, str], int]:
    """Return the number of verified matches of every matched pair of photos."""
    with pycolmap.Database.open(str(database)) as opened:
        names = {image.image_id: image.name for image in opened.read_all_images()}
        pairs, counts = opened.read_two_view_geometry_num_inliers()
    ids = [pycolmap.pair_id_to_image_pair(pair) for pair in pairs]
    return {(names[i], names[j]): int(count) for (i, j), count in zip(ids, counts, strict=True)}


def _features(database: Path) -> dict[str, int]:
    with pycolmap.Database.open(str(database)) as opened:
        return {image.name: int(opened.num_keypoints_for_image(image.image_id)) for image in opened.read_all_images()}


def _missing(
    database: Path,
    chosen: Chosen,
    registered: set[str],
    models: "Sequence[pycolmap.Reconstruction]",
    contradicting: Mapping[str, float],
) -> tuple[LeftOut, ...]:
    """Return the photos without a camera, and why.

    Args:
        database: database with verified matches.
        chosen: all photos.
        registered: names of those with a camera.
        models: all models, the largest one first.
        contradicting: photos whose pose was removed, with the fraction of their matches that agreed with it.
    """
    features = _features(database)
    inliers = _inliers(database)
    sharpness = relative_sharpness([photo.sharpness for photo in chosen.photos])
    elsewhere = {
        image.name: _registered(model) for model in models[1:] for image in model.images.values() if image.has_pose
    }
    missing: list[LeftOut] = []
    for photo, relative in zip(chosen.photos, sharpness, strict=True):
        if photo.name in registered:
            continue
        partners = [count for pair, count in inliers.items() if photo.name in pair and count >= _LEAST_INLIERS]
        if photo.name in contradicting:
            reason = (
                f"its position contradicts its matches, of which only {contradicting[photo.name]:.0%} agree with it: "
                "it shows something that looks like another part of the scene"
            )
        elif photo.name in elsewhere:
            reason = f"it belongs to another place: a separate model of {elsewhere[photo.name]} photos"
        elif relative < _BLURRED:
            reason = f"it is blurred (gradient energy {relative:.0%} of its neighbors')"
        elif features.get(photo.name, 0) < _FEW_FEATURES:
            reason = f"it has only {features.get(photo.name, 0)} features: dark, blurred, or without texture"
        elif not partners:
            reason = "it matches no other photo"
        else:
            reason = (
                f"its matches with {len(partners)} photos (at most {max(partners)} points) do not agree on a position"
            )
        missing.append(LeftOut(source=photo.name, reason=reason))
    return tuple(missing)


def _no_model(database: Path, chosen: Chosen, settings: CaptureSettings) -> str:
    verified = sum(count >= _LEAST_INLIERS for count in _inliers(database).values())
    count = len(chosen.photos)
    what = "frames" if chosen.kind == "film" else "photos"
    few = sorted(_features(database).values())[count // 2]
    if few < _FEW_FEATURES:
        return (
            f"no cameras could be found: half of the {count} {what} have fewer than {few + 1} features: they are dark, "
            "blurred or show no texture; take sharp photos in more light, or put a patterned cloth under the object"
        )
    if not verified:
        return (
            f"no cameras could be found: no two of the {count} {what} show the same part of a scene; take photos that "
            "overlap by two thirds"
        )
    remedy = "use more frames with --frames" if chosen.kind == "film" else "take photos between these"
    other = "" if settings.mapper == "auto" else ", or leave out --mapper"
    return (
        f"no cameras could be found, although {verified} pairs of the {count} {what} match: they may all be taken from "
        f"one position, which does not determine depth, or be too far apart; {remedy}{other}"
    )


def _intrinsics(camera: "pycolmap.Camera") -> dict[str, Any]:
    return {
        "model": camera.model_name,
        "width": int(camera.width),
        "height": int(camera.height),
        "parameters": [float(value) for value in camera.params],
    }
