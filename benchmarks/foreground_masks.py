"""Foreground masks of `fieldwatch data photos --masks`, compared with the true ones.

    python benchmarks/foreground_masks.py                  # all scenes; several minutes on one core
    python benchmarks/foreground_masks.py --only tuning
    python benchmarks/foreground_masks.py --room FOLDER    # keep photos, masks and pictures of both

Every scene is an object in surroundings, seen by 36 cameras of 320 x 240 pixels around it, whose poses are known. The
true mask of a photo holds the pixels at which the object is nearer than everything else. Constants may be chosen on
the scenes marked as tuning; the others are reported. `agreement` is what the command prints without knowing the truth.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fieldwatch.recon.data.colmap import ColmapModel, RegisteredImage, SparsePoints
from fieldwatch.recon.data.masking import MaskingError, overlap, write_masks
from fieldwatch.recon.data.solids.scene import SolidSpec
from fieldwatch.recon.data.solids.shapes import Cylinder, RoundedBox, Sphere, Torus
from fieldwatch.recon.geometry import Camera, Lens, look_at
from scene_kinds import SPOT, WALLS, Blocks, Look, Seen, of_mesh, of_solids

VIEWS = 36
WIDTH, HEIGHT, DEGREES = 320, 240, 46.0
TABLE = SolidSpec(Cylinder(1.7, 0.05), (0.0, 0.0, -0.75), (0.52, 0.36, 0.24), 0.4)
TOTEM = (
    SolidSpec(RoundedBox((0.45, 0.3, 0.28), 0.06), (0.0, 0.0, -0.42), (0.25, 0.42, 0.66), 0.3),
    SolidSpec(Sphere(0.36), (0.05, 0.0, 0.12), (0.74, 0.28, 0.22), 0.3),
    SolidSpec(Torus(0.3, 0.09), (0.0, 0.1, 0.5), (0.80, 0.66, 0.22), 0.3),
)
"""A box, a ball and a ring on top of each other."""
VASE = (
    SolidSpec(Cylinder(0.3, 0.5), (0.0, 0.0, -0.2), (0.30, 0.58, 0.34), 0.3),
    SolidSpec(Torus(0.34, 0.1), (0.0, 0.0, 0.32), (0.34, 0.62, 0.40), 0.3),
    SolidSpec(Torus(0.3, 0.06), (0.0, 0.34, 0.0), (0.86, 0.84, 0.78), 0.3),
)
"""A cylinder with two rings."""


@dataclass(frozen=True, kw_only=True)
class MaskScene:
    """A scene: the object, what is around it, the color behind both, and whether constants are chosen on it."""

    object: Callable[[], Look]
    surroundings: tuple[SolidSpec, ...]
    backdrop: tuple[int, int, int] = (120, 130, 150)
    tuning: bool = False
    seed: int = 0
    sharp: bool = True


def solids(specs: Sequence[SolidSpec], seed: int, *, sharp: bool) -> Look:
    """Return the renderer of solids, with blocks as texture or with waves alone."""
    scene = Blocks(seed, specs)
    scene.cell = 0.2 if sharp else 1e6
    return of_solids(scene)


SCENES = {
    "cow, plain backdrop": MaskScene(
        object=lambda: of_mesh(SPOT), surroundings=(), backdrop=(214, 216, 220), tuning=True
    ),
    "cow, table in a room": MaskScene(object=lambda: of_mesh(SPOT), surroundings=(TABLE, *WALLS), tuning=True, seed=1),
    "totem, table in a room": MaskScene(
        object=lambda: solids(TOTEM, 5, sharp=False), surroundings=(TABLE, *WALLS), seed=2
    ),
    "vase, table in a room": MaskScene(
        object=lambda: solids(VASE, 6, sharp=False), surroundings=(TABLE, *WALLS), seed=3
    ),
    "totem, plain backdrop": MaskScene(
        object=lambda: solids(TOTEM, 5, sharp=True), surroundings=(), backdrop=(30, 60, 40)
    ),
}


def cameras() -> list[Camera]:
    """Return cameras on two rings."""
    focal = 0.5 * WIDTH / math.tan(math.radians(DEGREES) / 2)
    found: list[Camera] = []
    for i in range(VIEWS):
        angle = 2 * math.pi * (i + 0.3 * (i % 2)) / VIEWS
        radius, height = ((2.7, 0.5), (2.3, 1.5))[i % 2]
        pose = look_at((radius * math.cos(angle), radius * math.sin(angle), height), (0.0, 0.0, -0.05))
        lens = {"fx": focal, "fy": focal, "cx": WIDTH / 2, "cy": HEIGHT / 2}
        found.append(Camera(name=f"r_{i:03d}.png", width=WIDTH, height=HEIGHT, world_from_camera=pose, **lens))
    return found


def joined(front: Seen, behind: Seen | None, backdrop: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the picture of an object in its surroundings, 8 bit, and its true mask."""
    before = front.depth > 0
    if behind is not None:
        before &= (behind.depth <= 0) | (front.depth < behind.depth)
    back = np.array(backdrop) / 255 * np.ones((*before.shape, 3))
    if behind is not None:
        back = behind.colors * behind.cover[..., None] + back * (1 - behind.cover[..., None])
    # Pixels at its edge are mixed.
    edge = front.cover * (before | (front.depth <= 0))
    pixels = front.colors * edge[..., None] + back * (1 - edge[..., None])
    return np.rint(255 * pixels.clip(0, 1)).astype(np.uint8), before


def write_scene(scene: MaskScene, folder: Path) -> tuple[ColmapModel, dict[str, np.ndarray]]:
    """Write the photos of a scene; return cameras and true masks."""
    folder.mkdir(parents=True)
    front, around = scene.object(), solids(scene.surroundings, scene.seed, sharp=True) if scene.surroundings else None
    truth: dict[str, np.ndarray] = {}
    views = cameras()
    for camera in views:
        pixels, mask = joined(front(camera), around(camera) if around else None, scene.backdrop)
        Image.fromarray(pixels).save(folder / camera.name)
        truth[camera.name] = mask
    first = views[0]
    nothing = torch.zeros(0, dtype=torch.int64)
    model = ColmapModel(
        lenses={1: Lens.of("PINHOLE", WIDTH, HEIGHT, (first.fx, first.fy, first.cx, first.cy))},
        images=tuple(
            RegisteredImage(image_id=i, name=each.name, camera_id=1, world_from_camera=each.world_from_camera.double())
            for i, each in enumerate(views)
        ),
        points=SparsePoints(
            positions=torch.zeros(0, 3, dtype=torch.float64),
            colors=torch.zeros(0, 3, dtype=torch.uint8),
            errors=torch.zeros(0, dtype=torch.float64),
            track_points=nothing,
            track_images=nothing,
        ),
    )
    return model, truth


def measure(scene: MaskScene, folder: Path) -> str:
    """Make masks of a scene; return the cells of its row."""
    model, truth = write_scene(scene, folder / "images")
    try:
        found = write_masks(model, folder / "images", folder / "masks", lambda _, __: None)
    except MaskingError as error:
        return f"refused: {error}"
    scores = []
    for name, true in truth.items():
        with Image.open(folder / "masks" / f"{name}.png") as opened:
            scores.append(overlap(np.asarray(opened) > 127, true))
    lowest = min(each.agreement for each in found.agreements)
    told = (np.mean(scores), min(scores), found.median, lowest, found.separation)
    return f"{' | '.join(f'{value:.3f}' for value in told)} | {len(found.replaced)}"


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("tuning", "reporting"))
    parser.add_argument("--room", type=Path, help="new folder for the files, which stay; by default a temporary one")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print("| scene | IoU, mean | IoU, worst | agreement, median | agreement, worst | separation | replaced |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as temporary:
        room = chosen.room or Path(temporary)
        for name, scene in SCENES.items():
            if chosen.only in (None, "tuning" if scene.tuning else "reporting"):
                row = measure(scene, room / name.replace(", ", "-").replace(" ", "_"))
                print(f"| {name}{' (tuning)' if scene.tuning else ''} | {row} |", flush=True)


if __name__ == "__main__":
    main()
