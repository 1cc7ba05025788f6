"""Meshes of rooms with flat walls: how much of the true surface they meet, and how flat their planes are.

    python benchmarks/flat_walls.py                        # both rooms, two presets, two methods
    python benchmarks/flat_walls.py --only study           # the room that settings may be chosen on
    python benchmarks/flat_walls.py --presets rooms --methods tsdf
    python benchmarks/flat_walls.py --size 320             # photos of twice the resolution
    python benchmarks/flat_walls.py --keep FOLDER          # keep rooms, runs and meshes; make what is missing
    python benchmarks/flat_walls.py --flags --multi-view-from 9000   # further flags of `train splats`

A room has a floor, a ceiling, four walls, a table, boxes and a ball, all textured, and is ray traced: its surface is
exact. Each room has its own layout, textures and cameras. *within* is the share of the surface that training photos
show with mesh within 0.2 % of the diameter of that surface, *normals* the angles between true planes and the mesh
nearest to them (away from edges), *Chamfer* the mean of both distances between what the photos show of the room and of
the mesh.
Each training and extraction is a command in a process of its own; seconds are processor time.
"""

import argparse
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float64

from fieldwatch.recon.data import PhotoOptions, PhotoSet, read_transforms
from fieldwatch.recon.data.solids.scene import SolidSpec
from fieldwatch.recon.data.solids.shapes import Sphere
from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.mesh import Triangles, read_mesh
from fieldwatch.recon.mesh.closest import SurfaceSearch
from fieldwatch.recon.mesh.sampling import SurfaceSamples, thinned
from fieldwatch.recon.mesh.visibility import visible_points
from scene_kinds import HELD_OUT, Blocks, Wall, of_solids, write_scene
from six_scenes import held_out_scores, seconds_of, trained

SIZE = 160
"""Sides of the square photos unless given, pixels."""
CLOSE = 0.002
"""Distance of the mesh that counts as met, in diameters."""
EDGE = 0.02
"""Distance from edges within which normals are not compared, in diameters."""
SPACING = 0.006
"""Distance of compared points, in diameters."""
PRESETS = ("cpu", "rooms")
METHODS = ("poisson", "tsdf")
RECIPE = (
    "--schedule-scale 0.06 --seed 0 --turntable 0 --threads 1 --checkpoint-interval 0 --test-iterations 15000 "
    f"--growth-cap 30000 --held-out {HELD_OUT}"
).split()

Piece = tuple[tuple[float, float, float], tuple[float, float, float]]
"""A box, by half its sides and its center, world units."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """A room of the benchmark.

    Attributes:
        seed: seed of textures and cameras.
        half: half the length and width of the floor, and the height of the walls, world units.
        furniture: boxes by half their sides, centers and colors.
        ball: center of a ball of radius 0.3.
        tuning: whether settings may be chosen on this room.
    """

    seed: int
    half: tuple[float, float, float]
    furniture: tuple[Piece, ...]
    ball: tuple[float, float, float]
    tuning: bool = False

    def solids(self) -> tuple[SolidSpec, ...]:
        """Return the floor, the ceiling, the walls and the furniture."""
        length, width, height = self.half
        colors = np.random.Generator(np.random.PCG64(self.seed)).uniform(0.35, 0.75, (6 + len(self.furniture), 3))
        thick = 0.1
        walls = [
            *(((length + 2 * thick, width + 2 * thick, thick), (0.0, 0.0, z)) for z in (-thick, height + thick)),
            *(((thick, width, height / 2), (side * (length + thick), 0.0, height / 2)) for side in (-1, 1)),
            *(((length, thick, height / 2), (0.0, side * (width + thick), height / 2)) for side in (-1, 1)),
        ]
        boxes = [
            SolidSpec(Wall(half), center, tuple(color), 0.4, rotated=False)
            for (half, center), color in zip((*walls, *self.furniture), colors, strict=True)
        ]
        return (*boxes, SolidSpec(Sphere(0.3), self.ball, (0.7, 0.35, 0.25), 0.2))

    def box(self) -> list[str]:
        """Return two opposite corners of a box around the room, as words of a command."""
        length, width, height = self.half
        margin = 0.15
        return [str(side) for side in (-length - margin, -width - margin, -margin)] + [
            str(side) for side in (length + margin, width + margin, height + margin)
        ]

    def cameras(self, size: int) -> list[Camera]:
        """Return cameras on a ring inside the room that look across it, at two heights, up and down in turn.

        Args:
            size: sides of their square photos, pixels.
        """
        chance = np.random.Generator(np.random.PCG64(self.seed + 100))
        length, width, _ = self.half
        focal = 0.5 * size / math.tan(math.radians(36))
        lens = {"fx": focal, "fy": focal, "cx": size / 2, "cy": size / 2}
        found: list[Camera] = []
        for i in range(48):
            angle = 2 * math.pi * i / 48
            away = np.array([0.6 * length * math.cos(angle), 0.6 * width * math.sin(angle)])
            height = (1.1, 1.7)[i % 2] + chance.uniform(-0.1, 0.1)
            target = (*(-0.4 * away + chance.uniform(-0.3, 0.3, 2)), (0.5, 0.9, 1.3)[i % 3])
            pose = look_at((*away, height), target)
            found.append(Camera(name=f"r_{i:03d}.png", width=size, height=size, world_from_camera=pose, **lens))
        return found


def table(x: float, y: float, half: tuple[float, float], height: float) -> tuple[Piece, ...]:
    """Return the board and the four legs of a table as boxes."""
    legs: list[Piece] = [
        ((0.05, 0.05, height / 2), (x + a * (half[0] - 0.08), y + b * (half[1] - 0.08), height / 2))
        for a in (-1, 1)
        for b in (-1, 1)
    ]
    return (((half[0], half[1], 0.05), (x, y, height + 0.05)), *legs)


ROOMS = {
    "study": Room(
        seed=11,
        half=(2.0, 1.6, 2.2),
        furniture=(
            *table(-0.3, 0.2, (0.6, 0.4), 0.7),
            ((0.3, 0.3, 0.35), (1.4, -1.0, 0.35)),
            ((0.35, 0.25, 0.9), (-1.6, -1.2, 0.9)),
        ),
        ball=(0.6, 1.1, 0.3),
        tuning=True,
    ),
    "kitchen": Room(
        seed=23,
        half=(2.3, 1.9, 2.4),
        furniture=(
            *table(0.5, -0.3, (0.5, 0.55), 0.65),
            ((0.9, 0.3, 0.45), (-1.2, 1.5, 0.45)),
            ((0.3, 0.4, 1.0), (1.9, 1.2, 1.0)),
            ((0.2, 0.2, 0.2), (-0.9, -0.7, 0.2)),
        ),
        ball=(-0.5, 0.5, 0.3),
    ),
}
"""Rooms by name; settings may be chosen on the first."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the training photos show of a room.

    Attributes:
        scene: the room.
        seen: points on its surface, evenly spread.
        flat: points on planes, away from edges.
        diameter: diagonal of the box around the points.
        cameras: cameras of the training photos.
    """

    scene: Blocks
    seen: SurfaceSamples
    flat: Bool[np.ndarray, " n"]
    diameter: float
    cameras: tuple[Camera, ...]

    @classmethod
    def of(cls, scene: Blocks, cameras: tuple[Camera, ...]) -> "Truth":
        """Trace the rays through all pixels of the cameras."""
        points: list[np.ndarray] = []
        normals: list[np.ndarray] = []
        for camera in cameras:
            depth = scene.depth(camera)
            hit = (depth > 0).flatten().numpy()
            points.append(camera.to("cpu", torch.float64).unproject(depth).reshape(-1, 3).numpy()[hit])
            normals.append(scene.normals(camera).reshape(-1, 3).numpy()[hit])
        every = SurfaceSamples(points=np.concatenate(points), normals=np.concatenate(normals))
        diameter = float(np.linalg.norm(np.ptp(every.points, axis=0)))
        seen = thinned(every, SPACING * diameter)
        return cls(
            scene=scene,
            seen=seen,
            flat=away_from_edges(scene, seen, EDGE * diameter),
            diameter=diameter,
            cameras=cameras,
        )

    def distance(self, points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
        """Return the distance of points to the surface."""
        return np.abs(self.scene.distance(torch.from_numpy(points)).numpy())


def away_from_edges(scene: Blocks, seen: SurfaceSamples, reach: float) -> Bool[np.ndarray, " n"]:
    """Return the points around which the surface is a plane: a circle of points around each lies on it."""
    flat = np.ones(len(seen), bool)
    helper = np.eye(3)[np.abs(seen.normals).argmin(1)]
    first = np.cross(seen.normals, helper)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(seen.normals, first)
    for angle in np.arange(8) * math.pi / 4:
        beside = seen.points + reach * (math.cos(angle) * first + math.sin(angle) * second)
        flat &= np.abs(scene.distance(torch.from_numpy(beside)).numpy()) < 1e-6 * reach
    return flat


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Comparison of a mesh with the room; lengths in percent of the diameter, angles in degrees."""

    within: float
    middle: float
    tenth: float
    chamfer: float

    @classmethod
    def of(cls, mesh: Triangles, truth: Truth) -> "Scores":
        """Compare what the photos show of both."""
        closest = SurfaceSearch(mesh).closest(truth.seen.points)
        faced = mesh.normals[closest.faces]
        cosine = np.abs((faced * truth.seen.normals).sum(1)).clip(0, 1)
        angles = np.degrees(np.arccos(cosine[truth.flat]))
        shown = thinned(visible_points(mesh, truth.cameras), SPACING * truth.diameter)
        both = closest.distances.mean() + truth.distance(shown.points).mean()
        return cls(
            within=float((closest.distances <= CLOSE * truth.diameter).mean()),
            middle=float(np.median(angles)),
            tenth=float(np.quantile(angles, 0.9)),
            chamfer=50 * float(both) / truth.diameter,
        )


def extracted(run: Path, room: Room, method: str) -> tuple[Triangles, float]:
    """Extract a mesh, and return it with the seconds of processor time.

    Raises:
        SystemExit: the command failed; the message contains its stderr.
    """
    out = run / "meshes" / method
    took = out / "seconds.txt"
    name = "tsdf" if method == "tsdf" else "level0.3"
    if not took.exists():
        out.mkdir(parents=True, exist_ok=True)
        words = ["mesh", "extract", str(run), "--method", method, "--out", str(out)]
        words += ["--triangles", "0", "--no-pictures", "--json"]
        # The cameras go around the table, which would be taken for the object.
        took.write_text(str(seconds_of(*words, "--surroundings", "keep", "--bbox", *room.box())))
    return read_mesh(out / f"{name}.ply"), float(took.read_text())


HEAD = """
| room | preset | mesh | within 0.2 % | normals, median | normals, 90 % | Chamfer | held out | training | extraction |
|---|---|---|---:|---:|---:|---:|---:|---:|---:|"""


def measured(name: str, folder: Path, chosen: argparse.Namespace) -> None:
    """Make photos of a room, train them by each preset, extract meshes and print their rows.

    Args:
        name: name of the room.
        folder: folder for photos, runs and meshes.
        chosen: the command line.
    """
    room, size = ROOMS[name], chosen.size
    scene = Blocks(room.seed, room.solids())
    scene.cell = 0.12
    data = folder / f"{name}-{size}"
    if not data.exists():
        write_scene(data, room.cameras(size), of_solids(scene), backdrop=(0, 0, 0), points=4000)
    photos: PhotoSet = read_transforms(data, PhotoOptions(held_out=HELD_OUT, longer_side=size))
    # Half the default size: a quarter of its rays is plenty, and larger photos are compared at the same points.
    truth = Truth.of(scene, tuple(photos.cameras[i].resized(SIZE // 2, SIZE // 2) for i in photos.train))
    label = f"{name} (tuning)" if room.tuning else name
    for preset in chosen.presets:
        run = folder / f"{name}-{size}-{preset}"
        seconds = trained(data, run, ("--preset", preset, *RECIPE, *chosen.flags))
        scores = held_out_scores(run)
        psnr = sum(scores.values()) / len(scores)
        for method in chosen.methods:
            mesh, took = extracted(run, room, method)
            found = Scores.of(mesh, truth)
            print(
                f"| {label} | {preset} | {method} | {found.within:.1%} | {found.middle:.1f}° | {found.tenth:.1f}° | "
                f"{found.chamfer:.3f} % | {psnr:.2f} dB | {seconds:.0f} s | {took:.0f} s |",
                flush=True,
            )


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(ROOMS), default=tuple(ROOMS), help="some of the rooms")
    parser.add_argument("--presets", nargs="+", default=PRESETS, help="presets of `train splats`")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="methods of `mesh extract`")
    parser.add_argument("--size", type=int, default=SIZE, help="sides of the photos, pixels")
    parser.add_argument("--keep", type=Path, help="folder for rooms, runs and meshes; by default nothing is kept")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of `train splats`")
    chosen = parser.parse_args()
    print(HEAD)
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep or Path(scratch)
        for name in chosen.only:
            measured(name, folder, chosen)


if __name__ == "__main__":
    main()
