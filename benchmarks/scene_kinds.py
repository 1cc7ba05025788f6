"""The scenes of six_scenes.py: made by ray tracing, or the photos in data/real, and the true depth of the made ones."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64
from PIL import Image

from fieldwatch.recon.data import MeshScene, SolidScene, unit_sphere_of, write_point_ply
from fieldwatch.recon.data.photos import every_nth
from fieldwatch.recon.data.solids.scene import ON_A_PLATE, SolidSpec
from fieldwatch.recon.data.solids.shapes import Cylinder, RoundedBox, Sphere, Torus
from fieldwatch.recon.geometry import Camera, look_at, ring, transform_points
from fieldwatch.recon.mesh import read_mesh

REAL = Path(__file__).resolve().parent.parent / "data" / "real"
SPOT = REAL / "meshes" / "spot" / "spot_triangulated.obj"
PLUSH = REAL / "colmap_plush"
SIZE = 96
HELD_OUT = 6
OUTLIERS = 0.01
NOISE = 0.003
BACKDROP = (214, 216, 220)
LIGHT = np.array([-0.48, -0.36, 0.80])
OPENGL = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64))
TRUTH = "truth.npz"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a camera sees: colors and cover from 0 to 1, and the depth at pixel centers (0 where there is nothing)."""

    colors: Float64[np.ndarray, "height width 3"]
    cover: Float64[np.ndarray, "height width"]
    depth: Float64[np.ndarray, "height width"]


Look = Callable[[Camera], Seen]
"""Renders a scene from a camera."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A scene of the benchmark.

    Attributes:
        make: writes the scene into a new folder; None for photos that are there.
        data: folder of photos that are there.
        tuning: whether settings may be chosen on this scene.
        held_out: every n-th photo is held out.
        longer_side: longer side of the photos, pixels.
    """

    make: Callable[[Path], None] | None = None
    data: Path | None = None
    tuning: bool = False
    held_out: int = HELD_OUT
    longer_side: int = SIZE


@dataclass(frozen=True)
class Wall:
    """A box with sharp edges, given by half its sides; unlike `RoundedBox`, rays may start beside it.

    `RoundedBox` is traced from its bounding sphere, which contains the cameras of a room.
    """

    half: tuple[float, float, float]

    @property
    def bounding_radius(self) -> float:
        """Distance of the corners."""
        return math.hypot(*self.half)

    def distance(self, points: np.ndarray) -> np.ndarray:
        """Return the signed distance to the box."""
        beyond = np.abs(points) - np.array(self.half)
        return np.linalg.norm(beyond.clip(0), axis=1) + np.minimum(beyond.max(1), 0)

    def normals(self, points: np.ndarray) -> np.ndarray:
        """Return the normal of the face that is nearest."""
        beyond = np.abs(points) - np.array(self.half)
        return np.eye(3)[beyond.argmax(1)] * np.where(points < 0, -1.0, 1.0)

    def intersect(self, origins: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Intersect the ray's intervals between the three pairs of planes."""
        steady = np.where(np.abs(directions) < 1e-12, 1e-12, directions)
        ends = np.stack([(side * np.array(self.half) - origins) / steady for side in (-1, 1)])
        first = ends.min(0).max(1)
        last = ends.max(0).min(1)
        return np.where((first < last) & (first > 0), first, np.inf)


class Blocks(SolidScene):
    """Solids whose textures have sharp edges: cells of random brightness, in the frame of the world."""

    cell = 0.11

    def colors(self, points: np.ndarray, solid: np.ndarray) -> np.ndarray:
        """Return the colors of surface points."""
        return (super().colors(points, solid) * blocks(points, self.cell)[:, None]).clip(0.02, 1)


def blocks(points: np.ndarray, cell: float) -> np.ndarray:
    """Return a brightness from 0.55 to 1.35 for each point, constant in cells of two sizes."""
    # Turned, so that cells do not line up with walls.
    turned = points @ np.array([[0.80, -0.48, 0.36], [0.60, 0.64, -0.48], [0.0, 0.60, 0.80]])
    return 0.55 + 0.4 * cell_values(turned / cell) + 0.4 * cell_values(turned / (4.1 * cell) + 0.37)


def cell_values(points: np.ndarray) -> np.ndarray:
    """Return a value from 0 to 1 for each cell of the integer grid, by a hash of its coordinates."""
    grid = np.floor(points).astype(np.int64).astype(np.uint32)
    mixed = grid[:, 0] * np.uint32(73856093) ^ grid[:, 1] * np.uint32(19349663) ^ grid[:, 2] * np.uint32(83492791)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(1274126177)
    return (mixed ^ (mixed >> np.uint32(16))) / np.float64(2**32)


def cameras_at(poses: Sequence[torch.Tensor], degrees: float) -> list[Camera]:
    """Return cameras for square photos at poses, with a field of view and names in their order."""
    focal = 0.5 * SIZE / math.tan(math.radians(degrees) / 2)
    lens = {"fx": focal, "fy": focal, "cx": SIZE / 2, "cy": SIZE / 2}
    return [
        Camera(name=f"r_{i:03d}.png", width=SIZE, height=SIZE, world_from_camera=pose, **lens)
        for i, pose in enumerate(poses)
    ]


def of_solids(scene: SolidScene) -> Look:
    """Return the renderer of solids."""

    def look(camera: Camera) -> Seen:
        picture = scene.picture(camera)
        colors = picture.image.double().numpy() / 255
        cover = np.ones(colors.shape[:2]) if picture.alpha is None else picture.alpha.double().numpy() / 255
        # `picture` composites over black: divide, since colors here are those of the surface.
        return Seen(colors=colors / cover.clip(1e-9)[..., None], cover=cover, depth=scene.depth(camera).numpy())

    return look


def in_unit_ball(path: Path) -> MeshScene:
    """Return a mesh of a file, y up, turned upright and scaled to fill the unit ball."""
    mesh = read_mesh(path)
    upright = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    turned = torch.from_numpy(np.asarray(mesh.vertices)).double() @ upright.T
    vertices = transform_points(torch.linalg.inv(unit_sphere_of(turned)), turned)
    return MeshScene(vertices, torch.from_numpy(np.asarray(mesh.faces)).long(), shading="smooth")


def of_mesh(path: Path) -> Look:
    """Return the renderer of a mesh, y up, that fills the unit ball; lit and textured like the solids."""
    scene = in_unit_ball(path)

    def look(camera: Camera) -> Seen:
        samples = 2
        fine = camera.resized(camera.width * samples, camera.height * samples)
        depth = scene.depth(fine)
        seen = (depth > 0).double().numpy()
        points = fine.to("cpu", torch.float64).unproject(depth).reshape(-1, 3).numpy()
        lit = 0.45 + 0.55 * (scene.normals(fine).reshape(-1, 3).numpy() @ LIGHT).clip(0)
        colors = np.array([0.66, 0.50, 0.40]) * (blocks(points, 0.09) * lit)[:, None]
        shape = (camera.height, samples, camera.width, samples)
        summed = (colors.clip(0.02, 1) * seen.reshape(-1, 1)).reshape(*shape, 3).mean((1, 3))
        cover = seen.reshape(shape).mean((1, 3))
        return Seen(colors=summed / cover.clip(1e-9)[..., None], cover=cover, depth=scene.depth(camera).numpy())

    return look


def write_scene(  # noqa: PLR0913  the parts of a scene
    folder: Path,
    cameras: Sequence[Camera],
    look: Look,
    *,
    backdrop: tuple[int, int, int] | None,
    points: int,
    develop: Callable[[int, np.ndarray], np.ndarray] = lambda _, colors: colors,
) -> None:
    """Write photos, transforms.json, points and the true depth of a scene.

    Args:
        folder: new folder.
        cameras: cameras.
        look: renderer of the scene.
        backdrop: color behind the scene; None writes RGBA photos.
        points: number of points; 0 writes none.
        develop: function from the number of a photo and its colors to the colors in the file.
    """
    folder.mkdir(parents=True)
    generator = np.random.Generator(np.random.PCG64(7))
    train, _ = every_nth(len(cameras), HELD_OUT)
    depths: list[np.ndarray] = []
    cloud: list[np.ndarray] = []
    for number, camera in enumerate(cameras):
        seen = look(camera)
        depths.append(seen.depth)
        behind = np.zeros(3) if backdrop is None else np.array(backdrop) / 255
        colors = (
            seen.colors
            if backdrop is None
            else seen.colors * seen.cover[..., None] + behind * (1 - seen.cover)[..., None]
        )
        pixels = develop(number, colors)
        if backdrop is None:
            pixels = np.concatenate([pixels, seen.cover[..., None]], -1)
        Image.fromarray(np.rint(255 * pixels.clip(0, 1)).astype(np.uint8)).save(folder / camera.name)
        if points and number in train:
            cloud.append(sampled_points(camera, seen, -(-points // len(train)), generator))
    first = cameras[0]
    known: dict[str, object] = {"w": first.width, "h": first.height}
    known |= {"fl_x": first.fx, "fl_y": first.fy, "cx": first.cx, "cy": first.cy}
    if cloud:
        found = np.concatenate(cloud)
        colors = torch.from_numpy(np.rint(255 * found[:, 3:]).astype(np.uint8))
        write_point_ply(folder / "points.ply", torch.from_numpy(found[:, :3].astype(np.float32)), colors)
        known["ply_file_path"] = "points.ply"
    known["frames"] = [
        {"file_path": camera.name, "transform_matrix": (camera.world_from_camera.double() @ OPENGL).tolist()}
        for camera in cameras
    ]
    (folder / "transforms.json").write_text(json.dumps(known))
    np.savez_compressed(folder / TRUTH, depth=np.stack(depths).astype(np.float32))


def sampled_points(camera: Camera, seen: Seen, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return noisy surface points with colors, (n, 6); a share of them lies between the camera and the surface."""
    rows, columns = np.nonzero(seen.depth > 0)
    chosen = generator.choice(len(rows), min(count, len(rows)), replace=False)
    rows, columns = rows[chosen], columns[chosen]
    depth = seen.depth[rows, columns] * (1 + NOISE * generator.normal(size=len(rows)))
    outlier = generator.random(len(rows)) < OUTLIERS
    depth = np.where(outlier, depth * generator.uniform(0.1, 0.9, len(rows)), depth)
    x = (columns + 0.5 - camera.cx) / camera.fx
    y = (rows + 0.5 - camera.cy) / camera.fy
    local = torch.from_numpy(np.stack([x * depth, y * depth, depth], 1))
    positions = transform_points(camera.world_from_camera.double(), local).numpy()
    return np.concatenate([positions, seen.colors[rows, columns].clip(0, 1)], 1)


BEFORE_A_WALL = (
    SolidSpec(Wall((6.0, 0.3, 6.0)), (0.0, 10.3, 0.0), (0.62, 0.58, 0.52), 0.6, rotated=False),
    SolidSpec(Sphere(0.8), (-1.1, 6.5, -0.4), (0.70, 0.30, 0.24), 0.25),
    SolidSpec(RoundedBox((0.6, 0.5, 0.7), 0.1), (1.2, 7.2, -0.5), (0.28, 0.46, 0.66), 0.25),
    SolidSpec(Torus(0.6, 0.2), (0.1, 5.2, -1.0), (0.34, 0.58, 0.32), 0.2),
)
"""Solids in front of a wall ten units away."""


def forward(folder: Path) -> None:
    """Write a deep scene before a wall with clutter, seen by cameras within a disc of radius 0.25."""
    generator = np.random.Generator(np.random.PCG64(3))
    clutter = tuple(
        SolidSpec(
            Sphere(0.12 + 0.1 * generator.random()),
            tuple(generator.uniform([-1.6, 3.5, -1.3], [1.6, 9.0, 1.3])),
            tuple(generator.uniform(0.25, 0.8, 3)),
        )
        for _ in range(14)
    )
    scene = Blocks(0, (*BEFORE_A_WALL, *clutter))
    scene.cell = 0.28
    golden = math.pi * (3 - math.sqrt(5))
    discs = [(0.25 * math.sqrt((i + 0.5) / 24), i * golden) for i in range(24)]
    poses = [look_at((r * math.cos(a), 0.0, r * math.sin(a)), (0.0, 8.0, -0.3)) for r, a in discs]
    write_scene(folder, cameras_at(poses, 44), of_solids(scene), backdrop=(90, 110, 140), points=3000)


def rings(
    count: int, rows: Sequence[tuple[float, float]], target: tuple[float, float, float] = (0, 0, 0)
) -> list[torch.Tensor]:
    """Return poses on rings of a radius and a height, in turn from each ring."""
    found = [ring(count // len(rows), radius=r, height=h, target=target, start=i / 7) for i, (r, h) in enumerate(rows)]
    return [poses[i] for i in range(count // len(rows)) for poses in found]


def turntable(folder: Path) -> None:
    """Write photos of an object in front of a plain, bright background."""
    cameras = cameras_at(rings(36, ((2.9, 0.3), (2.4, 1.7))), 44)
    write_scene(folder, cameras, of_mesh(SPOT), backdrop=BACKDROP, points=2000)


def renders(folder: Path) -> None:
    """Write RGBA renders of an object, without points."""
    cameras = cameras_at(rings(36, ((2.9, -0.6), (2.8, 0.9), (2.0, 2.2))), 44)
    write_scene(folder, cameras, of_mesh(SPOT), backdrop=None, points=0)


WALLS = (
    SolidSpec(Wall((3.1, 3.1, 0.1)), (0.0, 0.0, -1.3), (0.50, 0.42, 0.34), 0.5, rotated=False),
    SolidSpec(Wall((0.1, 3.1, 1.6)), (-3.0, 0.0, 0.2), (0.62, 0.64, 0.70), 0.5, rotated=False),
    SolidSpec(Wall((0.1, 3.1, 1.6)), (3.0, 0.0, 0.2), (0.70, 0.60, 0.52), 0.5, rotated=False),
    SolidSpec(Wall((3.1, 0.1, 1.6)), (0.0, -3.0, 0.2), (0.56, 0.66, 0.56), 0.5, rotated=False),
    SolidSpec(Wall((3.1, 0.1, 1.6)), (0.0, 3.0, 0.2), (0.72, 0.70, 0.58), 0.5, rotated=False),
)
"""A floor and four walls, six units apart."""
ROOM = (
    *WALLS,
    SolidSpec(Wall((3.1, 3.1, 0.1)), (0.0, 0.0, 1.5), (0.78, 0.78, 0.76), 0.9, rotated=False),
    SolidSpec(RoundedBox((0.5, 0.9, 0.35), 0.08), (2.2, 1.4, -0.85), (0.28, 0.46, 0.66), 0.2),
    SolidSpec(Cylinder(0.5, 0.3), (-2.0, 1.8, -0.9), (0.34, 0.58, 0.32), 0.2),
    SolidSpec(Sphere(0.35), (-2.1, -1.7, -0.85), (0.70, 0.30, 0.24), 0.2),
    SolidSpec(RoundedBox((0.3, 0.3, 0.9), 0.05), (1.9, -2.1, -0.3), (0.60, 0.44, 0.30), 0.2),
    SolidSpec(Torus(0.3, 0.12), (0.3, 2.2, -1.05), (0.78, 0.66, 0.26), 0.2),
    SolidSpec(Sphere(0.22), (0.2, -2.0, 0.6), (0.85, 0.80, 0.60), 0.2),
)
"""A closed room, six units wide, with furniture."""


def room(folder: Path) -> None:
    """Write photos from the middle of a room: cameras on a small circle that look outward, up and down in turn."""
    scene = Blocks(1, ROOM)
    scene.cell = 0.22
    poses: list[torch.Tensor] = []
    for i in range(36):
        angle = 2 * math.pi * i / 36
        away = np.array([math.cos(angle), math.sin(angle), 0.0])
        # On alternating circles, so that neighbors have a baseline.
        position = (0.35 + 0.5 * (i % 2)) * away + [0, 0, 0.15 * (i % 3 - 1)]
        target = position + away + [0, 0, (-0.35, 0.0, 0.25)[i % 3]]
        poses.append(look_at(tuple(position), tuple(target)))
    write_scene(folder, cameras_at(poses, 75), of_solids(scene), backdrop=(0, 0, 0), points=4000)


def exposure(folder: Path) -> None:
    """Write photos of solids in front of walls whose exposure changes from photo to photo, but not in held-out ones."""
    scene = Blocks(2, (*ON_A_PLATE, *WALLS))
    generator = np.random.Generator(np.random.PCG64(5))
    gains = np.exp(generator.normal(0, 0.16, (36, 1)) + generator.normal(0, 0.04, (36, 3)))
    _, test = every_nth(36, HELD_OUT)

    def develop(number: int, colors: np.ndarray) -> np.ndarray:
        return colors if number in test else colors * gains[number]

    cameras = cameras_at(rings(36, ((2.6, 0.5), (2.3, 1.1)), (0.0, 0.0, 0.1)), 50)
    write_scene(folder, cameras, of_solids(scene), backdrop=(120, 130, 150), points=3000, develop=develop)


KINDS = {
    "forward": Kind(make=forward, tuning=True),
    "turntable": Kind(make=turntable, tuning=True),
    "desk": Kind(data=PLUSH, tuning=True, held_out=5, longer_side=128),
    "room": Kind(make=room),
    "renders": Kind(make=renders),
    "exposure": Kind(make=exposure),
}
"""All scenes by name; the tuning scenes first."""
