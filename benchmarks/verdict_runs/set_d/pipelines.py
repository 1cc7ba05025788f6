"""Plants and healthy runs of the pipelines: small photos, normal maps of a cow, frames of a rabbit."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from verdict_runs import scenes
from verdict_runs.cases import Fault, Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, last_value, spot_normals, worst_view
from verdict_runs.scenes import Spoil, normal_files, read_registered, write_registered

Array = np.ndarray

RATE = r"learning.?rate|\blr\b|--lr|\brates?\b"
PHOTO = Fault(
    kind="one photo, map or frame",
    cause=r"sample|view|photo|frame|camera|mask|picture|image",
    remedy=r"sample|view|photo|frame|pose|mask|exclude|picture|image|camera",
)
POSES = Fault(
    kind="all photos or maps",
    cause=r"pose|reproject|camera|mirror|order|registered|match",
    remedy=r"pose|camera|COLMAP|image name|name|mirror|flip|order",
)


def mirrored(pixels: Array) -> Array:
    """Return a picture mirrored in x."""
    return pixels[:, ::-1]


def torn(pixels: Array) -> Array:
    """Return a picture whose lines are out of order and moved sideways."""
    lines = np.random.default_rng(5).permutation(len(pixels))
    return np.stack([np.roll(pixels[line], 7 * line, axis=0) for line in lines])


def change_photos(change: Callable[[Array], Array], count: int) -> Spoil:
    """Change the pixels of all photos of a scene."""

    def spoil(scene: Path) -> None:
        for i in range(count):
            scenes.change_photo(i, change)(scene)

    return spoil


def roll_names(scene: Path) -> None:
    """Give every photo the pose of the one before it."""
    records = read_registered(scene)
    names = [record.name for record in records]
    for record, name in zip(records, [*names[1:], names[0]], strict=True):
        record.name = name
    write_registered(scene, records)


def move_sideways(index: int, distance: float) -> Spoil:
    """Move one camera along its own x axis."""

    def spoil(scene: Path) -> None:
        records = read_registered(scene)
        *turn, x, y, z = records[index].pose
        records[index].pose = (*turn, x + distance, y, z)
        write_registered(scene, records)

    return spoil


def change_normals(change: Callable[[Array], Array]) -> Spoil:
    """Change the normals of all views."""

    def spoil(folder: Path) -> None:
        for path in normal_files(folder):
            np.save(path, np.ascontiguousarray(change(np.load(path))))

    return spoil


def change_masks(change: Callable[[Array], Array], *indices: int) -> Spoil:
    """Change the masks of some views, or of all if none is given."""

    def spoil(folder: Path) -> None:
        files = sorted((folder / "mask").glob("*.png"))
        for i in indices or range(len(files)):
            with Image.open(files[i]) as image:
                pixels = np.asarray(image)
            Image.fromarray(np.ascontiguousarray(change(pixels))).save(files[i])

    return spoil


COURT = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 900 --schedule-scale 0.04 --regularization none",
    write=scenes.solid_scene(13, 36, 300),
    good=18.0,
)
COURT_VIEWS = dataclasses.replace(COURT, figure=worst_view, good=-1.55)
COW = Command(
    pipeline="normals", words=f"{NORMALS} --steps 100", write=spot_normals(7, 26, "--elevations 30 -25 50"), good=-10.0
)
RABBIT = Command(pipeline="video", words=f"{VIDEO} --epochs 45", write=scenes.bunny_frames(14, (48, 24), 9), good=22.0)
RABBIT_FRAMES = dataclasses.replace(RABBIT, figure=last_value("Eval/PSNR_Stats/train_min"), good=22.5)


def settings(cause: str, remedy: str) -> Fault:
    """Return the fault of a setting."""
    return Fault(kind="settings of a pipeline", cause=cause, remedy=remedy)


PIPELINES: tuple[Plant, ...] = (
    COURT_VIEWS.spoilt("court one photo mirrored", PHOTO, scenes.change_photo(5, mirrored), names=("view_005",)),
    COURT_VIEWS.spoilt(
        "court one photo black",
        PHOTO,
        scenes.change_photo(7, lambda pixels: 0 * pixels),
        names=("view_007",),
    ),
    COURT_VIEWS.spoilt(
        "court one photo in blue, green, red",
        PHOTO,
        scenes.change_photo(9, lambda pixels: pixels[..., ::-1]),
        names=("view_009",),
    ),
    COURT_VIEWS.spoilt("court one camera moved aside", PHOTO, move_sideways(3, 0.7), names=("view_003",)),
    COURT.spoilt("court photos one name off", POSES, roll_names),
    COURT.spoilt("court all photos mirrored", POSES, change_photos(mirrored, 13)),
    COURT.flagged(
        "court rate of the scales x400",
        settings(rf"scale|{RATE}|update", r"--lr-scales|scales|learning.?rate"),
        "--lr-scales 2.0",
    ),
    COURT.flagged(
        "court rate of the opacities / 1e6 and pruned below .6",
        settings(r"prun|opacit|population|fewer|number of gaussians", r"--least-opacity|--lr-opacities|prun"),
        "--least-opacity 0.6 --lr-opacities 1e-8",
    ),
    COURT.flagged(
        "court before white instead of black",
        settings(r"background|white|black|corner|border|mean colou?r|held.?out|worse", r"--background|background"),
        "--background white",
    ),
    COW.spoilt(
        "cow normals stored as colors",
        Fault(
            kind="all photos or maps",
            cause=r"unit|length|norm of|range|color|encod|decod|ax[ie]s|facing|outward|held.?out|random|worse",
            remedy=r"unit|length|range|color|encod|decod|--axes|--normals|map",
        ),
        change_normals(lambda normals: (normals + 1) / 2),
    ),
    COW.spoilt(
        "cow masks six pixels aside",
        Fault(
            kind="all photos or maps",
            cause=r"mask|camera|pose|silhouette|hull|not (fall|decreas)|held.?out",
            remedy=r"mask|camera|pose|align|shift",
        ),
        change_masks(lambda pixels: np.roll(pixels, 6, axis=1)),
    ),
    COW.spoilt(
        "cow cameras of another turn",
        POSES,
        scenes.change_cameras(lambda count: [(3 * i + 1) % count for i in range(count)]),
    ),
    COW.flagged("cow rate / 30000", settings(rf"{RATE}|update|unchanged|slow", RATE), "--lr 3e-8"),
    COW.flagged(
        "cow eikonal x1000",
        settings(r"eikonal|dominat|share of the|weight", r"eikonal|weight|--stages"),
        '--stages "fit@0 normal=1 mask=1 eikonal=100"',
    ),
    RABBIT_FRAMES.spoilt(
        "rabbit one frame with torn lines",
        PHOTO,
        scenes.change_frame(4, torn),
        names=("4",),
    ),
    RABBIT.flagged("rabbit rate x60", settings(rf"{RATE}|diverg|update|explod", RATE), "--lr 0.6"),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    COURT.healthy("court"),
    COW.healthy("cow"),
    RABBIT.healthy("rabbit"),
)
