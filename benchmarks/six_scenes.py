"""Six kinds of scenes for splats: held-out PSNR of the mean and of the worst view, and Gaussians where no surface is.

    python benchmarks/six_scenes.py                           # all scenes, both recipes; about ten minutes of one core
    python benchmarks/six_scenes.py --only desk room --recipe preset
    python benchmarks/six_scenes.py --tuning                  # only the scenes that settings may be chosen on
    python benchmarks/six_scenes.py --keep FOLDER             # keep scenes and runs; train only what is missing
    python benchmarks/six_scenes.py --only desk --data PHOTOS # other photos with cameras in the place of the desk
    python benchmarks/six_scenes.py --flags --exposure        # further flags of `train splats`, for the preset

docs/decisions/0067-six-scenes.md is the protocol. `preset` is `train splats` with a preset, `plain` is 3DGS alone with
the same number of steps. Each run is a command in a process of its own; seconds are processor time.
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fieldwatch.recon.data import PhotoOptions, PhotoSet, read_colmap, read_transforms
from scene_kinds import KINDS, TRUTH, Kind
from stray_gaussians import Strays, strays

SCALE = "0.03"
PLAIN = (
    *("--preset", "full", "--device", "cpu", "--regularization", "none", "--no-antialiased", "--flatness-weight", "0"),
    *("--lr-iterations", "None", "--growth-until", "7500", "--reset-every", "0"),
    *("--growth-cap", "1000000", "--fill-points", "0", "--prune-floaters", "0", "--background", "black"),
)
"""3DGS alone: no surface terms, filters, resets, limit, added points or sweeps; densification during the first half."""
SHORT = (
    "--turntable",
    "0",
    "--threads",
    "1",
    "--seed",
    "0",
    "--checkpoint-interval",
    "0",
    "--test-iterations",
    "15000",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one training gave."""

    scene: str
    recipe: str
    mean: float
    worst: float
    worst_view: str
    gaussians: int
    seconds: float
    removed: int
    strays: Strays

    def line(self) -> str:
        """Return the row of the table."""
        found = self.strays
        shares = " | ".join(found.share(number) for number in (found.in_front, found.floating, found.veiling))
        scene = f"{self.scene} (tuning)" if KINDS[self.scene].tuning else self.scene
        return (
            f"| {scene} | {self.recipe} | {self.mean:.2f} dB | {self.worst:.2f} dB ({self.worst_view}) | "
            f"{self.gaussians:,} | {self.seconds:.0f} | {self.removed:,} | {shares} |"
        )


HEAD = """
| scene | recipe | held out, mean | worst view | Gaussians | seconds | removed | in front | floating | veiling |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"""


def trained(data: Path, out: Path, words: Sequence[str]) -> float:
    """Train, and return the seconds of processor time; a run that is there is kept, with the seconds it took.

    Raises:
        SystemExit: the command failed; the message contains its stderr.
    """
    took = out / "seconds.txt"
    if took.exists():
        return float(took.read_text())
    seconds = seconds_of("train", "splats", "--data", str(data), "--out", str(out), *words)
    took.write_text(str(seconds))
    return seconds


def seconds_of(*words: str) -> float:
    """Run a command of fieldwatch in one thread, and return its seconds of processor time.

    Raises:
        SystemExit: the command failed; the message contains its stderr.
    """
    command = [sys.executable, "-m", "fieldwatch", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def held_out_scores(run: Path) -> dict[str, float]:
    """Return the PSNR of each held-out photo at the last evaluation, as rendered if exposures were trained."""
    newest = max(run.glob("evaluations/step_*.csv"), key=lambda path: int(path.stem.removeprefix("step_")))
    with newest.open(encoding="utf-8", newline="") as file:
        return {row["name"]: float(row["psnr_as_drawn"] or row["psnr"]) for row in csv.DictReader(file)}


def floaters_removed(run: Path) -> int:
    """Return the number of Gaussians that the run removed as floaters."""
    events = (json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines())
    return sum(event.get("floaters", 0) for event in events)


def photos_of(data: Path, kind: Kind) -> PhotoSet:
    """Return the photos of a scene as the training sees them."""
    options = PhotoOptions(held_out=kind.held_out, longer_side=kind.longer_side)
    return (read_transforms if (data / "transforms.json").exists() else read_colmap)(data, options)


def measured(name: str, recipe: str, folder: Path, data: Path, words: Sequence[str]) -> Row:
    """Train one scene by one recipe."""
    kind = KINDS[name]
    out = folder / f"{name}-{recipe}"
    common = (*words, "--schedule-scale", SCALE, "--held-out", str(kind.held_out), *SHORT)
    common += ("--longer-side", str(kind.longer_side))
    seconds = trained(data, out, common)
    photos = photos_of(data, kind)
    truth = data / TRUTH
    depths = np.load(truth)["depth"][list(photos.train)] if truth.exists() else None
    cameras = [photos.cameras[i] for i in photos.train]
    ply = out / "products" / "point_cloud.ply"
    found = strays(ply, cameras, depths=depths, points=photos.points, antialiased="--no-antialiased" not in words)
    scores = held_out_scores(out)
    worst = min(scores, key=lambda photo: scores[photo])
    return Row(
        scene=name,
        recipe=recipe,
        mean=sum(scores.values()) / len(scores),
        worst=scores[worst],
        worst_view=Path(worst).stem,
        gaussians=found.total,
        seconds=seconds,
        removed=floaters_removed(out),
        strays=found,
    )


def main() -> None:
    """Read the command line, make the scenes and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(KINDS), help="some of the scenes")
    parser.add_argument("--tuning", action="store_true", help="only the scenes that settings may be chosen on")
    parser.add_argument("--recipe", choices=("preset", "plain"), help="one of the two recipes")
    parser.add_argument("--preset", default="default", help="preset of the recipe `preset`")
    parser.add_argument(
        "--data", type=Path, help="a folder of photos with cameras, in the place of the one --only scene"
    )
    parser.add_argument("--keep", type=Path, help="folder for scenes and runs; by default nothing is kept")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags for the recipe `preset`")
    chosen = parser.parse_args()
    names = chosen.only or [name for name, kind in KINDS.items() if kind.tuning or not chosen.tuning]
    if chosen.data is not None and len(names) != 1:
        parser.error("expected one scene in --only along with --data, got " + " ".join(names))
    recipes = {"preset": ("--preset", chosen.preset, *chosen.flags), "plain": PLAIN}
    print(HEAD)
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep or Path(scratch)
        for name in names:
            kind = KINDS[name]
            data = chosen.data or kind.data or folder / name
            if kind.make is not None and chosen.data is None and not data.exists():
                kind.make(data)
            for recipe, words in recipes.items():
                if chosen.recipe in (None, recipe):
                    print(measured(name, recipe, folder, data, words).line(), flush=True)


if __name__ == "__main__":
    main()
