"""Plants and healthy runs of the pipelines: photos of a patio, normal maps of a calf, frames of a meadow."""

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from verdict_runs import scenes
from verdict_runs.cases import Fault, Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, run_command
from verdict_runs.phrases import BLOWN, DEAD, LOUD, RATE, SCHEDULE, SMALL
from verdict_runs.scenes import Spoil

Array = np.ndarray

ALL = "all photos, maps or frames"
SETTINGS = "settings of a pipeline"
WORSE = r"worse|held.?out|mean colou?r|random|baseline|trivial|not (fall|decreas|improv)"


def fault(kind: str, cause: str, remedy: str) -> Fault:
    """Return a fault of which the words for a poor result count as well."""
    return Fault(kind=kind, cause=rf"{cause}|{WORSE}", remedy=remedy)


def other_unit(factor: float) -> Spoil:
    """Multiply the coordinates of all points of a scene, but not its cameras."""

    def spoil(scene: Path) -> None:
        path = scene / "sparse" / "0" / "points3D.bin"
        data = bytearray(path.read_bytes())
        (count,) = struct.unpack_from("<Q", data)
        at = 8
        for _ in range(count):
            place = struct.unpack_from("<3d", data, at + 8)
            struct.pack_into("<3d", data, at + 8, *(factor * value for value in place))
            (length,) = struct.unpack_from("<Q", data, at + 43)
            at += 51 + 8 * length
        path.write_bytes(bytes(data))

    return spoil


def moving(pixels: Array) -> Array:
    """Return a photo of a camera that was panned."""
    return np.mean([np.roll(pixels, i, axis=1) for i in range(-5, 6)], axis=0)


def stained(pixels: Array) -> Array:
    """Return a photo through a lens with a stain."""
    y, x = np.mgrid[0 : pixels.shape[0], 0 : pixels.shape[1]] / pixels.shape[0]
    stain = (np.hypot(y - 0.35, x - 0.6) < 0.22)[..., None]
    return np.where(stain, 0.03, pixels)


def some_photos(change: Callable[[Array], Array], *indices: int) -> Spoil:
    """Change the pixels of some photos."""

    def spoil(scene: Path) -> None:
        for i in indices:
            scenes.change_photo(i, change)(scene)

    return spoil


def stretched(scene: Path) -> None:
    """Write lenses whose pixels are higher than wide, as of photos that were resized in one direction."""
    path = scene / "sparse" / "0" / "cameras.bin"
    data = bytearray(path.read_bytes())
    (count,) = struct.unpack_from("<Q", data)
    for i in range(count):
        at = 8 + 56 * i + 32
        (fy,) = struct.unpack_from("<d", data, at)
        struct.pack_into("<d", data, at, 1.6 * fy)
    path.write_bytes(bytes(data))


def masks_of_the_next(folder: Path) -> None:
    """Give every view the mask of the next one."""
    files = sorted((folder / "mask").glob("*.png"))
    contents = [path.read_bytes() for path in files]
    for path, content in zip(files, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(content)


def interlaced(folder: Path) -> None:
    """Take every second line of a frame from a later one, as an old camera does."""
    files = sorted(folder.glob("*.png"))
    frames: list[Array] = []
    for path in files:
        with Image.open(path) as image:
            frames.append(np.asarray(image.convert("RGB")).copy())
    for i, path in enumerate(files):
        woven = frames[i].copy()
        woven[1::2] = frames[(i + 5) % len(files)][1::2]
        Image.fromarray(woven).save(path)


def flickering(folder: Path) -> None:
    """Darken frames at random, as a lamp does."""
    draw = np.random.default_rng(4)
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"), np.float32)
        Image.fromarray((draw.choice([0.15, 1.0]) * pixels).astype(np.uint8)).save(path)


def calf_maps(folder: Path) -> None:
    """Render nine views of the cow."""
    mesh = scenes.REAL / "meshes" / "spot" / "spot_triangulated.obj"
    words = "--views 9 --size 26 --format npy --depth none --elevations 25 -20"
    run_command(["data", "render-normals", str(mesh), "--out", str(folder), *words.split()])


PATIO = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 800 --schedule-scale 0.035 --regularization none",
    write=scenes.solid_scene(14, 32, 280),
    good=18.0,
)
CALF = Command(pipeline="normals", words=f"{NORMALS} --steps 90", write=calf_maps, good=-11.0)
MEADOW = Command(pipeline="video", words=f"{VIDEO} --epochs 40", write=scenes.bunny_frames(16, (44, 24), 14), good=21.0)


def spoilt(command: Command, name: str, of: Fault, *spoils: Spoil) -> Plant:
    """Plant a fault in the data."""
    return dataclasses.replace(command.spoilt(name, "wrong sample", *spoils), fault=of)


def flagged(command: Command, name: str, of: Fault, flags: str) -> Plant:
    """Plant flags."""
    return dataclasses.replace(command.flagged(name, "rate too high", flags), fault=of)


PIPELINES: tuple[Plant, ...] = (
    spoilt(
        PATIO,
        "patio points in another unit",
        fault(
            ALL,
            r"unit|scale|points?\b|reproject|registered|match|cover|outside|pose|camera",
            r"unit|scale|points|COLMAP|pose|camera|triangulat",
        ),
        other_unit(10.0),
    ),
    spoilt(
        PATIO,
        "patio half of the photos panned",
        fault(ALL, r"blur|sharp|photo|view|sample", r"blur|sharp|photo|view|exclude|sample|picture|image"),
        some_photos(moving, *range(1, 14, 2), 2, 6, 10),
    ),
    spoilt(
        PATIO,
        "patio a stain on the lens",
        fault(ALL, r"stain|same|constant|lens|photo|view|mask|float", r"stain|lens|photo|mask|exclude|picture|image"),
        some_photos(stained, *range(14)),
    ),
    spoilt(
        PATIO,
        "patio photos resized in one direction",
        fault(
            ALL, r"focal|intrinsic|reproject|lens|aspect|camera", r"focal|intrinsic|camera|COLMAP|calibrat|aspect|size"
        ),
        stretched,
    ),
    flagged(
        PATIO,
        "patio means of a high rate",
        fault(SETTINGS, rf"{RATE}|means|{BLOWN}|update", rf"--lr-means|{RATE}"),
        "--lr-means 0.3",
    ),
    flagged(
        PATIO,
        "patio opacities to zero or one",
        fault(SETTINGS, rf"entropy|{LOUD}|opacit|prun", r"entropy|weight"),
        "--entropy-weight 30",
    ),
    flagged(
        PATIO,
        "patio a schedule of one hundredth",
        fault(
            SETTINGS, rf"{SMALL}|short|few|steps|still falling|converge", r"--schedule-scale|longer|steps|iterations"
        ),
        "--schedule-scale 0.0007",
    ),
    spoilt(
        CALF,
        "calf masks of the next view",
        fault(ALL, r"mask|silhouette|hull|camera|pose|match|object", r"mask|silhouette|camera|pose|order|name"),
        masks_of_the_next,
    ),
    flagged(
        CALF,
        "calf read as normals of the world",
        fault(SETTINGS, r"space|world|ax[ie]s|facing|outward|\bsigns?\b", r"--space|--axes|--normals|ax[ie]s|space"),
        "--space world",
    ),
    flagged(
        CALF,
        "calf masks without a weight",
        fault(SETTINGS, rf"mask|silhouette|{LOUD}", r"mask|weight|--stages"),
        '--stages "fit@0 normal=1 mask=0 eikonal=0.1"',
    ),
    flagged(
        CALF,
        "calf gradients clipped at a billionth",
        fault(SETTINGS, rf"clip|{SMALL}", r"--clip|clip"),
        "--clip 1e-9",
    ),
    spoilt(
        MEADOW,
        "meadow interlaced",
        fault(ALL, r"frame|line|interlac|between|neighbou?r|jump|order", r"frame|interlac|line|clip|order"),
        interlaced,
    ),
    spoilt(
        MEADOW,
        "meadow in a flickering light",
        fault(
            ALL,
            r"frame|bright|flicker|expos|light|between|neighbou?r|jump|order",
            r"frame|bright|flicker|expos|light|clip",
        ),
        flickering,
    ),
    flagged(
        MEADOW,
        "meadow moments of one step",
        fault(SETTINGS, rf"beta|moment|{RATE}|{BLOWN}|{DEAD}|update", rf"beta|{RATE}"),
        "--beta1 0.999 --beta2 0.2",
    ),
    flagged(
        MEADOW,
        "meadow warms up longer than it runs",
        fault(SETTINGS, rf"{SCHEDULE}|{SMALL}", rf"--start|{SCHEDULE}"),
        "--start 10000",
    ),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    PATIO.healthy("patio"),
    CALF.healthy("calf"),
    MEADOW.healthy("meadow"),
)
