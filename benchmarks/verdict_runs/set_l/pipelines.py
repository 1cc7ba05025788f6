"""Plants and healthy runs of the pipelines in set l: wrong photos, cameras, maps, frames and flags."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from verdict_runs import scenes
from verdict_runs.cases import Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, spot_normals
from verdict_runs.phrases import ALL, RATE, SETTINGS, fault
from verdict_runs.scenes import Spoil, normal_files, photos_of, read_registered, write_registered

from .captures import HELD_OUT, cellar, fig_normals, pond_frame, pond_frames

Array = np.ndarray

POSE = r"pose|camera|reproject|registered|match|cover|view|convention"
HELD_FRAME = 7
"""Of eight frames, this one is held out."""


# Photos


def training_photos(change: Callable[[Array, int], Array]) -> Spoil:
    """Change all photos of the training, given as floats of 0 to 1 with their number."""

    def spoil(scene: Path) -> None:
        for i, path in enumerate(photos_of(scene)):
            if i % HELD_OUT == 0:
                continue
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"), np.float32) / 255
            path.unlink()
            changed = np.rint(255 * np.clip(change(pixels, i), 0, 1)).astype(np.uint8)
            Image.fromarray(changed).save(path, quality=95)

    return spoil


def overexposed(pixels: Array, index: int) -> Array:
    """Return every second photo as one that was exposed for too long."""
    return 2.6 * pixels if index % 2 else pixels


def names_of_others(scene: Path) -> None:
    """Give each photo of the training the pose of the next one, as where two lists are sorted differently."""
    photos = [path for i, path in enumerate(photos_of(scene)) if i % HELD_OUT]
    contents = [path.read_bytes() for path in photos]
    for path, content in zip(photos, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)


def other_axes(scene: Path) -> None:
    """Store poses of cameras that look along -z with y up, as of OpenGL, where COLMAP has them look along z."""
    records = read_registered(scene)
    for record in records:
        w, x, y, z, right, down, ahead = record.pose
        # Half a turn about x, after the rotation.
        record.pose = (-x, w, -z, y, right, -down, -ahead)
    write_registered(scene, records)


# Normal maps


def inverted_masks(folder: Path) -> None:
    """Mark the background, not the object."""
    for path in (folder / "mask").glob("*.png"):
        with Image.open(path) as image:
            mask = np.asarray(image.convert("L"))
        Image.fromarray(255 - mask).save(path)


def mirrored_maps(folder: Path) -> None:
    """Mirror all maps and masks from left to right, and leave the normals in them and the cameras as they are."""
    for path in normal_files(folder):
        np.save(path, np.load(path)[:, ::-1])
    for path in (folder / "mask").glob("*.png"):
        with Image.open(path) as image:
            mask = np.asarray(image)
        Image.fromarray(np.ascontiguousarray(mask[:, ::-1])).save(path)


# Frames


def training_frames(change: Callable[[Array, int], Array]) -> Spoil:
    """Replace the frames of the training; those held out stay."""

    def spoil(folder: Path) -> None:
        for i, path in enumerate(sorted(folder.glob("*.png"))):
            if i % 8 == HELD_FRAME:
                continue
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            Image.fromarray(np.ascontiguousarray(change(pixels, i))).save(path)

    return spoil


def of_two_clips(pixels: Array, index: int) -> Array:
    """Put frames of a second clip between those of the first, as where two folders were copied into one."""
    if index % 2:
        return pixels
    return 255 - pond_frame(40 - index, *pixels.shape[:2])[:, ::-1]


CELLAR = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 1500 --schedule-scale 0.05 --regularization none",
    write=cellar(24, 40, 1200),
    good=16.2,
)
FIG = Command(
    pipeline="normals", words=f"{NORMALS} --steps 90", write=fig_normals(10, 28, "--elevations 20 -30 0"), good=-5.0
)
POND = Command(pipeline="video", words=f"{VIDEO} --epochs 45", write=pond_frames(16), good=24.0)


PIPELINES: tuple[Plant, ...] = (
    # Files that nobody sorted: https://github.com/autonomousvision/occupancy_networks/issues/92
    CELLAR.spoilt(
        "cellar photos at the poses of others",
        fault(
            ALL,
            rf"{POSE}|order|name|swap|shuffl|inconsisten|mix",
            rf"{POSE}|order|name|sort|COLMAP|swap",
        ),
        names_of_others,
    ),
    # Cameras of another convention: https://github.com/DL3DV-10K/Dataset/issues/21
    CELLAR.spoilt(
        "cellar cameras with the axes of OpenGL",
        fault(
            ALL,
            rf"{POSE}|ax[ie]s|OpenGL|behind|flip|direction|empty|outside|nothing",
            r"ax[ie]s|OpenGL|OpenCV|convention|pose|camera|COLMAP|flip",
        ),
        other_axes,
    ),
    CELLAR.spoilt(
        "cellar focal length of larger photos",
        fault(
            ALL,
            rf"{POSE}|focal|intrinsic|lens|zoom|magnif|resiz|field of view",
            r"focal|intrinsic|camera|lens|COLMAP|calibrat|resiz|size",
        ),
        scenes.scale_focal(1.8),
    ),
    CELLAR.spoilt(
        "cellar half of the photos overexposed",
        fault(
            ALL,
            r"exposure|exposed|bright|light|clip|saturat|white|inconsisten|differ|colou?r|photo",
            r"--exposure|exposure|exposed|bright|light|colou?r|photo|remove",
        ),
        training_photos(overexposed),
    ),
    CELLAR.flagged(
        "cellar rates forty times",
        fault(SETTINGS, rf"{RATE}|diverg|explod|updates?|spike|oscillat", r"--lr-factor|learning rate"),
        "--lr-factor 40",
    ),
    CELLAR.flagged(
        "cellar hardly any Gaussians",
        fault(
            SETTINGS,
            r"gaussians|growth|\bcap\b|few|population|capacity|densif",
            r"--growth-cap|growth|\bcap\b|gaussians|densif",
        ),
        "--growth-cap 40",
    ),
    FIG.spoilt(
        "fig maps mirrored",
        fault(
            ALL,
            rf"{POSE}|normals?\b|mirror|flip|left|hand(ed|ness)|ax[ie]s|silhouette|hull|mask",
            r"mirror|flip|left|hand(ed|ness)|ax[ie]s|normals?\b|maps?\b|camera|pose",
        ),
        mirrored_maps,
    ),
    FIG.spoilt(
        "fig masks inverted",
        fault(
            ALL,
            rf"{POSE}|mask|silhouette|hull|background|inver|outside|empty",
            r"mask|inver|background|silhouette",
        ),
        inverted_masks,
    ),
    FIG.spoilt(
        "fig normals too flat",
        fault(
            ALL,
            rf"{POSE}|normals?\b|flat|slope|facing|smooth|contradict|inconsisten|silhouette|estimat",
            r"normals?\b|maps?\b|flat|slope|estimat|exaggerat|bake|photometric",
        ),
        scenes.flatten_normals(0.4),
    ),
    FIG.spoilt(
        "fig maps at the poses of others",
        fault(
            ALL,
            rf"{POSE}|order|name|swap|shuffl|silhouette|hull|mask|inconsisten",
            rf"{POSE}|order|name|sort|swap",
        ),
        scenes.change_cameras(lambda count: [(i + 1) % count for i in range(count)]),
    ),
    POND.spoilt(
        "pond frames of two clips",
        fault(
            ALL,
            r"frame|clips?\b|cuts?\b|jump|scene|between|neighbou?r|differ|alternat|mix",
            r"frame|clips?\b|cuts?\b|scene|video|folder|split|mix|remove|separate",
        ),
        training_frames(of_two_clips),
    ),
    POND.flagged(
        "pond rate far too low",
        fault(SETTINGS, rf"{RATE}|slow|hardly|updates?|still (falling|improv)|tiny", r"--lr|learning rate|--epochs"),
        "--lr 0.0001",
    ),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    CELLAR.healthy("cellar"),
    CELLAR.healthy("cellar from smaller photos, with color transforms", more="--longer-side 32 --exposure"),
    FIG.healthy("fig"),
    dataclasses.replace(
        FIG, words=f"{NORMALS} --steps 100", write=spot_normals(12, 28, "--elevations 30 -15"), good=-13.0
    ).healthy("spot from twelve sides, slower", more="--lr 0.003"),
    POND.healthy("pond"),
    dataclasses.replace(POND, write=scenes.bunny_frames(16, (48, 24), 4), good=20.0).healthy(
        "hare of early frames, four at a time", more="--lr 0.006"
    ),
)
