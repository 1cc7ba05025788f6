"""Plants and healthy runs of the pipelines in set i: wrong photos, cameras, maps, frames and flags."""

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from verdict_runs import scenes
from verdict_runs.cases import Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, spot_normals
from verdict_runs.phrases import ALL, BLOWN, INPUTS, SETTINGS, SMALL, fault
from verdict_runs.scenes import Spoil, normal_files, photos_of, read_registered, write_registered

from .captures import aquarium_frames, bell_normals, studio

Array = np.ndarray

POSE = r"pose|camera|reproject|registered|match|cover|view|convention"
HELD_OUT = 4
"""Every fourth photo is held out; photos are spoilt for the training alone, so that the figure is of sound ones."""
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


def dark_corners(pixels: Array, _: int) -> Array:
    """Darken a photo from its middle to its corners, as a cheap wide lens does."""
    height, width = pixels.shape[:2]
    y, x = np.mgrid[0:height, 0:width]
    away = ((x - width / 2) / (width / 2)) ** 2 + ((y - height / 2) / (height / 2)) ** 2
    return pixels * np.clip(1 - 0.6 * away, 0.02, 1)[..., None]


def white_balance(pixels: Array, index: int) -> Array:
    """Scale the channels of a photo, as an automatic white balance that follows the view does."""
    warm = np.sin(1.9 * index)
    return pixels * np.array([1 + 0.6 * warm, 1.0, 1 - 0.6 * warm])


def visited(scene: Path) -> None:
    """Let a person walk through the photos of the training, and write masks of them; black pixels are ignored."""
    (scene / "masks").mkdir()
    for i, path in enumerate(photos_of(scene)):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB")).copy()
        height, width = pixels.shape[:2]
        person = np.zeros((height, width), bool)
        if i % HELD_OUT:
            left = int(width * (0.1 + 0.13 * (i % 5)))
            person[height // 3 :, left : left + width // 4] = True
            pixels[person] = (40 + 11 * (i % 7), 60, 150 - 9 * (i % 9))
            path.unlink()
            Image.fromarray(pixels).save(path, quality=95)
        Image.fromarray(np.where(person, 0, 255).astype(np.uint8)).save(scene / "masks" / f"{path.stem}.png")


def inverted_masks(scene: Path) -> None:
    """Mark what is to be ignored in white, as other projects do."""
    for i, path in enumerate(sorted((scene / "masks").iterdir())):
        if i % HELD_OUT:
            with Image.open(path) as image:
                pixels = np.asarray(image)
            Image.fromarray(255 - pixels).save(path)


def left_handed(scene: Path) -> None:
    """Keep the rotations of an engine with left-handed axes: positions have their y mirrored, rotations do not."""
    records = read_registered(scene)
    for record in records:
        w, x, y, z, *moved = record.pose
        rotation = _matrix(w, x, y, z)
        center = -rotation.T @ np.array(moved)
        center[1] = -center[1]
        translation = -rotation @ center
        record.pose = (w, x, y, z, *(float(one) for one in translation))
    write_registered(scene, records)


def _matrix(w: float, x: float, y: float, z: float) -> Array:
    """Return the rotation of a quaternion."""
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def centers_in_other_units(factor: float) -> Spoil:
    """Multiply the positions of the cameras, as of a tracker in other units than the cloud of points."""

    def spoil(scene: Path) -> None:
        records = read_registered(scene)
        for record in records:
            record.pose = (*record.pose[:4], *(factor * one for one in record.pose[4:]))
        write_registered(scene, records)

    return spoil


def principal_point(shift: float) -> Spoil:
    """Move the principal points of all PINHOLE cameras, by a share of the width."""

    def spoil(scene: Path) -> None:
        path = scene / "sparse" / "0" / "cameras.bin"
        data = bytearray(path.read_bytes())
        (count,) = struct.unpack_from("<Q", data)
        for i in range(count):
            at = 8 + 56 * i + 24
            (width,) = struct.unpack_from("<Q", data, 8 + 56 * i + 8)
            cx, cy = struct.unpack_from("<2d", data, at + 16)
            struct.pack_into("<2d", data, at + 16, cx + shift * width, cy + shift * width)
        path.write_bytes(bytes(data))

    return spoil


# Normal maps


def mixed_conventions(folder: Path) -> None:
    """Let y point down in every second map, as where two programs made the maps."""
    for path in normal_files(folder)[1::2]:
        np.save(path, np.load(path) * np.array([1, -1, 1], np.float32))


def two_channels(folder: Path) -> None:
    """Restore z as 1 - x * x - y * y, without the root, from maps that were stored with two channels."""
    for path in normal_files(folder):
        normals = np.load(path)
        lit = np.linalg.norm(normals, axis=-1) > 0.5
        normals[..., 2] = np.where(lit, 1 - normals[..., 0] ** 2 - normals[..., 1] ** 2, 0)
        length = np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-6)
        np.save(path, (normals / length).astype(np.float32))


def _project(folder: Path, change: Callable[[Array], Array]) -> None:
    """Change the projections of all views of normal maps."""
    path = folder / "cameras_sphere.npz"
    with np.load(path) as stored:
        cameras = {key: value for key, value in stored.items() if not key.startswith("world_mat_inv_")}
    for key, matrix in list(cameras.items()):
        if key.startswith("world_mat_"):
            cameras[key] = change(matrix.astype(np.float64))
    np.savez(path, **cameras)


def cropped_maps(pixels: float) -> Spoil:
    """Move the principal points, as where maps were cropped and the cameras are those of the full photos."""

    def spoil(folder: Path) -> None:
        def moved(matrix: Array) -> Array:
            matrix[0] += pixels * matrix[2]
            matrix[1] += pixels * matrix[2]
            return matrix

        _project(folder, moved)

    return spoil


def farther(factor: float) -> Spoil:
    """Multiply the translations of the projections, as of cameras in other units than the sphere."""

    def spoil(folder: Path) -> None:
        def moved(matrix: Array) -> Array:
            matrix[:3, 3] *= factor
            return matrix

        _project(folder, moved)

    return spoil


# Frames


def training_frames(change: Callable[[list[Array], int], Array]) -> Spoil:
    """Replace the frames of the training; those held out stay."""

    def spoil(folder: Path) -> None:
        files = sorted(folder.glob("*.png"))
        frames = [np.asarray(Image.open(path).convert("RGB")) for path in files]
        for i, path in enumerate(files):
            if i % 8 != HELD_FRAME:
                Image.fromarray(change(frames, i)).save(path)

    return spoil


def held_frames(frames: list[Array], index: int) -> Array:
    """Hold every fourth frame for four, as a screen recording of a slow stream does."""
    return frames[index - index % 4]


def dropped_out(frames: list[Array], index: int) -> Array:
    """Return black for two frames of five, as a decoder does for what is damaged."""
    return np.zeros_like(frames[index]) if index % 5 in {1, 3} else frames[index]


STUDIO = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 1400 --schedule-scale 0.05 --regularization none",
    write=studio(24, 36, 720),
    good=18.0,
)
BELL = Command(
    pipeline="normals", words=f"{NORMALS} --steps 90", write=bell_normals(9, 26, "--elevations 35 -20 10"), good=-5.0
)
AQUARIUM = Command(pipeline="video", words=f"{VIDEO} --epochs 45", write=aquarium_frames(16), good=21.5)


def _both(first: Spoil, second: Spoil) -> Spoil:
    """Return what writes data and changes them."""

    def write(folder: Path) -> None:
        first(folder)
        second(folder)

    return write


STUDIO_PHOTOS = studio(24, 36, 720)
VISITED = dataclasses.replace(STUDIO, write=_both(STUDIO_PHOTOS, visited))
UNEVEN = dataclasses.replace(STUDIO, write=_both(STUDIO_PHOTOS, training_photos(white_balance)), good=14.0)

PIPELINES: tuple[Plant, ...] = (
    # Lens vignetting is one of the per-photo effects that https://github.com/MrNeRF/LichtFeld-Studio/pull/1892 names.
    STUDIO.spoilt(
        "studio corners dark",
        fault(
            ALL,
            r"photo|vignet|dark|corner|exposure|bright|inconsisten|differ|light",
            r"vignet|exposure|photo|corner|lens|crop|mask|flat.?field|light",
        ),
        training_photos(dark_corners),
    ),
    # Photos of one scene with different exposures and colors: https://github.com/hbb1/2d-gaussian-splatting/issues/99
    STUDIO.spoilt(
        "studio white balance of each photo",
        fault(
            ALL,
            r"photo|white.?balance|colou?r|exposure|bright|inconsisten|differ",
            r"--exposure|white.?balance|exposure|colou?r|photo",
        ),
        training_photos(white_balance),
    ),
    # White means "ignore" for one program and "keep" for another: https://github.com/NVlabs/instant-ngp/issues/176
    VISITED.spoilt(
        "studio masks keep the visitor",
        fault(ALL, r"mask|inver|photo|cover|ignored|share of", r"mask|inver"),
        inverted_masks,
    ),
    # Poses of an engine with left-handed axes: https://github.com/aras-p/UnityGaussianSplatting/issues/133
    STUDIO.spoilt(
        "studio positions of left-handed axes",
        fault(
            ALL,
            rf"{POSE}|hand|mirror|ax[ie]s|points?\b|observ",
            r"hand|mirror|ax[ie]s|pose|camera|COLMAP|convention|export",
        ),
        left_handed,
    ),
    # Camera positions with another scale than the points: https://github.com/jc211/NeRFCapture/issues/4
    STUDIO.spoilt(
        "studio cameras in feet",
        fault(ALL, rf"{POSE}|scale|unit|points?\b|observ|outside", r"scale|unit|pose|camera|points|COLMAP"),
        centers_in_other_units(1.6),
    ),
    # A principal point that is not the middle: https://github.com/graphdeco-inria/gaussian-splatting/issues/1010
    STUDIO.spoilt(
        "studio principal point of another camera",
        fault(
            ALL,
            rf"{POSE}|principal|intrinsic|calibrat|\bcx\b|center|observ",
            r"principal|intrinsic|calibrat|camera|\bcx\b|COLMAP|crop",
        ),
        principal_point(0.15),
    ),
    # Settings copied from another scene: https://github.com/graphdeco-inria/gaussian-splatting/issues/779
    STUDIO.flagged(
        "studio size limit of a large scene",
        fault(SETTINGS, r"size|large|prun|population|number of gaussians|remov|shrink", r"--largest-size"),
        "--largest-size 0.0005 --growth-until 7000",
    ),
    # Signs of y by OpenCV and OpenGL: https://github.com/maturk/dn-splatter/issues/9
    BELL.spoilt(
        "bell maps of two programs",
        fault(
            ALL,
            rf"{POSE}|normals?\b|ax[ie]s|flip|sign|facing|disagree|contradict|maps?\b",
            r"ax[ie]s|normals?\b|map|view|flip|sign|--axes|convention",
        ),
        mixed_conventions,
    ),
    # Normals that are not of length one after decoding: https://github.com/shaomq2187/TransPIR/issues/7
    BELL.spoilt(
        "bell z restored without the root",
        fault(
            ALL,
            rf"{POSE}|normals?\b|slope|steep|\bz\b|unit|length|outline|silhouette",
            r"normals?\b|map|\bz\b|slope|root|encod|decod|unit|length|normali[sz]|channel",
        ),
        two_channels,
    ),
    # Cameras of full photos for cropped maps: https://github.com/CyberAgentAILab/SuperNormal/issues/15
    BELL.spoilt(
        "bell maps cropped, cameras not",
        fault(
            ALL,
            rf"{POSE}|principal|intrinsic|crop|silhouette|mask|hull",
            r"principal|intrinsic|crop|camera|calibrat|\bpixel|center",
        ),
        cropped_maps(4.0),
    ),
    # The object does not fit the sphere: https://github.com/Totoro97/NeuS/issues/80
    BELL.spoilt(
        "bell cameras in other units",
        fault(
            ALL,
            rf"{POSE}|sphere|scale|unit|distance|outside|silhouette|mask|hull|small",
            r"scale|unit|scale_mat|sphere|camera|translation|pose",
        ),
        farther(1.35),
    ),
    # In which space the normals are: https://github.com/autonomousvision/monosdf/issues/66
    BELL.flagged(
        "bell read with the axes of another program",
        fault(SETTINGS, rf"{POSE}|ax[ie]s|normals?\b|flip|facing|sign", r"--axes"),
        "--axes opencv",
    ),
    # Frames that a recorder repeats: https://github.com/iperov/DeepFaceLab/pull/5286
    AQUARIUM.spoilt(
        "aquarium frames held for four",
        fault(
            ALL,
            r"frame|duplicat|repeat|identical|same|held|jump|between|neighbou?r|order|stutter",
            r"frame|duplicat|repeat|rate|clip|video|--stride",
        ),
        training_frames(held_frames),
    ),
    # Frames that did not decode: https://github.com/dmlc/decord/issues/83
    AQUARIUM.spoilt(
        "aquarium frames lost",
        fault(
            ALL,
            r"frame|black|blank|uniform|constant|corrupt|jump|between|neighbou?r|order|outlier",
            r"frame|black|blank|uniform|corrupt|decod|remove|clip|video",
        ),
        training_frames(dropped_out),
    ),
    # A setting of the optimizer that nobody reported, but that is easily mistyped; so is the next one.
    AQUARIUM.flagged(
        "aquarium clipped to nothing",
        fault(SETTINGS, rf"clip|{SMALL}", r"--clip-norm"),
        "--clip-norm 0.0000001",
    ),
    AQUARIUM.flagged(
        "aquarium memory of the optimizer too short",
        fault(SETTINGS, rf"beta|moment|{BLOWN}|{INPUTS}|update", r"--beta2|--lr"),
        "--beta2 0.05",
    ),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    STUDIO.healthy("studio"),
    VISITED.healthy("studio visitor masked"),
    UNEVEN.healthy("studio uneven photos with learned colors", more="--exposure"),
    dataclasses.replace(STUDIO, write=scenes.plush_scene, words=f"{STUDIO.words} --longer-side 36", good=14.0).healthy(
        "plush of real photos with signed gradients", more="--growth-gradient signed --growth-pull 0.0002"
    ),
    BELL.healthy("bell"),
    dataclasses.replace(
        BELL, words=f"{NORMALS} --steps 100", write=spot_normals(10, 28, "--elevations 15 -30"), good=-13.0
    ).healthy("spot by finite differences", more="--gradient-method fd"),
    AQUARIUM.healthy("aquarium"),
    dataclasses.replace(AQUARIUM, write=scenes.bunny_frames(16, (48, 24), 2), good=21.0).healthy(
        "hare in real frames by absolute errors", more="--loss L1"
    ),
)
