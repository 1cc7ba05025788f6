"""Plants and healthy runs of the pipelines in set k: wrong photos, cameras, maps, frames and flags."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from verdict_runs import scenes
from verdict_runs.cases import Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, spot_normals
from verdict_runs.phrases import ALL, LOUD, RATE, SETTINGS, fault
from verdict_runs.scenes import Spoil, normal_files, photos_of

from .captures import HELD_OUT, acorn_normals, clock_frame, clock_frames, market

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


def moved_aside(pixels: Array, _: int) -> Array:
    """Move a photo by four columns to the right, as where a border was cut off on one side."""
    return np.concatenate([np.repeat(pixels[:, :1], 4, 1), pixels[:, :-4]], 1)


def exposed(pixels: Array, index: int) -> Array:
    """Return photos with the exposures that a camera chose: as it is, too light, too dark."""
    return pixels * (1.0, 2.2, 0.35)[index % 3]


def repeated_photos(scene: Path) -> None:
    """Replace every second photo by the one before it, as where a film has each picture twice; the cameras move on."""
    paths = photos_of(scene)
    for i in range(2, len(paths), 2):
        if i % HELD_OUT:
            paths[i].write_bytes(paths[i - 1].read_bytes())
            if i + 1 < len(paths):
                paths[i + 1].write_bytes(paths[i - 1].read_bytes())


# Normal maps


def flat_maps(folder: Path) -> None:
    """Let every third map face the camera everywhere, as where an estimator did not see the object."""
    for path in normal_files(folder)[1::3]:
        normals = np.load(path)
        inside = np.abs(normals).sum(-1) > 0
        normals[inside] = (0.0, 0.0, 1.0)
        np.save(path, normals)


def boxes_for_masks(folder: Path) -> None:
    """Replace the masks by the boxes around them, and fill the normals there with those that face the camera."""
    for path, mask_path in zip(normal_files(folder), sorted((folder / "mask").glob("*.png")), strict=True):
        with Image.open(mask_path) as image:
            inside = np.asarray(image.convert("L")) > 127
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        box = np.zeros_like(inside)
        box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
        normals = np.load(path)
        normals[box & ~inside] = (0.0, 0.0, 1.0)
        np.save(path, normals)
        Image.fromarray((255 * box).astype(np.uint8)).save(mask_path)


def maps_aside(folder: Path) -> None:
    """Move all maps and masks by three pixels to the right, as where they were made from photos with another border."""
    for path in normal_files(folder):
        np.save(path, np.roll(np.load(path), 3, 1))
    for path in (folder / "mask").glob("*.png"):
        with Image.open(path) as image:
            mask = np.asarray(image)
        Image.fromarray(np.roll(mask, 3, 1)).save(path)


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


def each_twice(pixels: Array, index: int) -> Array:
    """Repeat every second frame, as where a film of fewer frames a second was converted."""
    return clock_frame(index - (index + 1) % 2, *pixels.shape[:2])


MARKET = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 1400 --schedule-scale 0.05 --regularization none",
    write=market(24, 36, 720),
    good=17.0,
)
FEW_POINTS = dataclasses.replace(MARKET, write=market(24, 36, 96), good=15.0)
ACORN = Command(
    pipeline="normals", words=f"{NORMALS} --steps 90", write=acorn_normals(9, 26, "--elevations 30 -25 5"), good=-6.0
)
CLOCK = Command(pipeline="video", words=f"{VIDEO} --epochs 45", write=clock_frames(16), good=21.4)


PIPELINES: tuple[Plant, ...] = (
    # Cameras of photos of another size: https://github.com/yzslab/gaussian-splatting-lightning/issues/5
    MARKET.spoilt(
        "market focal length of smaller photos",
        fault(
            ALL,
            rf"{POSE}|focal|intrinsic|lens|zoom|magnif",
            r"focal|intrinsic|camera|lens|COLMAP|calibrat",
        ),
        scenes.scale_focal(0.7),
    ),
    # The middle of the lens is not that of the photo: https://github.com/graphdeco-inria/gaussian-splatting/pull/568
    MARKET.spoilt(
        "market photos moved aside",
        fault(
            ALL,
            rf"{POSE}|shift|offset|moved|principal|crop|align|inconsisten|differ",
            r"shift|offset|principal|crop|camera|intrinsic|COLMAP|border|photo",
        ),
        training_photos(moved_aside),
    ),
    # Changing light: https://github.com/graphdeco-inria/gaussian-splatting/issues/511
    MARKET.spoilt(
        "market exposure of each photo",
        fault(
            ALL,
            r"exposure|bright|dark|light|inconsisten|differ|colou?r|photo",
            r"--exposure|exposure|bright|light|white balance|colou?r",
        ),
        training_photos(exposed),
    ),
    # Each frame twice: https://github.com/epic-kitchens/epic-kitchens-download-scripts/issues/26
    MARKET.spoilt(
        "market each photo two or three times",
        fault(
            ALL,
            rf"{POSE}|duplicat|identical|repeat|same (photo|picture|image|content)|twice|copies",
            r"duplicat|identical|repeat|same|remove|frame|photo|pose|COLMAP|image name",
        ),
        repeated_photos,
    ),
    # Rates that are too low for few steps: https://github.com/testdotai/classifier-builder/pull/6
    FEW_POINTS.flagged(
        "market rates a hundredth",
        fault(SETTINGS, rf"{RATE}|slow|hardly|updates?|still (falling|improv)", r"--lr-factor|learning rate"),
        "--lr-factor 0.01",
    ),
    # Normals that an estimator did not find, which nobody reported in these words.
    ACORN.spoilt(
        "acorn a third of the maps flat",
        fault(
            ALL,
            r"normals?\b|flat|constant|same|facing|views?\b|maps?\b|contradict|inconsisten",
            r"normals?\b|map|view|flat|estimat|exclude|remove",
        ),
        flat_maps,
    ),
    # Boxes of a detector in place of masks, which nobody reported in these words.
    ACORN.spoilt(
        "acorn boxes for masks",
        fault(
            ALL,
            rf"{POSE}|mask|silhouette|hull|outline|box|rectang|normals?\b",
            r"mask|silhouette|outline|box|segment",
        ),
        boxes_for_masks,
    ),
    # Maps of photos with another border: https://github.com/oppo-us-research/SpacetimeGaussians/issues/77
    ACORN.spoilt(
        "acorn maps moved aside",
        fault(
            ALL,
            rf"{POSE}|shift|offset|moved|principal|crop|align|mask|silhouette|hull",
            r"shift|offset|principal|crop|camera|intrinsic|projection|align|pixel",
        ),
        maps_aside,
    ),
    # A term that silences the others: https://github.com/yuanwei1989/landmark-detection/issues/2
    ACORN.flagged(
        "acorn slopes of one before normals",
        fault(SETTINGS, rf"eikonal|{LOUD}|term|weight", r"--stages|eikonal|weight"),
        '--stages "fit@0 normal=0.01 mask=1 eikonal=10"',
    ),
    # Frames that are repeated: https://github.com/mchengny/RWF2000-Video-Database-for-Violence-Detection/issues/20
    CLOCK.spoilt(
        "clock each frame twice",
        fault(
            ALL,
            r"frame|duplicat|identical|repeat|same|twice|hold|still|jump|between|neighbou?r",
            r"duplicat|identical|repeat|frame rate|fps|frame|clip|video|remove|stride",
        ),
        training_frames(each_twice),
    ),
    # A rate of another optimizer: https://github.com/OpenNMT/OpenNMT-py/issues/805
    CLOCK.flagged(
        "clock rate of another optimizer",
        fault(SETTINGS, rf"{RATE}|diverg|explod|update|spike", r"--lr|learning rate"),
        "--lr 0.5",
    ),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    MARKET.healthy("market"),
    MARKET.healthy("market by relocation, with antialiasing", more="--growth mcmc --antialiased"),
    ACORN.healthy("acorn"),
    dataclasses.replace(
        ACORN, words=f"{NORMALS} --steps 100", write=spot_normals(10, 28, "--elevations 25 -20"), good=-13.0
    ).healthy("spot without a ring of poses", more="--lr 0.002"),
    CLOCK.healthy("clock"),
    dataclasses.replace(CLOCK, write=scenes.bunny_frames(16, (48, 24), 16), good=20.0).healthy(
        "hare in bfloat16", more="--amp"
    ),
)
