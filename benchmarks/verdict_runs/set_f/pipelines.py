"""Plants and healthy runs of the pipelines: photos of a patio, normal maps of a calf, frames of a meadow."""

import struct
from pathlib import Path

import numpy as np
from PIL import Image

from verdict_runs import scenes
from verdict_runs.cases import Fault, Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, spot_normals
from verdict_runs.phrases import ALL, BLOWN, DEAD, LOUD, RATE, SETTINGS

Array = np.ndarray

WORSE = r"worse|held.?out|mean colou?r|random|baseline|trivial|not (fall|decreas|improv)"


def fault(kind: str, cause: str, remedy: str) -> Fault:
    """Return a fault of which the words for a poor result count as well."""
    return Fault(kind=kind, cause=rf"{cause}|{WORSE}", remedy=remedy)


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


def flickering(folder: Path) -> None:
    """Darken frames at random, as a lamp does."""
    draw = np.random.default_rng(4)
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"), np.float32)
        Image.fromarray((draw.choice([0.15, 1.0]) * pixels).astype(np.uint8)).save(path)


PATIO = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 800 --schedule-scale 0.035 --regularization none",
    write=scenes.solid_scene(14, 32, 280),
    good=18.5,
)
CALF = Command(
    pipeline="normals", words=f"{NORMALS} --steps 90", write=spot_normals(9, 26, "--elevations 25 -20"), good=-13.0
)
MEADOW = Command(pipeline="video", words=f"{VIDEO} --epochs 40", write=scenes.bunny_frames(16, (44, 24), 14), good=19.0)


PIPELINES: tuple[Plant, ...] = (
    PATIO.spoilt(
        "patio points in another unit",
        fault(
            ALL,
            r"unit|scale|points?\b|reproject|registered|match|cover|outside|pose|camera",
            r"unit|scale|points|COLMAP|pose|camera|triangulat",
        ),
        scenes.scale_points(10.0),
    ),
    PATIO.spoilt(
        "patio photos resized in one direction",
        fault(
            ALL, r"focal|intrinsic|reproject|lens|aspect|camera", r"focal|intrinsic|camera|COLMAP|calibrat|aspect|size"
        ),
        stretched,
    ),
    CALF.spoilt(
        "calf masks of the next view",
        fault(ALL, r"mask|silhouette|hull|camera|pose|match|object", r"mask|silhouette|camera|pose|order|name"),
        masks_of_the_next,
    ),
    CALF.flagged(
        "calf masks without a weight",
        fault(SETTINGS, rf"mask|silhouette|{LOUD}", r"mask|weight|--stages"),
        '--stages "fit@0 normal=1 mask=0 eikonal=0.1"',
    ),
    MEADOW.spoilt(
        "meadow in a flickering light",
        fault(
            ALL,
            r"frame|bright|flicker|expos|light|between|neighbou?r|jump|order",
            r"frame|bright|flicker|expos|light|clip",
        ),
        flickering,
    ),
    MEADOW.flagged(
        "meadow moments of one step",
        fault(SETTINGS, rf"beta|moment|{RATE}|{BLOWN}|{DEAD}|update", rf"beta|{RATE}"),
        "--beta1 0.999 --beta2 0.2",
    ),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    PATIO.healthy("patio"),
    CALF.healthy("calf"),
    MEADOW.healthy("meadow"),
)
