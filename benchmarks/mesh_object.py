"""What `mesh extract` makes of a scene without flags: the object, and nothing that no photo shows.

    python benchmarks/mesh_object.py                          # all scenes; several minutes on one core
    python benchmarks/mesh_object.py --only room exposure
    python benchmarks/mesh_object.py --keep FOLDER            # keep scenes, runs and meshes; train only what is missing
    python benchmarks/mesh_object.py --code OTHER/src         # extract with the package of another checkout
    python benchmarks/mesh_object.py --flags --background     # further flags of `mesh extract`

Scenes and trainings are those of six_scenes.py (preset, 450 steps, 96 px), whose surfaces are known exactly. Constants
may be chosen on `turntable`; the others are reported. Lengths are in percent of the diameter of the object, or room:

accuracy      mean distance of the mesh, sampled by area, from the true surface
completeness  mean distance of the true surface of the object from the mesh, where training photos show it
Chamfer       the mean of both
within 1 %    fraction of the mesh's area that is nearer to the true surface than this
on the object fraction of the triangles that are on the object
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldwatch.recon.data import unit_sphere_of
from fieldwatch.recon.data.solids.scene import ON_A_PLATE
from fieldwatch.recon.geometry import transform_points
from fieldwatch.recon.mesh import Triangles, read_mesh
from fieldwatch.recon.mesh.closest import SurfaceSearch
from fieldwatch.recon.mesh.sampling import sample_surface
from scene_kinds import KINDS, ROOM, SPOT, TRUTH, WALLS, Blocks
from six_scenes import SCALE, SHORT, photos_of, trained

SAMPLES = 100_000
Distance = Callable[[np.ndarray], np.ndarray]
"""Function from points to their distance from a true surface."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """True surface of a scene: the distance from all of it, which points are on the object, and its diameter."""

    distance: Callable[[], Distance]
    on_object: Callable[[np.ndarray], np.ndarray]
    diameter: float


def of_solids(seed: int, specs: Sequence[Any]) -> Distance:
    """Return the distance from the surface of solids."""
    scene = Blocks(seed, specs)
    return lambda points: np.abs(scene.distance(torch.from_numpy(points)).numpy())


def of_spot() -> Distance:
    """Return the distance from the mesh of the turntable."""
    mesh = read_mesh(SPOT)
    upright = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    turned = torch.from_numpy(np.asarray(mesh.vertices)).double() @ upright.T
    vertices = transform_points(torch.linalg.inv(unit_sphere_of(turned)), turned).numpy()
    search = SurfaceSearch(Triangles(vertices=vertices, faces=np.asarray(mesh.faces, np.int64)))
    return lambda points: search.closest(points).distances


def everywhere(points: np.ndarray) -> np.ndarray:
    """Return that all points are on the object."""
    return np.ones(len(points), bool)


def on_plate(points: np.ndarray) -> np.ndarray:
    """Return the points on the plate and what stands on it."""
    return (np.linalg.norm(points[:, :2], axis=1) < 1.62) & (points[:, 2] > -0.2)


TRUTHS = {
    "turntable": Truth(distance=of_spot, on_object=everywhere, diameter=2.0),
    "renders": Truth(distance=of_spot, on_object=everywhere, diameter=2.0),
    "exposure": Truth(distance=lambda: of_solids(2, (*ON_A_PLATE, *WALLS)), on_object=on_plate, diameter=3.2),
    "room": Truth(distance=lambda: of_solids(1, ROOM), on_object=everywhere, diameter=8.9),
}


def extracted(run: Path, out: Path, code: Path | None, words: Sequence[str]) -> tuple[Triangles, dict[str, Any]]:
    """Extract a mesh by the command; return it and what the command printed.

    Raises:
        SystemExit: it failed; its own message says why.
    """
    command = [sys.executable, "-m", "fieldwatch", "mesh", "extract", str(run), "--out", str(out), "--no-pictures"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({} if code is None else {"PYTHONPATH": str(code.resolve())})
    done = subprocess.run([*command, *words, "--json"], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    told = json.loads(done.stdout)
    return read_mesh(out / "level0.3.ply"), told


def row_of(name: str, folder: Path, code: Path | None, words: Sequence[str]) -> tuple[str, list[str]]:
    """Train, extract and measure a scene; return its row, and the notes of the extraction."""
    kind, truth = KINDS[name], TRUTHS[name]
    data = folder / name
    if not data.exists() and kind.make is not None:
        kind.make(data)
    run = folder / f"{name}-preset"
    common = ("--preset", "default", "--device", "cpu", "--schedule-scale", SCALE, "--held-out", str(kind.held_out))
    trained(data, run, (*common, *SHORT, "--longer-side", str(kind.longer_side)))
    mesh, told = extracted(run, folder / f"{name}-mesh", code, words)
    photos = photos_of(data, kind)
    depths = np.load(data / TRUTH)["depth"]
    seen = [
        photos.cameras[i]
        .to("cpu", torch.float64)
        .unproject(torch.from_numpy(depths[i]).double())[torch.from_numpy(depths[i]) > 0]
        for i in photos.train
    ]
    real = torch.cat(seen).numpy()
    real = real[truth.on_object(real)]
    real = real[:: max(len(real) // SAMPLES, 1)]
    sampled = sample_surface(mesh, SAMPLES).points
    to_truth = truth.distance()(sampled) / truth.diameter
    to_mesh = SurfaceSearch(mesh).closest(real).distances / truth.diameter
    on_object = float(truth.on_object(mesh.corners.mean(1)).mean())
    accuracy, completeness = float(to_truth.mean()), float(to_mesh.mean())
    figures = (accuracy, completeness, (accuracy + completeness) / 2, float((to_truth < 0.01).mean()), on_object)
    label = f"{name} (tuning)" if name == "turntable" else name
    cells = " | ".join(f"{100 * value:.2f} %" for value in figures)
    return f"| {label} | {cells} | {len(mesh.faces):,} | {mesh.pieces.max() + 1} |", told["notes"]


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(TRUTHS), default=tuple(TRUTHS))
    parser.add_argument("--keep", type=Path, help="folder for scenes, runs and meshes; by default a temporary one")
    parser.add_argument("--code", type=Path, help="src of another checkout, whose `mesh extract` is measured")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of `mesh extract`")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print("| scene | accuracy | completeness | Chamfer | within 1 % | on the object | triangles | pieces |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    told: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in chosen.only:
            row, notes = row_of(name, folder, chosen.code, chosen.flags)
            print(row, flush=True)
            told += [f"{name}: {note}" for note in notes]
    print("\n" + "\n".join(told))


if __name__ == "__main__":
    main()
