"""Plants and healthy runs of the pipelines in set j: wrong photos, cameras, maps, frames and flags."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from verdict_runs import scenes
from verdict_runs.cases import Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, spot_normals
from verdict_runs.phrases import ALL, LOUD, SETTINGS, fault
from verdict_runs.scenes import Spoil, normal_files, photos_of

from .captures import HELD_OUT, fair_frames, pear_normals, terrace

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


def read_line_by_line(pixels: Array, index: int) -> Array:
    """Shift each row of a photo a little more than the one above it, as where the camera moves while it reads them."""
    height = len(pixels)
    pace = (0.8, -0.8, 0.6, -0.6)[index % 4]
    rows = [np.roll(row, round(pace * (i - height / 2)), 0) for i, row in enumerate(pixels)]
    return np.stack(rows)


def without_curve(pixels: Array, index: int) -> Array:
    """Return every second photo as light, not as the screen wants it."""
    return pixels**2.2 if index % 2 else pixels


# Normal maps


def without_signs(folder: Path) -> None:
    """Store the absolute values of all normals, as pictures without negative numbers do."""
    for path in normal_files(folder):
        np.save(path, np.abs(np.load(path)))


def world_from_camera(folder: Path) -> None:
    """Store the projections with poses that lead from the camera to the world, not from the world to the camera."""
    path = folder / "cameras_sphere.npz"
    with np.load(path) as stored:
        cameras = {key: value for key, value in stored.items() if not key.startswith("world_mat_inv_")}
    for key, value in list(cameras.items()):
        if not key.startswith("world_mat_"):
            continue
        projection = value.astype(np.float64)[:3, :4]
        # The lens is the upper triangle of the RQ decomposition.
        flip = np.eye(3)[::-1]
        q, r = np.linalg.qr((flip @ projection[:, :3]).T)
        lens = flip @ r.T @ flip
        rotation = flip @ q.T
        signs = np.diag(np.sign(np.diag(lens)))
        lens, rotation = lens @ signs, signs @ rotation
        pose = np.eye(4)
        pose[:3, :3] = rotation
        pose[:3, 3] = np.linalg.solve(lens, projection[:, 3])
        matrix = np.eye(4)
        matrix[:3, :4] = lens @ np.linalg.inv(pose)[:3]
        cameras[key] = matrix
    np.savez(path, **cameras)


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


def held_the_other_way(pixels: Array, index: int) -> Array:
    """Turn two frames of four by half a turn, as where the phone was turned and its notes were lost."""
    return pixels[::-1, ::-1] if index // 2 % 2 else pixels


def planes_swapped(pixels: Array, index: int) -> Array:
    """Exchange the two planes of color of every second frame, as of two cameras with one decoder."""
    if index % 2:
        return pixels
    parts = Image.fromarray(pixels).convert("YCbCr").split()
    return np.asarray(Image.merge("YCbCr", (parts[0], parts[2], parts[1])).convert("RGB"))


TERRACE = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 1400 --schedule-scale 0.05 --regularization none",
    write=terrace(24, 36, 720),
    good=17.0,
)
FEW_POINTS = dataclasses.replace(TERRACE, write=terrace(24, 36, 96), good=15.0)
PEAR = Command(
    pipeline="normals", words=f"{NORMALS} --steps 90", write=pear_normals(9, 26, "--elevations 35 -20 10"), good=-5.0
)
FAIR = Command(pipeline="video", words=f"{VIDEO} --epochs 45", write=fair_frames(16), good=20.0)


PIPELINES: tuple[Plant, ...] = (
    # Rows are read one after the other: https://github.com/SpectacularAI/3dgs-deblur/issues/11
    TERRACE.spoilt(
        "terrace rows read in passing",
        fault(
            ALL,
            rf"{POSE}|photo|shutter|row|skew|distort|inconsisten|differ|lens",
            r"shutter|photo|camera|skew|distort|calibrat|COLMAP|row|lens",
        ),
        training_photos(read_line_by_line),
    ),
    # Light or what the screen wants: https://github.com/NVlabs/instant-ngp/issues/226
    TERRACE.spoilt(
        "terrace half of the photos linear",
        fault(
            ALL,
            r"photo|exposure|bright|dark|gamma|linear|inconsisten|differ|colou?r",
            r"--exposure|gamma|linear|sRGB|exposure|photo|bright|colou?r",
        ),
        training_photos(without_curve),
    ),
    # Blurred where nothing is added: https://github.com/hbb1/2d-gaussian-splatting/issues/173
    FEW_POINTS.flagged(
        "terrace threshold of another program",
        fault(SETTINGS, r"grow|densif|population|number of gaussians|few|threshold|clon|split", r"--growth-pull"),
        "--growth-pull 10 --split-size 0",
    ),
    # Absolute values of normals: https://github.com/ydrive/EasySynth/pull/57
    PEAR.spoilt(
        "pear normals without signs",
        fault(
            ALL,
            rf"{POSE}|normals?\b|sign|negative|ax[ie]s|absolute|octant|maps?\b",
            r"sign|negative|absolute|encod|decod|normals?\b|map|ax[ie]s",
        ),
        without_signs,
    ),
    # From the camera to the world: https://github.com/Livioni/OmniVGGT-official/issues/11
    PEAR.spoilt(
        "pear poses from camera to world",
        fault(
            ALL,
            rf"{POSE}|invert|inverse|extrinsic|silhouette|mask|hull|outside",
            r"pose|camera|invert|inverse|extrinsic|projection|world",
        ),
        world_from_camera,
    ),
    # Nothing is said of what is outside: https://github.com/nerfstudio-project/nerfstudio/issues/1498
    PEAR.flagged(
        "pear rays inside the masks alone",
        fault(SETTINGS, r"inside|outside|mask|background|rays|silhouette|empty", r"--inside"),
        "--inside 0.999",
        good=-3.2,
    ),
    # Frames of a phone that was turned: https://github.com/apple/ARKitScenes/issues/10
    FAIR.spoilt(
        "fair phone turned in between",
        fault(
            ALL,
            r"frame|turn|rotat|upside|orient|jump|between|neighbou?r|order|differ",
            r"frame|turn|rotat|upside|orient|metadata|clip|video|order",
        ),
        training_frames(held_the_other_way),
    ),
    # Planes of color in the other order: https://github.com/pion/mediadevices/pull/313
    FAIR.spoilt(
        "fair planes of color exchanged",
        fault(
            ALL,
            r"frame|colou?r|chroma|channel|plane|jump|flicker|between|neighbou?r|differ",
            r"frame|colou?r|chroma|channel|plane|decod|NV12|YUV|clip|video",
        ),
        training_frames(planes_swapped),
    ),
    # A weight of the semantic term that is right for another loss, which nobody reported.
    FAIR.flagged(
        "fair meaning before pixels",
        fault(SETTINGS, rf"{LOUD}|semantic|clip_loss|embedding|term", r"--clip-loss-weight|--pixel-weight|weight"),
        "--clip-loss-weight 30",
        also="--pixel-loss-warmup-epochs 0",
    ),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    TERRACE.healthy("terrace"),
    dataclasses.replace(
        TERRACE, write=scenes.plush_scene, words=f"{TERRACE.words} --longer-side 36", good=14.0
    ).healthy("plush toy with color transforms and relocation", more="--exposure --growth mcmc"),
    PEAR.healthy("pear"),
    dataclasses.replace(
        PEAR, words=f"{NORMALS} --steps 100", write=spot_normals(11, 28, "--elevations 20 -25"), good=-13.0
    ).healthy("spot by robust differences", more="--normal-norm l2"),
    FAIR.healthy("fair"),
    dataclasses.replace(FAIR, write=scenes.bunny_frames(16, (48, 24), 8), good=20.0).healthy(
        "hare of later frames, without a semantic loss", more="--clip-loss-weight 0"
    ),
)
