"""Plants and healthy runs of the pipelines: photos of a room, normal maps of a cow, frames of a clip."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from verdict_runs import scenes
from verdict_runs.cases import Fault, Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, last_value, spot_normals, worst_view
from verdict_runs.phrases import ALL
from verdict_runs.scenes import Spoil, normal_files, read_registered, write_registered

Array = np.ndarray

WORSE = r"worse|held.?out|mean colou?r|random|baseline|trivial|not (fall|decreas|improv)"

PHOTO = Fault(
    kind="one photo, map or frame",
    cause=r"sample|view|photo|frame|camera|mask|picture|image",
    remedy=r"sample|view|photo|frame|pose|mask|exclude|picture|image|camera",
)
POSES = Fault(
    kind=ALL,
    cause=rf"pose|reproject|camera|registered|match|axis|axes|convention|{WORSE}",
    remedy=r"pose|camera|COLMAP|convention|axes|axis",
)


def each_photo(change: Callable[[int, Array], Array], count: int) -> Spoil:
    """Change the pixels of all photos of a scene, each in its own way."""

    def spoil(scene: Path) -> None:
        for i in range(count):
            scenes.change_photo(i, lambda pixels, i=i: change(i, pixels))(scene)

    return spoil


def exposed(index: int, pixels: Array) -> Array:
    """Return a photo as an automatic exposure takes it, which changes from photo to photo."""
    return pixels * (0.35, 1.0, 1.9, 0.6, 1.4)[index % 5]


def blurred(pixels: Array) -> Array:
    """Return a picture that was moved while it was taken."""
    return np.mean([np.roll(pixels, i, axis=1) for i in range(-7, 8)], axis=0)


def other_convention(scene: Path) -> None:
    """Write poses whose y axis points up and whose z axis points backward, as OpenGL has them."""
    records = read_registered(scene)
    for record in records:
        w, x, y, z, *moved = record.pose
        # Half a turn about x, before the pose: (0, 1, 0, 0) times (w, x, y, z).
        record.pose = (-x, w, -z, y, moved[0], -moved[1], -moved[2])
    write_registered(scene, records)


def shaken(spread: float) -> Spoil:
    """Add noise to the translations of all poses."""

    def spoil(scene: Path) -> None:
        records = read_registered(scene)
        draw = np.random.default_rng(12)
        for record in records:
            moved = np.array(record.pose[4:]) + spread * draw.normal(size=3)
            record.pose = (*record.pose[:4], *(float(value) for value in moved))
        write_registered(scene, records)

    return spoil


def change_maps(change: Callable[[Array], Array], *indices: int) -> Spoil:
    """Change the normals of some views, or of all if none is given."""

    def spoil(folder: Path) -> None:
        files = normal_files(folder)
        for i in indices or range(len(files)):
            np.save(files[i], np.ascontiguousarray(change(np.load(files[i]))))

    return spoil


def full_masks(folder: Path) -> None:
    """Write masks that are white everywhere."""
    for path in sorted((folder / "mask").glob("*.png")):
        with Image.open(path) as image:
            pixels = np.asarray(image)
        Image.fromarray(np.full_like(pixels, 255)).save(path)


def interleaved(folder: Path) -> None:
    """Replace every second frame by one of another clip, as of a film with many cuts."""
    for i, path in enumerate(sorted(folder.glob("*.png"))):
        if i % 2:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            y, x = np.mgrid[0 : pixels.shape[0], 0 : pixels.shape[1]] // 3
            board = np.where((x + y + i) % 2 == 0, 230, 20)
            Image.fromarray(np.stack([board, 255 - board, board // 2], -1).astype(np.uint8)).save(path)


ROOM = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 700 --schedule-scale 0.035 --regularization none",
    write=scenes.solid_scene(12, 32, 260),
    good=18.0,
)
ROOM_VIEWS = dataclasses.replace(ROOM, figure=worst_view, good=-1.6)
STEER = Command(
    pipeline="normals", words=f"{NORMALS} --steps 80", write=spot_normals(8, 28, "--elevations 15 -40"), good=-11.0
)
HARE = Command(pipeline="video", words=f"{VIDEO} --epochs 40", write=scenes.bunny_frames(14, (44, 22), 2), good=21.0)
HARE_FRAMES = dataclasses.replace(HARE, figure=last_value("Eval/PSNR_Stats/train_min"), good=22.0)


PIPELINES: tuple[Plant, ...] = (
    ROOM_VIEWS.spoilt(
        "room one photo upside down", PHOTO, scenes.change_photo(6, scenes.upside_down), names=("view_006",)
    ),
    ROOM.spoilt(
        "room exposure from photo to photo",
        Fault(
            kind=ALL,
            cause=rf"exposure|bright|expos|light|colou?r|gain|{WORSE}",
            remedy=r"exposure|bright|expos|light|colou?r|gain",
        ),
        each_photo(exposed, 12),
    ),
    ROOM.spoilt("room poses of opengl", POSES, other_convention),
    ROOM.spoilt("room poses shaken", POSES, shaken(0.4)),
    STEER.spoilt(
        "steer one map turned outside in",
        PHOTO,
        change_maps(lambda normals: normals * np.array([-1.0, -1.0, 1.0], np.float32), 5),
        names=("005", "'5'", "view 5", "sample 5", "map 5"),
    ),
    STEER.spoilt(
        "steer masks all white",
        Fault(kind=ALL, cause=rf"mask|background|silhouette|object|{WORSE}", remedy=r"mask|background|silhouette"),
        full_masks,
    ),
    STEER.spoilt(
        "steer blue channel first",
        Fault(
            kind=ALL,
            cause=rf"ax[ie]s|facing|outward|channel|\bsigns?\b|{WORSE}",
            remedy=r"--axes|--normals|ax[ie]s|channel|map",
        ),
        change_maps(lambda normals: normals[..., ::-1]),
    ),
    HARE_FRAMES.spoilt(
        "hare one frame of another clip",
        PHOTO,
        scenes.change_frame(8, lambda pixels: (np.indices(pixels.shape).sum(0) // 2 % 2).astype(np.float32)),
        names=("8",),
    ),
    HARE.spoilt(
        "hare cut from two clips",
        Fault(
            kind=ALL,
            cause=rf"frame|cut|clip|order|jump|neighbou?r|between|gap|{WORSE}",
            remedy=r"frame|cut|clip|order|scene|shot",
        ),
        interleaved,
    ),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    ROOM.healthy("room"),
    STEER.healthy("steer"),
    HARE.healthy("hare"),
)
