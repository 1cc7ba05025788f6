"""Quality of the normals pipeline: built-in object, a mesh rendered to normal maps, and estimated poses.

    python benchmarks/normals_quality.py                       # the built-in object
    python benchmarks/normals_quality.py --mesh MESH.obj       # 20 views of 256 pixels, smooth and flat normals
    python benchmarks/normals_quality.py --mesh MESH.obj --poses   # poses with noise, and a ring that knows none
    python benchmarks/normals_quality.py --objects jug vase        # generated objects that no setting was chosen on

Each row runs `fieldwatch data render-normals` and `fieldwatch train normals` in separate processes. MAE is the mean
angle between rendered and observed normals over the visible pixels of the masks, in degrees. Chamfer is the mean of
both directions, in percent of the diagonal of the true mesh's box. Poses are compared after alignment by a similarity.
Grooves and pits are the depth of those of the vase in the mesh, as a fraction of the true depth. CPU is the processor
time of the training command with its evaluation.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwatch.recon.mesh import Triangles, read_mesh
from normals_objects import relief_kept, write_object

RING_ELEVATION = ("--elevations", "20")
"""Ring of cameras for ring initialization; PMNI's ring begins at this angle."""
RING_START = ("--pose-start", "ring", "--ring-angle", "25")
"""A ring that is 5 degrees higher than the true one, with a radius from masks and lenses. The order of the views is
known, so this is no search for unknown poses."""
KNOWN = ("--pose-start", "dataset")
"""What remains is the effect of smooth normals, which do not fit the surface in the masks, on the poses."""
NOISE = ("--pose-start", "noisy", "--rotation-noise", "5", "--translation-noise", "0.1")


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run.

    Attributes:
        metrics: its last evaluation.
        first: its initial values.
        seconds: duration of the command.
        cpu_seconds: processor time of the command.
        mesh: its mesh.
    """

    metrics: dict[str, float]
    first: dict[str, float]
    seconds: float
    cpu_seconds: float
    mesh: Triangles

    def cell(self, tag: str, digits: int = 2, *, at_start: bool = False) -> str:
        """Format a value for a table; a dash if it was not measured."""
        values = self.first if at_start else self.metrics
        return f"{values[tag]:.{digits}f}" if tag in values else "-"


def command(*words: str) -> dict[str, object]:
    """Run a fieldwatch command, and return its JSON output.

    Raises:
        SystemExit: the command failed; the message contains its stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", "fieldwatch", *words, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"fieldwatch {' '.join(words)} exited with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def trained(*flags: str) -> Result:
    """Train to the end."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        cpu_before = children_cpu()
        said = command("train", "normals", "--out", f"{folder}/run", *flags)
        seconds = time.monotonic() - began
        cpu_seconds = children_cpu() - cpu_before
        mesh = read_mesh(Path(folder) / "run" / "products" / "mesh.ply")
        timeline = json.loads((Path(folder) / "run" / "poses" / "timeline.json").read_text())
    entries = timeline["entries"] if isinstance(timeline, dict) else timeline
    first: dict[str, Any] = {name: value for name, value in entries[0].items() if isinstance(value, int | float)}
    metrics: Any = said["metrics"]
    return Result(metrics=metrics, first=first, seconds=seconds, cpu_seconds=cpu_seconds, mesh=mesh)


def children_cpu() -> float:
    """Return the processor time of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_row(label: str, result: Result) -> None:
    """Format one row of the table of surfaces."""
    cells = [result.cell("Eval/mae"), result.cell("Eval/median_error"), result.cell("Eval/chamfer_percent", 4)]
    cells += [result.cell("Eval/missed", 4), result.cell("Eval/iou", 4), result.cell("Eval/watertight", 0)]
    cells.append(result.cell("Eval/mesh_vertices", 0))
    print(f"| {label} | {' | '.join(cells)} | {result.seconds:.0f} |", flush=True)


def surfaces(sets: dict[str, tuple[str, ...]]) -> None:
    """Print the quality of the surface with known poses."""
    print("| | MAE, degrees | median | Chamfer, % | missed | IoU | watertight | vertices | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for label, flags in sets.items():
        print_row(label, trained(*flags))


def objects(names: list[str], flags: list[str], folder: Path) -> None:
    """Print the quality of the surfaces of generated objects."""
    print("| object | MAE, degrees | median | Chamfer, % | missed | grooves | pits | CPU, s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in names:
        data = write_object(name, folder / name)
        result = trained("--data", str(data), "--preset", "cpu", "--turntable", "0", *flags)
        cells = [result.cell("Eval/mae"), result.cell("Eval/median_error"), result.cell("Eval/chamfer_percent", 4)]
        cells.append(result.cell("Eval/missed", 4))
        cells += [f"{kept:.3f}" for kept in relief_kept(result.mesh)] if name == "vase" else ["-", "-"]
        print(f"| {name} | {' | '.join(cells)} | {result.cpu_seconds:.0f} |", flush=True)


def guessed(mesh: Path, flags: list[str], folder: Path) -> None:
    """Print the pose errors at the start and at the end."""
    around = folder / "around"
    ring = folder / "ring"
    flat = folder / "flat"
    command("data", "render-normals", str(mesh), "--out", str(around))
    command("data", "render-normals", str(mesh), "--out", str(ring), *RING_ELEVATION)
    command("data", "render-normals", str(mesh), "--out", str(flat), *RING_ELEVATION, "--shading", "flat")
    starts = {
        "with noise": (around, NOISE),
        "a ring": (ring, RING_START),
        "a ring, flat normals": (flat, RING_START),
        "true poses, optimized": (ring, KNOWN),
    }
    print("| poses | rotation at the start | at the end | position at the start | at the end | MAE | Chamfer, % | s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for label, (data, start) in starts.items():
        result = trained("--data", str(data), "--preset", "poses", *start, *flags)
        cells = [result.cell("rotation_error", at_start=True), result.cell("Eval/pose_rotation", 3)]
        cells += [result.cell("position_error", 4, at_start=True), result.cell("Eval/pose_position", 4)]
        cells += [result.cell("Eval/mae"), result.cell("Eval/chamfer_percent", 4)]
        print(f"| {label} | {' | '.join(cells)} | {result.seconds:.0f} |", flush=True)


def main() -> None:
    """Print the selected table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", type=Path, help="a closed mesh; by default the built-in object")
    parser.add_argument("--objects", nargs="+", choices=("jug", "vase"), help="generated objects instead of a mesh")
    parser.add_argument("--poses", action="store_true", help="estimated poses instead of known ones")
    parser.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="further flags of every run; must come last"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if options.objects:
            objects(options.objects, options.flags, folder)
        elif options.mesh is None:
            surfaces({"built-in object": tuple(options.flags)})
        elif options.poses:
            guessed(options.mesh, options.flags, folder)
        else:
            sets: dict[str, tuple[str, ...]] = {}
            for shading in ("smooth", "flat"):
                data = folder / shading
                command("data", "render-normals", str(options.mesh), "--out", str(data), "--shading", shading)
                sets[f"{shading} normals"] = ("--data", str(data), "--preset", "cpu", *options.flags)
            surfaces(sets)


if __name__ == "__main__":
    main()
