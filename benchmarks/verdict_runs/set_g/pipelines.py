"""Plants and healthy runs of the pipelines: photos of a plaza, normal maps of a gourd, frames of a harbor."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from verdict_runs.cases import Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, run_command
from verdict_runs.phrases import ALL, LOUD, SETTINGS, fault
from verdict_runs.scenes import Spoil, normal_files, photos_of, read_registered, write_registered
from verdict_runs.set_c.data import yard

Array = np.ndarray

POSE = r"pose|camera|reproject|registered|match|cover|view|quaternion|rotation|convention"


# Photos


def scalar_last(scene: Path) -> None:
    """Write rotations as x, y, z, w where COLMAP has w, x, y, z."""
    records = read_registered(scene)
    for record in records:
        w, x, y, z, *moved = record.pose
        record.pose = (x, y, z, w, *moved)
    write_registered(scene, records)


def rewrite(path: Path, change: Callable[[Array], Array]) -> None:
    """Change the pixels of a picture, given as float array of 0 to 1."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"), np.float32) / 255
    path.unlink()
    Image.fromarray(np.round(255 * np.clip(change(pixels), 0, 1)).astype(np.uint8)).save(path, quality=95)


def held_upside_down(scene: Path) -> None:
    """Turn two of five photos, as of a phone that was held upside down and whose photos lost that note."""
    for i, path in enumerate(photos_of(scene)):
        if i % 5 in {1, 3}:
            rewrite(path, lambda pixels: pixels[::-1, ::-1])


def passers_by(scene: Path) -> None:
    """Let people walk through all photos, each time in another place."""
    draw = np.random.default_rng(6)

    def crossed(pixels: Array) -> Array:
        height, width = pixels.shape[:2]
        changed = pixels.copy()
        for _ in range(3):
            left = draw.integers(width - width // 4)
            top = draw.integers(height // 3)
            changed[top : top + 2 * height // 3, left : left + width // 4] = draw.random(3)
        return changed

    for path in photos_of(scene):
        rewrite(path, crossed)


def zoomed(scene: Path) -> None:
    """Take every second photo with a zoom of 1.8, and keep its size and its camera."""

    def middle(pixels: Array) -> Array:
        height, width = pixels.shape[:2]
        top = round(0.22 * height)
        left = round(0.22 * width)
        part = Image.fromarray((255 * pixels[top : height - top, left : width - left]).astype(np.uint8))
        return np.asarray(part.resize((width, height), Image.Resampling.BICUBIC), np.float32) / 255

    for path in photos_of(scene)[1::2]:
        rewrite(path, middle)


def halved(scene: Path) -> None:
    """Shrink the photos to half the size of their cameras."""
    for path in photos_of(scene):
        with Image.open(path) as image:
            small = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
        path.unlink()
        small.save(path, quality=95)


def small_plaza(folder: Path) -> None:
    """Write the plaza with photos of half the size of their cameras."""
    yard(16, 36, 480)(folder)
    halved(folder)


# Normal maps


def gourd_normals(views: int, size: int, more: str) -> Spoil:
    """Return what writes normal maps of a gourd with ribs."""

    def write(folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        mesh = folder.parent / "gourd.obj"
        rings = 24
        around = 36
        lines: list[str] = []
        for i in range(rings + 1):
            polar = np.pi * i / rings
            for j in range(around):
                turn = 2 * np.pi * j / around
                radius = (0.75 + 0.2 * np.cos(2 * polar + 0.5)) * (1 + 0.07 * np.cos(5 * turn) * np.sin(polar))
                x = radius * np.sin(polar) * np.cos(turn)
                y = 0.8 * radius * np.sin(polar) * np.sin(turn)
                lines.append(f"v {x:.6f} {y:.6f} {1.2 * radius * np.cos(polar):.6f}")
        for i in range(rings):
            for j in range(around):
                a = i * around + j + 1
                b = i * around + (j + 1) % around + 1
                lines += [f"f {a} {a + around} {b + around}", f"f {a} {b + around} {b}"]
        mesh.write_text("\n".join(lines) + "\n")
        words = f"--views {views} --size {size} --format npy --depth none {more}"
        run_command(["data", "render-normals", str(mesh), "--out", str(folder), *words.split()])

    return write


def read_from_below(folder: Path) -> None:
    """Write maps and masks bottom row first, as a renderer reads them back."""
    for path in normal_files(folder):
        np.save(path, np.ascontiguousarray(np.load(path)[::-1]))
    for path in sorted((folder / "mask").glob("*.png")):
        with Image.open(path) as image:
            pixels = np.asarray(image)
        Image.fromarray(np.ascontiguousarray(pixels[::-1])).save(path)


def flattened(folder: Path) -> None:
    """Halve the slopes of all normals, as an estimator that sees too little shade does."""
    for path in normal_files(folder):
        normals = np.load(path) * np.array([0.4, 0.4, 1.0], np.float32)
        np.save(path, normals / np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-6))


def fat_masks(folder: Path) -> None:
    """Let the masks reach four pixels beyond the object."""
    for path in sorted((folder / "mask").glob("*.png")):
        with Image.open(path) as image:
            Image.Image.filter(image, ImageFilter.MaxFilter(9)).save(path)


def scaled_for_another(factor: float) -> Spoil:
    """Multiply the scale of the sphere in which the object is searched, as copied from another object."""

    def spoil(folder: Path) -> None:
        path = folder / "cameras_sphere.npz"
        with np.load(path) as stored:
            cameras = {key: value.copy() for key, value in stored.items()}
        for key, matrix in cameras.items():
            if key.startswith("scale_mat_") and "inv" not in key:
                matrix[:3, :3] *= factor
        np.savez(path, **{key: value for key, value in cameras.items() if "inv" not in key})

    return spoil


# Frames


def harbor_frames(count: int, height: int = 24, width: int = 48) -> Spoil:
    """Return what writes a clip of two boats that cross before a shore, on water with waves."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        y, x = (np.mgrid[0:height, 0:width] + 0.5) / height
        for i in range(count):
            wave = 0.08 * np.sin(14 * y + 3 * np.sin(4 * x) + 0.5 * i)
            water = np.stack([0.15 + wave, 0.35 + wave, 0.55 + 1.5 * wave], axis=-1)
            houses = 0.5 + 0.3 * np.sign(np.sin(9 * x)) * np.sign(np.sin(17 * y + 1))
            shore = np.stack([0.9 * houses, 0.7 * houses, 0.6 * houses], axis=-1)
            picture = np.where((y < 0.4)[..., None], shore, water)
            for place, level, color in (
                (0.1 + 0.055 * i, 0.55, (0.9, 0.2, 0.1)),
                (1.9 - 0.07 * i, 0.75, (1, 0.9, 0.5)),
            ):
                hull = 0.5 + 0.5 * np.tanh(20 * (0.09 - np.hypot((x - place) / 2, y - level)))
                picture = hull[..., None] * np.array(color) + (1 - hull[..., None]) * picture
            Image.fromarray(np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8)).save(folder / f"{i:03d}.png")

    return write


def unsteady(folder: Path) -> None:
    """Shake the camera from frame to frame."""
    draw = np.random.default_rng(2)
    for path in sorted(folder.glob("*.png")):
        by = draw.integers(-6, 7, 2)
        rewrite(path, lambda pixels, by=by: np.roll(pixels, tuple(by), (0, 1)))


def letterboxed(folder: Path) -> None:
    """Squeeze every second frame between black bars, as of a film of two formats."""
    for i, path in enumerate(sorted(folder.glob("*.png"))):
        if i % 2:
            with Image.open(path) as image:
                whole = image.convert("RGB")
            boxed = Image.new("RGB", whole.size)
            boxed.paste(whole.resize((whole.width, whole.height // 2), Image.Resampling.BOX), (0, whole.height // 4))
            boxed.save(path)


PLAZA = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 1400 --schedule-scale 0.05 --regularization none",
    write=yard(16, 36, 480),
    good=18.0,
)
PLAZA_HALVED = dataclasses.replace(PLAZA, write=small_plaza)
GOURD = Command(
    pipeline="normals", words=f"{NORMALS} --steps 90", write=gourd_normals(9, 26, "--elevations 40 -15 10"), good=-9.0
)
HARBOR = Command(pipeline="video", words=f"{VIDEO} --epochs 45", write=harbor_frames(16), good=20.0)

PIPELINES: tuple[Plant, ...] = (
    PLAZA.spoilt("plaza rotations with the scalar last", fault(ALL, POSE, rf"{POSE}|COLMAP"), scalar_last),
    PLAZA.spoilt(
        "plaza two of five photos upside down",
        fault(ALL, rf"{POSE}|photo|turn|rotat|upside|orient", rf"{POSE}|photo|EXIF|turn|rotat|upside|orient"),
        held_upside_down,
    ),
    PLAZA.spoilt(
        "plaza people in all photos",
        fault(ALL, r"photo|view|occlu|transient|moving|differ|inconsisten|mask", r"mask|exclude|photo|occlu|moving"),
        passers_by,
    ),
    PLAZA.spoilt(
        "plaza every second photo zoomed",
        fault(ALL, rf"{POSE}|focal|intrinsic|lens|zoom|calibrat", r"focal|intrinsic|lens|zoom|calibrat|camera|COLMAP"),
        zoomed,
    ),
    PLAZA.flagged(
        "plaza prunes what is larger than .002",
        fault(SETTINGS, r"prun|size|largest|population|fewer|number of gaussians", r"--largest-size|prun"),
        "--largest-size 0.002",
    ),
    GOURD.spoilt(
        "gourd maps bottom row first",
        fault(ALL, rf"{POSE}|flip|upside|mirror|row|ax[ie]s|mask|silhouette", r"flip|row|upside|mirror|ax[ie]s|camera"),
        read_from_below,
    ),
    GOURD.spoilt(
        "gourd sphere of a smaller object",
        fault(
            ALL,
            rf"{POSE}|scale|sphere|outside|unit|bound|cut|mask|silhouette",
            r"scale|sphere|unit|bound|camera|normali[sz]",
        ),
        scaled_for_another(0.4),
    ),
    GOURD.spoilt(
        "gourd slopes too flat",
        fault(ALL, rf"{POSE}|slope|flat|ax[ie]s|normal|hull|silhouette|mask", r"slope|normal|map|ax[ie]s|scale"),
        flattened,
    ),
    GOURD.spoilt(
        "gourd masks four pixels too wide",
        fault(ALL, rf"{POSE}|mask|silhouette|hull|background|object", r"mask|silhouette|erode|object"),
        fat_masks,
    ),
    GOURD.flagged(
        "gourd read in world axes",
        fault(SETTINGS, r"world|space|ax[ie]s|facing|outward|camera", r"--space|space|ax[ie]s"),
        "--space world",
    ),
    GOURD.flagged(
        "gourd poses of a ring",
        fault(SETTINGS, rf"{POSE}|ring", r"--pose-start|pose|camera|--learn"),
        "--pose-start ring",
    ),
    HARBOR.spoilt(
        "harbor camera that shakes",
        fault(
            ALL,
            r"frame|shak|jump|jitter|motion|between|neighbou?r|order|align",
            r"frame|shak|stabili[sz]|align|clip|order|motion",
        ),
        unsteady,
    ),
    HARBOR.spoilt(
        "harbor half of the frames letterboxed",
        fault(
            ALL,
            r"frame|bars?\b|crop|border|black|jump|between|neighbou?r|order|size",
            r"frame|bars?\b|crop|border|clip|order|size|resolution",
        ),
        letterboxed,
    ),
    HARBOR.flagged(
        "harbor trained on one frame of eight",
        fault(SETTINGS, rf"frame|split|few|{LOUD}", r"--data-split|split|frames"),
        "--data-split 1_1_8",
    ),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    PLAZA.healthy("plaza"),
    PLAZA_HALVED.healthy("plaza photos at half size"),
    GOURD.healthy("gourd"),
    HARBOR.healthy("harbor"),
    HARBOR.healthy("harbor in bfloat16", more="--amp"),
)
