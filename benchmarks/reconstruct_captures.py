"""`fieldwatch reconstruct` on a film and photos without cameras, compared with the same photos and known cameras.

    python benchmarks/reconstruct_captures.py                   # all; about half an hour of processor time
    python benchmarks/reconstruct_captures.py --only film
    python benchmarks/reconstruct_captures.py --keep FOLDER     # keep everything; an interrupted benchmark continues
    python benchmarks/reconstruct_captures.py --keep FOLDER --again    # the same trainings, meshed by the code of now
    python benchmarks/reconstruct_captures.py --write           # also write the table into docs/splats.md
    python benchmarks/reconstruct_captures.py --flags --schedule-scale 0.02    # flags of the training, for a short try

film    the film of capture_cameras.py: boxes on a floor, motion blur, a drift of the exposure, H.264
photos  34 photos of a cow on a table, rendered from a mesh: hand-held, each with its own exposure, JPEG quality 85
plush   the photos in data/real/colmap_plush without their cameras

Each is reconstructed twice with the same flags: from the film or photos alone, and from the same photos (those that got
a camera) with known cameras: the true ones with points on the true surface, or those of the folder. Both hold out the
same photos. Wall times depend on what else the machine does; processor time is that of all stages.

Chamfer is the mean of two mean distances, in percent of the diagonal of the true surface that is meshed: from the mesh
to the true surface, and from the true surface that is visible, and in the image of at least half of the cameras, to the
mesh. A mesh of found cameras is first moved by the similarity that fits its cameras to the true ones best.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from capture_cameras import CHOSEN, FOCAL, FRAMES, RATE, SIZE, film_frames, pose_at, textured_scene
from fieldwatch.recon.data import write_point_ply, write_video
from fieldwatch.recon.data.colmap import read_colmap_model
from fieldwatch.recon.geometry import Camera, Similarity, align_points, look_at
from fieldwatch.recon.mesh import MeshRenderer, Triangles, read_mesh
from fieldwatch.recon.mesh.closest import SurfaceSearch
from fieldwatch.recon.mesh.sampling import sample_surface
from fieldwatch.recon.mesh.visibility import visible_points
from scene_kinds import OPENGL, PLUSH, SPOT

PAGE = Path(__file__).resolve().parent.parent / "docs" / "splats.md"
BEGIN = "<!-- captures: written by benchmarks/reconstruct_captures.py --write -->\n"
END = "<!-- end captures -->\n"
PHOTOS = 34
SAMPLES = 50_000
POINTS = 4000
WANTED_SECONDS = 15 * 60
WANTED_LOSS = 0.3
HEAD = (
    "| capture | registered | wall time | processor time | held-out PSNR | with known cameras | Chamfer | with known "
    "cameras |\n|---|---:|---:|---:|---:|---:|---:|---:|"
)
Told = Mapping[str, Any]
"""What a command printed as JSON."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The true surface of a capture, and the pose of every photo by the name of its file."""

    mesh: Triangles
    pose_of: Callable[[str], Tensor]


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A film or photos without cameras.

    Attributes:
        make: writes the input into a new folder, and returns its path.
        flags: flags of `reconstruct`.
        truth: returns the truth; None if the cameras of `posed` are the reference.
        posed: COLMAP folder with the reference.
    """

    make: Callable[[Path], Path]
    flags: Sequence[str] = ()
    truth: Callable[[], Truth] | None = None
    posed: Path | None = None


def make_film(folder: Path) -> Path:
    """Write the film of capture_cameras.py."""
    return write_video(folder / "film.mp4", film_frames(MeshRenderer(textured_scene())), rate=RATE, quality=23)


def cow_on_a_table() -> Triangles:
    """Return the cow, 1.6 units long, on a table of 3.4 units with spots; both in one texture.

    The cow's own texture has large areas of one color; like fur, faint spots are added.
    """
    cow = read_mesh(SPOT)
    # The file names no material.
    with Image.open(SPOT.parent / "spot_texture.png") as picture:
        texture = np.asarray(picture.convert("RGB"))
    # The file has y up.
    upright = cow.vertices @ np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
    size = (upright.max(0) - upright.min(0)).max()
    middle = (upright.max(0) + upright.min(0)) / 2
    placed = (upright - [*middle[:2], upright[:, 2].min()]) * 1.6 / size
    side = 1.7
    corners = np.array([(-side, -side, 0.0), (side, -side, 0.0), (side, side, 0.0), (-side, side, 0.0)])
    square = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    height, width = texture.shape[:2]
    # The cow's texture above, the table's below.
    halves = [np.asarray(cow.uvs) * [1.0, 0.5] + [0.0, 0.5], square[[[0, 1, 2], [0, 2, 3]]] * [1.0, 0.5]]
    around = spots(height, width)
    fur = (texture * (0.86 + 0.14 * (np.flip(around, 0) / 127.5 - 1))).clip(0, 255).astype(np.uint8)
    return Triangles(
        vertices=np.concatenate([placed, corners]),
        faces=np.concatenate([cow.faces, np.array([(0, 1, 2), (0, 2, 3)]) + len(placed)]).astype(np.int64),
        uvs=np.concatenate(halves),
        texture=np.concatenate([fur, around]),
    )


def spots(height: int, width: int) -> np.ndarray:
    """Return a picture of random spots, coarse to fine, 8 bit."""
    generator = np.random.default_rng(4)
    total = np.zeros((height, width, 3))
    for cells in (8, 32, 128, 256):
        colors = generator.uniform(-1, 1, (cells, cells, 3))
        total += np.kron(colors, np.ones((height // cells, width // cells, 1))) * cells**-0.2
    return (120 + 50 * total).clip(0, 255).astype(np.uint8)


def photo_pose(name: str) -> Tensor:
    """Return the pose of a photo: two rounds by hand, at changing distance and height."""
    number = int(Path(name).stem.rpartition("_")[2])
    generator = np.random.default_rng(100 + number)
    angle = 4 * math.pi * number / PHOTOS + 0.08 * generator.normal()
    radius = (3.2 if number < PHOTOS / 2 else 2.8) + 0.12 * generator.normal()
    height = (1.0 if number < PHOTOS / 2 else 2.1) + 0.08 * generator.normal()
    target = np.array([0.0, 0.0, 0.62]) + generator.normal(0, 0.06, 3)
    return look_at((radius * math.cos(angle), radius * math.sin(angle), height), tuple(target.tolist()))


def make_photos(folder: Path) -> Path:
    """Write the photos of the cow."""
    renderer = MeshRenderer(cow_on_a_table())
    out = folder / "photos"
    out.mkdir()
    for number in range(PHOTOS):
        name = f"photo_{number:03d}.jpg"
        pixels = renderer.render(camera_of(name, photo_pose(name)), background=(150, 156, 164)).astype(np.float32)
        # One step of a third of an aperture stop either way.
        gain = 2 ** np.random.default_rng(number).uniform(-1 / 6, 1 / 6)
        Image.fromarray((pixels * gain).round().clip(0, 255).astype(np.uint8)).save(out / name, quality=85)
    return out


def make_plush(folder: Path) -> Path:
    """Copy the photos of the plush toy without their cameras."""
    return shutil.copytree(PLUSH / "images", folder / "images")


def film_truth() -> Truth:
    """Return the scene of the film; its frames are named by their number."""
    return Truth(mesh=textured_scene(), pose_of=lambda name: pose_at(int(Path(name).stem.rpartition("_")[2]) / FRAMES))


def photo_truth() -> Truth:
    """Return the cow on its table."""
    return Truth(mesh=cow_on_a_table(), pose_of=photo_pose)


CAPTURES = {
    "film": Capture(make=make_film, flags=("--frames", str(CHOSEN)), truth=film_truth),
    "photos": Capture(make=make_photos, truth=photo_truth),
    "plush": Capture(make=make_plush, posed=PLUSH),
}


def camera_of(name: str, pose: Tensor) -> Camera:
    """Return the camera of a photo of the made captures."""
    width, height = SIZE
    lens = {"fx": FOCAL, "fy": FOCAL, "cx": width / 2, "cy": height / 2}
    return Camera(name=name, width=width, height=height, world_from_camera=pose, **lens)


def printed_by(words: Sequence[str], allowed: Sequence[int] = (0,)) -> str:
    """Run a command of fieldwatch on one thread, and return what it printed.

    Raises:
        SystemExit: it ended with another code than the allowed ones; its own message says why.
    """
    command = [sys.executable, "-m", "fieldwatch", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode not in allowed:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def reconstructed(data: Path, out: Path, flags: Sequence[str], training: Sequence[str]) -> Told:
    """Run `fieldwatch reconstruct`, or what is left to do of it, and return its JSON.

    Raises:
        SystemExit: it failed; its own message says why.
    """
    words = ["reconstruct", str(data), "-o", str(out), *flags, "--json", "--", "--threads", "1", *training]
    return json.loads(printed_by(words, allowed=(0, 1)))


def with_known_cameras(capture: Capture, scene: Path, out: Path) -> None:
    """Write the photos of a scene that have a camera into a new folder, with the known cameras and points."""
    names = sorted(image.name for image in read_colmap_model(scene / "sparse" / "0").images)
    images = out / "images"
    images.mkdir(parents=True)
    for name in names:
        shutil.copy(scene / "images" / name, images / name)
    if capture.posed is not None:
        shutil.copytree(capture.posed / "sparse", out / "sparse")
    if capture.truth is None:
        return
    truth = capture.truth()
    cameras = [camera_of(name, truth.pose_of(name)) for name in names]
    seen = visible_points(truth.mesh, [camera.resized(80, 45) for camera in cameras]).points
    chosen = np.random.default_rng(0).choice(len(seen), min(POINTS, len(seen)), replace=False)
    points = torch.from_numpy(seen[chosen].astype(np.float32))
    write_point_ply(out / "points.ply", points, torch.full((len(points), 3), 128, dtype=torch.uint8))
    first = cameras[0]
    known: dict[str, object] = {"w": first.width, "h": first.height, "fl_x": first.fx, "fl_y": first.fy}
    known |= {"cx": first.cx, "cy": first.cy, "ply_file_path": "points.ply"}
    known["frames"] = [
        {"file_path": f"images/{each.name}", "transform_matrix": (each.world_from_camera.double() @ OPENGL).tolist()}
        for each in cameras
    ]
    (out / "transforms.json").write_text(json.dumps(known))


def extracted_alike(found: Path, run: Path, out: Path) -> Triangles:
    """Extract the mesh of a run with the flags that a reconstruction used for its own.

    Raises:
        SystemExit: it failed; its own message says why.
    """
    if not (kept := out.with_suffix(".json")).is_file():
        words = json.loads((found / "reconstruct.json").read_text())["stages"]["mesh"]["words"]
        words[2] = str(run)
        words[words.index("--out") + 1] = str(out)
        kept.write_text(printed_by(words))
    return mesh_of(json.loads(kept.read_text()))


def forget_meshes(folder: Path) -> None:
    """Remove meshes and what is made from them; cameras and trainings are kept."""
    (folder / "reference-mesh.json").unlink(missing_ok=True)
    shutil.rmtree(folder / "reference-mesh", ignore_errors=True)
    path = folder / "found" / "reconstruct.json"
    if not path.is_file():
        return
    record = json.loads(path.read_text())
    for stage, made in {"mesh": "mesh", "texture": "textured", "view": ""}.items():
        record["stages"].pop(stage, None)
        if made:
            shutil.rmtree(folder / "found" / made, ignore_errors=True)
    path.write_text(json.dumps(record))


def mesh_of(told: Told) -> Triangles:
    """Return the mesh that `mesh extract` wrote."""
    return read_mesh(Path(told["files"][next(iter(told["quality"]))]))


def chamfer(mesh: Triangles, truth: Truth, moved: Similarity | None, names: Sequence[str]) -> float:
    """Return the Chamfer distance of a mesh, in percent of the diagonal of the true surface."""
    cameras = [camera_of(name, truth.pose_of(name)) for name in names]
    real = visible_points(truth.mesh, [camera.resized(160, 90) for camera in cameras]).points
    points = torch.from_numpy(real)
    seen = np.stack([in_image(camera, points).numpy() for camera in cameras])
    real = real[seen.mean(0) >= 0.5]
    found = sample_surface(mesh, SAMPLES).points
    vertices = np.asarray(mesh.vertices, np.float64)
    if moved is not None:
        found = moved.apply(torch.from_numpy(found)).numpy()
        vertices = moved.apply(torch.from_numpy(vertices)).numpy()
    diagonal = float(np.linalg.norm(real.max(0) - real.min(0)))
    accuracy = SurfaceSearch(truth.mesh).closest(found).distances.mean()
    search = SurfaceSearch(Triangles(vertices=vertices, faces=np.asarray(mesh.faces, np.int64)))
    return 50 * float(accuracy + search.closest(real).distances.mean()) / diagonal


def in_image(camera: Camera, points: Tensor) -> Tensor:
    """Return which points are in front of a camera and in its image."""
    pixels, depth = camera.to("cpu", torch.float64).project(points.double())
    size = torch.tensor([camera.width, camera.height])
    return (depth > 0) & (pixels >= 0).all(-1) & (pixels < size).all(-1)


def row_of(name: str, folder: Path, training: Sequence[str]) -> tuple[str, list[str]]:
    """Reconstruct a capture with and without cameras; return its row, and the targets that it misses."""
    capture = CAPTURES[name]
    data = folder / "input"
    if not data.exists():
        data.mkdir(parents=True)
        capture.make(data)
    (source,) = data.iterdir()
    told = reconstructed(source, folder / "found", capture.flags, training)
    scene = folder / "found" / "scene"
    known = folder / "known"
    if not known.exists():
        with_known_cameras(capture, scene, known)
    skip = ("--skip-unreadable",) if capture.truth is None else ()
    # Texture and turntable of the reference are not needed.
    reference = reconstructed(known, folder / "reference", ("--for", "splats"), (*training, *skip))
    if held_out(told) != held_out(reference):
        raise SystemExit(f"{name}: the two trainings held out different photos, so their PSNR cannot be compared")
    found, ours, theirs = told["stages"]["cameras"], psnr_of(told), psnr_of(reference)
    distances = ["-", "-"]
    if capture.truth is not None:
        truth = capture.truth()
        images = read_colmap_model(scene / "sparse" / "0").images
        positions = torch.stack([image.world_from_camera.double()[:3, 3] for image in images])
        true = torch.stack([truth.pose_of(image.name).double()[:3, 3] for image in images])
        names = [image.name for image in images]
        ours_mesh = mesh_of(told["stages"]["mesh"])
        theirs_mesh = extracted_alike(folder / "found", Path(reference["files"]["run"]), folder / "reference-mesh")
        distances = [
            f"{chamfer(ours_mesh, truth, align_points(positions, true), names):.2f} %",
            f"{chamfer(theirs_mesh, truth, None, names):.2f} %",
        ]
    wall = sum(told["seconds"].values())
    seconds = sum(told["processor_seconds"].values())
    cells = [
        name, f"{found['registered']} of {found['photos']}", minutes(wall), minutes(seconds), f"{ours:.2f} dB",
        f"{theirs:.2f} dB", *distances,
    ]  # fmt: skip
    missed = [f"{name}: {minutes(seconds)} of processor time, wanted at most 15 min"] * (seconds > WANTED_SECONDS)
    missed += [f"{name}: {theirs - ours:.2f} dB below known cameras, wanted {WANTED_LOSS}"] * (
        theirs - ours > WANTED_LOSS
    )
    return f"| {' | '.join(cells)} |", missed


def held_out(told: Told) -> list[str]:
    """Return the names of the photos that a reconstruction held out, without their folders."""
    run = json.loads((Path(told["files"]["run"]) / "run.json").read_text())
    return [Path(name).name for name in run["about"]["test"]]


def psnr_of(told: Told) -> float:
    """Return the PSNR of the held-out photos."""
    return float(told["stages"]["train"]["metrics"]["Test/psnr"])


def minutes(seconds: float) -> str:
    """Return a duration for the table."""
    return f"{seconds / 60:.1f} min"


def write_table(lines: Iterable[str]) -> None:
    """Replace the table in docs/splats.md."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(CAPTURES), default=tuple(CAPTURES))
    parser.add_argument("--keep", type=Path, help="folder for all files; by default a temporary one")
    parser.add_argument("--again", action="store_true", help="make the meshes of --keep again, from the same trainings")
    parser.add_argument("--write", action="store_true", help="write the table into docs/splats.md")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of the training")
    chosen = parser.parse_args()
    if chosen.again and chosen.keep is None:
        parser.error("--again makes the meshes of kept trainings again: give their folder with --keep")
    torch.set_num_threads(1)
    lines = [HEAD]
    missed: list[str] = []
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name in chosen.only:
            folder = (chosen.keep or Path(temporary)) / name
            if chosen.again:
                forget_meshes(folder)
            row, short = row_of(name, folder, chosen.flags)
            print(row, flush=True)
            lines.append(row)
            missed += short
    print("\n" + ("\n".join(missed) or "all targets are met"))
    if chosen.write:
        write_table(lines)


if __name__ == "__main__":
    main()
