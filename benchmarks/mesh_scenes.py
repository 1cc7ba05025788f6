"""Meshes of five scenes beside their photos, close up, made by this checkout and by another one.

    python benchmarks/mesh_scenes.py --photos FOLDER                      # a quarter of an hour of processor time
    python benchmarks/mesh_scenes.py --photos FOLDER --source ../old/src  # compared with another checkout, or a commit
    python benchmarks/mesh_scenes.py --only kitchen spot --keep OUT       # keep everything; make only what is missing
    python benchmarks/mesh_scenes.py --only kitchen --flags --transparency everywhere   # further flags of the training

The scenes are a plush toy (data/real), photos of your own (`--photos`, COLMAP's layout), the room `kitchen` of
flat_walls.py, RGBA renders of Spot without points, and the built-in solids as RGBA photos. Training and extraction are
commands of each checkout with its defaults, in processes of their own; only steps and photos are fewer than those of
the preset `cpu`. The room uses `--preset rooms` and `--method tsdf`, if a checkout has that preset. Seconds are
processor time.

Each scene becomes a picture in OUT/pictures: a held-out photo and a close-up of another one, each beside the mesh with
the colors of its vertices, and colored by its normals. The table:

holes         of the pixels of all photos that should show the mesh, those where it is missing. They are known if the
              true surface is: then a mesh that is deeper by 2 % of the diameter is missing, too. Otherwise they are the
              pixels within the outlines of all checkouts' meshes, in the bounding box of the mesh of this checkout
PSNR          of the colored mesh in these pixels of the held-out photos, before a gray background
within 0.2 %  share of the surface that training photos show with mesh within 0.2 % of its diameter
normals       median angle between the true surface and the mesh nearest to it
Chamfer       mean of both distances between what the photos show of the surface and of the mesh
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float64, UInt8
from PIL import Image, ImageDraw
from scipy.ndimage import binary_fill_holes

from checkouts import source_of
from fieldwatch.recon.data import MeshScene, PhotoOptions, PhotoSet, read_colmap, read_transforms
from fieldwatch.recon.data.solids import SolidScene, solid_cameras
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import MeshRenderer, Triangles, read_mesh
from fieldwatch.recon.mesh.closest import SurfaceSearch
from fieldwatch.recon.mesh.rendering import BACKGROUND
from fieldwatch.recon.mesh.sampling import SurfaceSamples, thinned
from fieldwatch.recon.mesh.visibility import visible_points
from fieldwatch.recon.render import View, cast_triangles
from flat_walls import CLOSE, ROOMS, SPACING
from scene_kinds import (
    HELD_OUT,
    PLUSH,
    SPOT,
    TRUTH,
    Blocks,
    Look,
    cameras_at,
    in_unit_ball,
    of_mesh,
    of_solids,
    rings,
    write_scene,
)

OWN = Path(__file__).resolve().parent.parent / "src"
TILE = 320
"""Longer side of each part of a picture, pixels."""
DEEPER = 0.02
"""Distance behind the true surface from which a pixel shows a hole, in diameters."""
RECIPE = (
    "--seed 0 --turntable 0 --threads 1 --checkpoint-interval 0 --test-iterations 15000 --growth-cap 30000 "
    f"--held-out {HELD_OUT}"
).split()
SCHEDULE = 0.06
"""Steps per iteration: 900 steps."""
Flags = tuple[tuple[str, ...], ...]
"""Flags, each with its values."""


class Shape(Protocol):
    """A true surface."""

    def depth(self, camera: Camera) -> torch.Tensor:
        """Return the depth at every pixel center; 0 where there is nothing."""
        ...

    def normals(self, camera: Camera) -> torch.Tensor:
        """Return the unit normals at every pixel center, in world axes."""
        ...


Distance = Callable[[Float64[np.ndarray, "n 3"]], Float64[np.ndarray, " n"]]
"""Function from points to their distance from a surface."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A scene that is made: its true surface, how it looks, and the cameras of its photos."""

    shape: Shape
    distance: Distance
    look: Look
    cameras: Sequence[Camera]
    backdrop: tuple[int, int, int] | None
    points: int


@dataclass(frozen=True, kw_only=True)
class CloseUp:
    """A part of a held-out photo.

    Attributes:
        number: which of the held-out photos.
        center: its center, as fractions of width and height.
        zoom: magnification.
    """

    number: int
    center: tuple[float, float] = (0.5, 0.5)
    zoom: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A scene of the benchmark.

    Attributes:
        known: makes the scene; None for photos that are there.
        data: folder of photos that are there.
        size: longer side of the photos that are trained on, pixels.
        preset: preset of the training; a checkout that does not have it uses `cpu`.
        method: flags of `mesh extract` that go with the preset.
        region: flags of `mesh extract` that choose what is meshed, as far as a checkout has them.
        views: parts of held-out photos for the picture.
    """

    known: Callable[[], Known] | None = None
    data: Path | None = None
    size: int
    preset: str = "cpu"
    method: tuple[str, ...] = ()
    region: Flags = ()
    views: tuple[CloseUp, ...] = (CloseUp(number=0), CloseUp(number=2, zoom=2.5))


def kitchen() -> Known:
    """Return the room of flat_walls.py on which no setting was chosen."""
    room = ROOMS["kitchen"]
    blocks = Blocks(room.seed, room.solids())
    blocks.cell = 0.12
    return of_solid_scene(blocks, room.cameras(160), backdrop=(0, 0, 0), points=4000)


def solids() -> Known:
    """Return the built-in scene."""
    return of_solid_scene(SolidScene(), solid_cameras(48, 128), backdrop=None, points=4000)


def of_solid_scene(
    scene: SolidScene, cameras: Sequence[Camera], *, backdrop: tuple[int, int, int] | None, points: int
) -> Known:
    """Return a scene of solids."""
    return Known(
        shape=scene,
        distance=lambda places: np.abs(scene.distance(torch.from_numpy(places)).numpy()),
        look=of_solids(scene),
        cameras=cameras,
        backdrop=backdrop,
        points=points,
    )


def spot() -> Known:
    """Return Spot, a cow, without points."""
    scene: MeshScene = in_unit_ball(SPOT)
    mesh = Triangles(vertices=scene.vertices.numpy(), faces=scene.faces.numpy())
    search = SurfaceSearch(mesh)
    cameras = cameras_at(rings(36, ((2.9, -0.6), (2.8, 0.9), (2.0, 2.2))), 44)
    return Known(
        shape=scene,
        distance=lambda places: search.closest(places).distances,
        look=of_mesh(SPOT),
        cameras=[camera.resized(128, 128) for camera in cameras],
        backdrop=None,
        points=0,
    )


SCENES = {
    "plush": Scene(data=PLUSH, size=192, views=(CloseUp(number=1), CloseUp(number=3, zoom=2.5))),
    "photos": Scene(size=192, views=(CloseUp(number=2), CloseUp(number=8, zoom=2.5))),
    "kitchen": Scene(
        known=kitchen,
        size=160,
        preset="rooms",
        method=("--method", "tsdf"),
        # The cameras go around the table, which would be taken for the object.
        region=(("--bbox", *ROOMS["kitchen"].box()), ("--surroundings", "keep")),
        views=(CloseUp(number=1), CloseUp(number=4, center=(0.3, 0.6), zoom=2.5)),
    ),
    "spot": Scene(known=spot, size=128),
    "solids": Scene(known=solids, size=128),
}
"""Scenes by name; `photos` has those of --photos."""


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A checkout whose commands are run.

    Attributes:
        name: name in the table and of its folder.
        source: its src folder.
        scale: factor on the number of steps.
        flags: further flags of the training.
    """

    name: str
    source: Path
    scale: float = 1.0
    flags: tuple[str, ...] = ()
    helps: dict[tuple[str, ...], str] = field(default_factory=dict)

    def run(self, *words: str) -> tuple[str, float]:
        """Run a command of fieldwatch; return what it printed and its seconds of processor time.

        Raises:
            SystemExit: the command failed; the message contains its stderr.
        """
        command = [sys.executable, "-m", "fieldwatch", *words]
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = os.environ | one | {"PYTHONPATH": str(self.source), "CUDA_VISIBLE_DEVICES": ""}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        # 1: `train` has findings of health rules.
        if done.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)} of {self.source} ended with {done.returncode}:\n{done.stderr}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def has(self, command: tuple[str, ...], word: str) -> bool:
        """Return whether the help of a command contains a flag or the name of a preset."""
        if command not in self.helps:
            self.helps[command] = self.run(*command, "--help")[0]
        words = self.helps[command].replace(",", " ").replace("{", " ").replace("}", " ").split()
        return word in words

    def known(self, command: tuple[str, ...], flags: Flags) -> list[str]:
        """Return those of the flags that the command has."""
        return [word for flag, *values in flags if self.has(command, flag) for word in (flag, *values)]


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a checkout made of a scene: the mesh with the colors of its vertices, and seconds of processor time."""

    checkout: str
    mesh: Triangles
    training: float
    extraction: float


def kept(file: Path, make: Callable[[], tuple[str, float]]) -> float:
    """Run a command if the file with its seconds is missing; return these seconds."""
    if not file.exists():
        printed, seconds = make()
        file.write_text(json.dumps({"seconds": seconds, "printed": printed}))
    return float(json.loads(file.read_text())["seconds"])


def made(checkout: Checkout, scene: Scene, data: Path, folder: Path) -> Made:
    """Train and extract a scene, or take what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    run, meshes = folder / "run", folder / "mesh"
    has_preset = checkout.has(("train", "splats"), scene.preset)
    words = ["--preset", scene.preset if has_preset else "cpu", *RECIPE, "--longer-side", str(scene.size)]
    words += ["--schedule-scale", str(SCHEDULE * checkout.scale), *checkout.flags]
    training = kept(
        folder / "training.json",
        lambda: checkout.run("train", "splats", "--data", str(data), "--out", str(run), *words),
    )
    flags = checkout.known(("mesh", "extract"), scene.region)
    if has_preset:
        flags += scene.method
    extraction = kept(
        folder / "extraction.json",
        lambda: checkout.run("mesh", "extract", str(run), "--out", str(meshes), "--no-pictures", "--json", *flags),
    )
    (mesh,) = meshes.glob("*.ply")
    return Made(checkout=checkout.name, mesh=read_mesh(mesh), training=training, extraction=extraction)


def depth_of(mesh: Triangles, camera: Camera) -> Float64[np.ndarray, "height width"]:
    """Return the depth of a mesh at every pixel center; 0 where there is none."""
    lens = {name: getattr(camera, name) for name in ("fx", "fy", "cx", "cy", "width", "height")}
    view = View(camera_from_world=camera.camera_from_world.double(), near=1e-3, **lens)
    return cast_triangles(torch.from_numpy(mesh.vertices), torch.from_numpy(mesh.faces), view).depth.double().numpy()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Pixels of a photo that should show the mesh, and the true depth there if it is known."""

    region: Bool[np.ndarray, "height width"]
    depth: Float64[np.ndarray, "height width"] | None = None

    def holes(self, mesh: Triangles, camera: Camera, diameter: float) -> Bool[np.ndarray, "height width"]:
        """Return the pixels where a mesh is missing."""
        found = depth_of(mesh, camera)
        absent = found == 0
        if self.depth is not None:
            absent |= found > self.depth + DEEPER * diameter
        return self.region & absent


def seen_of_truth(data: Path) -> list[Seen]:
    """Return the pixels of all photos that show the true surface."""
    depths = np.load(data / TRUTH)["depth"].astype(np.float64)
    return [Seen(region=depth > 0, depth=depth) for depth in depths]


def seen_of_outlines(meshes: Sequence[Triangles], cameras: Sequence[Camera]) -> list[Seen]:
    """Return the pixels within the outlines of all meshes, holes included."""
    found: list[Seen] = []
    for camera in cameras:
        region = np.ones((camera.height, camera.width), bool)
        for mesh in meshes:
            region &= binary_fill_holes(depth_of(mesh, camera) > 0)
        found.append(Seen(region=region))
    return found


def in_box_of(mesh: Triangles, other: Triangles) -> Triangles:
    """Return the faces of a mesh that lie in the bounding box of another one."""
    low, high = other.vertices.min(0), other.vertices.max(0)
    inside = ((mesh.corners >= low) & (mesh.corners <= high)).all((1, 2))
    return mesh.chosen(inside)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Comparison of a mesh with the true surface; lengths in percent of its diameter, angles in degrees."""

    within: float
    normals: float
    chamfer: float

    @classmethod
    def of(cls, mesh: Triangles, known: Known, truth: SurfaceSamples, diameter: float) -> "Scores":
        """Compare what the photos show of both."""
        closest = SurfaceSearch(mesh).closest(truth.points)
        cosine = np.abs((mesh.normals[closest.faces] * truth.normals).sum(1)).clip(0, 1)
        shown = thinned(visible_points(mesh, coarse(known.cameras)), SPACING * diameter)
        both = closest.distances.mean() + known.distance(shown.points).mean()
        return cls(
            within=float((closest.distances <= CLOSE * diameter).mean()),
            normals=float(np.degrees(np.median(np.arccos(cosine)))),
            chamfer=50 * float(both) / diameter,
        )


def coarse(cameras: Sequence[Camera]) -> list[Camera]:
    """Return cameras of half the size: a quarter of their rays is plenty."""
    return [camera.resized(camera.width // 2, camera.height // 2) for camera in cameras]


def true_surface(known: Known) -> tuple[SurfaceSamples, float]:
    """Return evenly spread points of the true surface that photos show, and the diameter of their box."""
    points: list[np.ndarray] = []
    normals: list[np.ndarray] = []
    for camera in coarse(known.cameras):
        depth = known.shape.depth(camera)
        hit = (depth > 0).flatten().numpy()
        points.append(camera.to("cpu", torch.float64).unproject(depth).reshape(-1, 3).numpy()[hit])
        normals.append(known.shape.normals(camera).reshape(-1, 3).numpy()[hit])
    every = SurfaceSamples(points=np.concatenate(points), normals=np.concatenate(normals))
    diameter = float(np.linalg.norm(np.ptp(every.points, axis=0)))
    return thinned(every, SPACING * diameter), diameter


def composited(pixels: np.ndarray, cover: np.ndarray | None) -> Float64[np.ndarray, "height width 3"]:
    """Return colors from 0 to 1 over the background of rendered meshes; `pixels` are not premultiplied."""
    if cover is None:
        return pixels
    return pixels * cover[..., None] + np.array(BACKGROUND) / 255 * (1 - cover[..., None])


def photo_of(data: Path, name: str, camera: Camera) -> Float64[np.ndarray, "height width 3"]:
    """Return a photo by its file, at the size of a camera, as colors from 0 to 1."""
    (path,) = (each for each in (data / name, data / "images" / name) if each.exists())
    with Image.open(path) as file:
        resized = file.resize((camera.width, camera.height), Image.Resampling.BOX)
    pixels = np.asarray(resized.convert("RGBA"), np.float64) / 255
    return composited(pixels[..., :3], pixels[..., 3])


def psnr(mesh: Triangles, photos: PhotoSet, data: Path, seen: Sequence[Seen]) -> float:
    """Return the PSNR of the colored mesh in the pixels of the held-out photos that should show it, dB."""
    renderer = MeshRenderer(mesh)
    errors: list[np.ndarray] = []
    for number in photos.test:
        camera = photos.cameras[number]
        render = renderer.render(camera) / 255
        error = (render - photo_of(data, camera.name, camera)) ** 2
        errors.append(error[seen[number].region].reshape(-1))
    return -10 * math.log10(float(np.concatenate(errors).mean()))


def camera_of(view: CloseUp, camera: Camera) -> Camera:
    """Return the camera of a part of a photo, at the size of the pictures."""
    scale = TILE / max(camera.width, camera.height)
    tile = camera.resized(round(camera.width * scale), round(camera.height * scale))
    zoom, (x, y) = view.zoom, view.center
    left = (zoom * x - 0.5) * tile.width
    top = (zoom * y - 0.5) * tile.height
    lens = {"fx": zoom * tile.fx, "fy": zoom * tile.fy, "cx": zoom * tile.cx - left, "cy": zoom * tile.cy - top}
    return replace(tile, **lens)


def photo_part(view: CloseUp, path: Path, camera: Camera) -> UInt8[np.ndarray, "height width 3"]:
    """Return a part of a photo's file at the size of the pictures."""
    tile = camera_of(view, camera)
    with Image.open(path) as file:
        width, height = file.width / view.zoom, file.height / view.zoom
        left, top = view.center[0] * file.width - width / 2, view.center[1] * file.height - height / 2
        box = (left, top, left + width, top + height)
        part = file.convert("RGB").resize((tile.width, tile.height), Image.Resampling.LANCZOS, box=box)
    return np.asarray(part)


def picture(scene: Scene, known: Known | None, photos: PhotoSet, data: Path, all_made: Sequence[Made]) -> Image.Image:
    """Return a row for each view: the photo, and for each checkout the colored mesh and its normals."""
    renderers = [MeshRenderer(made.mesh) for made in all_made]
    rows: list[np.ndarray] = []
    for view in scene.views:
        camera = photos.cameras[photos.test[view.number]]
        tile = camera_of(view, camera)
        if known is None:
            parts = [photo_part(view, data / "images" / camera.name, camera)]
        else:
            look = known.look(tile)
            parts = [np.rint(255 * composited(look.colors, look.cover).clip(0, 1)).astype(np.uint8)]
        for renderer in renderers:
            parts += renderer.render_shadings(tile, ("color", "normals"))
        rows.append(np.concatenate(parts, axis=1))
    drawn = Image.fromarray(np.concatenate(rows))
    pen = ImageDraw.Draw(drawn)
    width = drawn.width // (1 + 2 * len(all_made))
    for column, name in enumerate(("photo", *(made.checkout for made in all_made for _ in range(2)))):
        pen.text((column * width + 4, 2), name, fill=(255, 255, 0), stroke_width=1, stroke_fill=(0, 0, 0))
    return drawn


HEAD = """
| scene | checkout | triangles | holes | PSNR | within 0.2 % | normals | Chamfer | training | extraction |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"""


def measured(name: str, scene: Scene, folder: Path, checkouts: Sequence[Checkout]) -> None:
    """Make the meshes of a scene, print their rows and draw its picture."""
    known = scene.known() if scene.known is not None else None
    data = scene.data or folder / name / "photos"
    if known is not None and not data.exists():
        write_scene(data, known.cameras, known.look, backdrop=known.backdrop, points=known.points)
    options = PhotoOptions(held_out=HELD_OUT, longer_side=scene.size)
    photos = (read_colmap if known is None else read_transforms)(data, options)
    all_made = [made(checkout, scene, data, folder / name / checkout.name) for checkout in checkouts]
    own = all_made[-1].mesh
    if known is None:
        meshes = [in_box_of(made.mesh, own) for made in all_made]
        seen = seen_of_outlines(meshes, photos.cameras)
        truth, diameter = None, math.nan
    else:
        meshes = [made.mesh for made in all_made]
        truth, diameter = true_surface(known)
        seen = seen_of_truth(data)
    for each, mesh in zip(all_made, meshes, strict=True):
        pairs = list(zip(photos.cameras, seen, strict=True))
        holes = sum(int(part.holes(mesh, camera, diameter).sum()) for camera, part in pairs)
        total = sum(int(part.region.sum()) for part in seen)
        cells = [f"{len(each.mesh.faces):,}", f"{holes / total:.2%}", f"{psnr(mesh, photos, data, seen):.2f} dB"]
        if known is None or truth is None:
            cells += ["-", "-", "-"]
        else:
            scores = Scores.of(mesh, known, truth, diameter)
            cells += [f"{scores.within:.1%}", f"{scores.normals:.1f}°", f"{scores.chamfer:.3f} %"]
        cells += [f"{each.training:.0f} s", f"{each.extraction:.0f} s"]
        print(f"| {name} | {each.checkout} | {' | '.join(cells)} |", flush=True)
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    picture(scene, known, photos, data, all_made).save(pictures / f"{name}.png")


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(SCENES), help="some of the scenes")
    parser.add_argument("--photos", type=Path, help="photos with cameras in COLMAP's layout: the scene `photos`")
    parser.add_argument("--source", help="src folder of another checkout, or a commit")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the other checkout's number of steps")
    parser.add_argument("--keep", type=Path, help="folder for scenes, runs, meshes and pictures; by default temporary")
    parser.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="further flags of this checkout's training"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    names = chosen.only or [name for name in SCENES if name != "photos" or chosen.photos is not None]
    if "photos" in names and chosen.photos is None:
        parser.error("expected --photos FOLDER for the scene photos")
    checkouts = [Checkout(name="this", source=OWN, flags=tuple(chosen.flags))]
    with ExitStack() as open_folders:
        if chosen.source is not None:
            other = open_folders.enter_context(source_of(chosen.source))
            checkouts.insert(0, Checkout(name="other", source=other, scale=chosen.scale))
        print(HEAD)
        scratch = open_folders.enter_context(tempfile.TemporaryDirectory())
        folder = chosen.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            scene = SCENES[name]
            if name == "photos":
                scene = replace(scene, data=chosen.photos)
            measured(name, scene, folder, checkouts)


if __name__ == "__main__":
    main()
