"""Cameras found by `fieldwatch data photos`, compared with known ones.

    python benchmarks/capture_cameras.py                            # both; about twenty minutes on one core
    python benchmarks/capture_cameras.py --only photos --scene FOLDER
    python benchmarks/capture_cameras.py --only film

photos: the photos of a COLMAP folder without its cameras. Printed are the photos that were registered, the reprojection
error, the processor time, and how far the cameras are from those of the folder. Then both cameras are trained on
for the same steps, and compared by the PSNR of the held-out photos.

film: a film of 240 frames along a path around a rendered scene, with motion blur and a drift of the exposure, encoded
as H.264. The true cameras are known exactly.

Positions are compared after the similarity that fits them best (Umeyama 1991), and given in percent of the radius of
the camera path; rotations in degrees.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data import write_video
from fieldwatch.recon.data.colmap import read_colmap_model
from fieldwatch.recon.geometry import Camera, align_points, look_at
from fieldwatch.recon.mesh import MeshRenderer, Triangles

ROOT = Path(__file__).resolve().parent.parent
SIZE, FOCAL = (640, 360), 520.0
FRAMES, CHOSEN, RATE = 240, 48, 30.0
BLUR = 5  # rendered instants per frame; the shutter is open for half of the time
TRAINING = ("--preset", "cpu", "--longer-side", "160", "--schedule-scale", "0.02", "--turntable", "0.1")


@dataclass(frozen=True, kw_only=True)
class PoseErrors:
    """Differences of poses after alignment.

    Attributes:
        rotation: degrees, one per camera.
        position: percent of the radius of the camera path, one per camera.
    """

    rotation: Float[Tensor, " cameras"]
    position: Float[Tensor, " cameras"]

    @property
    def summary(self) -> str:
        """Median and maximum."""
        return (
            f"rotation {float(self.rotation.median()):.3f} degrees (at most {float(self.rotation.max()):.3f}), "
            f"position {float(self.position.median()):.3f} % (at most {float(self.position.max()):.3f})"
        )


def pose_errors(found: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> PoseErrors:
    """Compare poses by name after the best similarity between their positions."""
    names = sorted(set(found) & set(truth))
    ours = torch.stack([found[name] for name in names]).double()
    theirs = torch.stack([truth[name] for name in names]).double()
    aligned = align_points(ours[:, :3, 3], theirs[:, :3, 3]).apply_to_pose(ours)
    turn = aligned[:, :3, :3].transpose(1, 2) @ theirs[:, :3, :3]
    cosine = ((turn.diagonal(dim1=1, dim2=2).sum(-1) - 1) / 2).clamp(-1, 1)
    positions = theirs[:, :3, 3]
    radius = (positions - positions.mean(0)).norm(dim=-1).median()
    return PoseErrors(
        rotation=torch.rad2deg(torch.arccos(cosine)),
        position=100 * (aligned[:, :3, 3] - positions).norm(dim=-1) / radius,
    )


def run(*words: object) -> tuple[Any, float]:
    """Run a command of fieldwatch, and return its JSON and its processor time in seconds.

    Raises:
        SystemExit: it failed; its own message says why.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fieldwatch", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"fieldwatch {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(done.stdout), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def poses_of(scene: Path) -> dict[str, Tensor]:
    """Return the poses of a COLMAP folder by photo name without suffix."""
    model = read_colmap_model(scene / "sparse" / "0")
    return {Path(image.name).stem: image.world_from_camera for image in model.images}


def report(told: Any, seconds: float) -> None:
    """Print what a capture found."""
    print(
        f"  registered {told['registered']} of {told['photos']} ({told['mapper']} mapper), reprojection error "
        f"{told['reprojection_error']:.2f} pixels, {told['points']:,} points"
    )
    print(f"  focal length {told['cameras'][0]['parameters'][0]:.1f} pixels; {seconds:.0f} s of processor time")


def from_photos(scene: Path, room: Path) -> None:
    """Find the cameras of a COLMAP folder's photos again, and train on both."""
    found = room / "photos"
    told, seconds = run("data", "photos", scene / "images", "-o", found, "--threads", "1")
    truth = read_colmap_model(scene / "sparse" / "0")
    print(f"photos of {scene.name} without their cameras")
    report(told, seconds)
    focal = next(iter(truth.lenses.values())).fx
    print(f"  focal length in the folder {focal:.1f} pixels")
    print(f"  {pose_errors(poses_of(found), poses_of(scene)).summary}")
    for label, data in (("cameras of the folder", scene), ("cameras found", found)):
        out = room / f"run-{data.name}"
        trained, seconds = run("train", "splats", "--data", data, "--out", out, *TRAINING, "--threads", "1")
        psnr = trained["metrics"]["Test/psnr"]
        print(f"  trained on the {label}: {psnr:.2f} dB on held-out photos; {seconds:.0f} s of processor time")
    # Every eighth photo is held out: with a photo less, others are.
    if told["registered"] < told["photos"]:
        print("  not all photos are registered, so other photos were held out: these figures cannot be compared")


def textured_scene(seed: int = 0) -> Triangles:
    """Return a floor with four boxes on it, whose texture has detail at all scales."""
    generator = np.random.default_rng(seed)
    boxes = [((0.0, 0.0, -0.05), (3.0, 3.0, 0.05))]
    boxes += [
        ((0.5, 0.2, 0.4), (0.3, 0.4, 0.4)),
        ((-0.5, 0.5, 0.3), (0.35, 0.3, 0.3)),
        ((-0.3, -0.6, 0.5), (0.25, 0.25, 0.5)),
        ((0.5, -0.6, 0.2), (0.3, 0.2, 0.2)),
    ]
    quads, vertices, faces, uvs = 6 * len(boxes), [], [], []
    for center, half in boxes:
        for axis in range(3):
            for side in (-1.0, 1.0):
                place = len(vertices)
                corners = np.full((4, 3), side)
                first, second = [(axis + 1) % 3, (axis + 2) % 3][:: int(side)]
                corners[:, first], corners[:, second] = (-1, 1, 1, -1), (-1, -1, 1, 1)
                vertices += list(np.asarray(center) + corners * np.asarray(half))
                faces += [(place, place + 1, place + 2), (place, place + 2, place + 3)]
                number = place // 4
                low, high = (number + 0.02) / quads, (number + 0.98) / quads
                square = np.array([(0.0, low), (1.0, low), (1.0, high), (0.0, high)])
                uvs += [square[[0, 1, 2]], square[[0, 2, 3]]]
    return Triangles(
        vertices=np.array(vertices),
        faces=np.array(faces, np.int64),
        uvs=np.array(uvs),
        texture=np.concatenate([_noise(generator) for _ in range(quads)]),
    )


def _noise(generator: np.random.Generator, size: int = 256) -> np.ndarray:
    """Return a square of random spots, coarse to fine."""
    total = np.zeros((size, size, 3))
    for cells in (4, 16, 64, 128):
        spots = generator.uniform(-1, 1, (cells, cells, 3))
        total += np.kron(spots, np.ones((size // cells, size // cells, 1))) * cells**-0.2
    return (127.5 + 55 * total).clip(0, 255).astype(np.uint8)


def pose_at(moment: float) -> Float[Tensor, "4 4"]:
    """Return the pose on a hand-held path around the scene; 0 to 1 is one and a quarter rounds."""
    angle = 2.5 * math.pi * moment
    sway = 0.04 * math.sin(37 * moment) + 0.02 * math.sin(91 * moment + 1)
    position = (
        (2.3 + sway) * math.cos(angle),
        (2.3 - sway) * math.sin(angle),
        1.2 + 0.5 * math.sin(5 * moment) + 0.5 * sway,
    )
    return look_at(position, (0.1 * sway, 0.0, 0.3 + sway))


def camera_at(moment: float) -> Camera:
    """Return the camera at a moment of the path."""
    width, height = SIZE
    return Camera(
        name=f"{moment:.6f}", width=width, height=height, fx=FOCAL, fy=FOCAL, cx=width / 2, cy=height / 2,
        world_from_camera=pose_at(moment),
    )  # fmt: skip


def film_frames(renderer: MeshRenderer) -> Iterator[Tensor]:
    """Render the frames: motion blur as the mean of instants, and an exposure that drifts by a factor of 1.6."""
    for number in range(FRAMES):
        instants = [(number + 0.5 * (k / (BLUR - 1) - 0.5)) / FRAMES for k in range(BLUR)]
        pictures = [renderer.render(camera_at(moment), samples=1).astype(np.float32) for moment in instants]
        exposure = 1.0 + 0.25 * math.sin(2 * math.pi * number / 90)
        frame = (np.mean(pictures, axis=0) * exposure).round().clip(0, 255).astype(np.uint8)
        yield torch.from_numpy(frame).permute(2, 0, 1).contiguous()


def from_film(room: Path) -> None:
    """Find the cameras of a rendered film."""
    film = write_video(room / "film.mp4", film_frames(MeshRenderer(textured_scene())), rate=RATE, quality=23)
    found = room / "film"
    told, seconds = run("data", "photos", film, "-o", found, "--frames", CHOSEN, "--threads", "1")
    print(f"film of {FRAMES} frames, {SIZE[0]}x{SIZE[1]}, H.264, {film.stat().st_size / 2**20:.1f} MiB")
    report(told, seconds)
    print(f"  true focal length {FOCAL:.1f} pixels")
    poses = poses_of(found)
    truth = {name: pose_at(int(name.rpartition("_")[2]) / FRAMES) for name in poses}
    print(f"  {pose_errors(poses, truth).summary}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("photos", "film"))
    parser.add_argument("--scene", type=Path, default=ROOT / "data" / "real" / "colmap_plush")
    parser.add_argument("--room", type=Path, help="folder for the files, which stay; by default a temporary one")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        room = chosen.room or Path(temporary)
        room.mkdir(parents=True, exist_ok=True)
        if chosen.only != "film":
            from_photos(chosen.scene, room)
        if chosen.only != "photos":
            from_film(room)


if __name__ == "__main__":
    main()
