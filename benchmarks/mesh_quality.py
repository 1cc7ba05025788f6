"""From photos to a textured mesh on the built-in scene: seconds and quality of each stage.

    python benchmarks/mesh_quality.py               # trains the scene first; about five minutes on two cores
    python benchmarks/mesh_quality.py --run RUN     # on a splats run of the built-in scene that is there

Each stage is a command in a process of its own, as in examples/photos_to_mesh.sh. Chamfer and F-scores are of what the
run's cameras see, against the exact surface of the scene; the diameter is the diagonal of its box (4.7 world units).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRIANGLES = 40_000
WANTED_CHAMFER = 1.0
WANTED_LOSS = 1.5
WANTED_SECONDS = 360.0


class Stages:
    """The commands that were run, with the seconds that each took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, title: str, *words: object) -> Any:
        """Run a command of fieldwatch and return what it answers as JSON.

        Raises:
            SystemExit: it failed; its own message says why.
        """
        began = time.monotonic()
        command = [sys.executable, "-m", "fieldwatch", *map(str, words), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"fieldwatch {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr}")
        self.seconds[title] = time.monotonic() - began
        return json.loads(done.stdout)


def measured(folder: Path, run: Path | None) -> None:
    """Run every stage and print what came of it."""
    stages = Stages()
    if run is None:
        run = folder / "run"
        stages.run("train splats", "train", "splats", "--out", run)
    coarse = stages.run("eval", "eval", run, "--checkpoint", "last", "--out", folder / "eval")["metrics"]["Test/psnr"]
    # The photos show the rim of the plate, which is not part of what the cameras go around.
    first = stages.run(
        "mesh extract", "mesh", "extract", run, "--triangles", TRIANGLES, "--background", "--out", folder
    )
    mesh = folder / "level0.3.ply"
    refined = stages.run("mesh refine", "mesh", "refine", run, mesh, "--preset", "short", "--out", folder / "refined")
    better = folder / "refined" / "products" / "refined_mesh.ply"
    textured = stages.run("mesh texture", "mesh", "texture", run, better, "--out", folder / "textured")
    quality = stages.run("mesh quality", "mesh", "quality", folder / "textured" / "refined_mesh.obj", "--open")
    truth = ("--gt", "built-in", "--visible-from", run)
    before = stages.run("", "mesh", "evaluate", mesh, *truth, "--out", folder / "before")
    after = stages.run("mesh evaluate", "mesh", "evaluate", better, *truth, "--out", folder / "after")
    closing = ("--unseen", "close", "--no-pictures", "--out", folder / "closed")
    closed = stages.run("", "mesh", "extract", run, *closing)
    tell(
        [
            ("triangles", f"{first['quality']['level0.3']['n_faces']:,}"),
            ("Chamfer, extracted", percent(before)),
            ("Chamfer, refined", f"{percent(after)} (goal: below {WANTED_CHAMFER:.0f} %)"),
            ("F-score within 1 % of the diameter, refined", f"{f_score(after):.2%}"),
            ("held-out PSNR, coarse Gaussians", f"{coarse:.2f} dB"),
            (
                "held-out PSNR, bound Gaussians",
                f"{refined['metrics']['Test/psnr']:.2f} dB (goal: {coarse - WANTED_LOSS:.2f})",
            ),
            ("held-out PSNR, textured mesh, inside its silhouette", f"{textured['held_out_psnr']:.2f} dB"),
            ("visible texels", f"{textured['seen']:.1%}"),
            ("grade of the open mesh", f"{quality['grade']['word']} ({quality['grade']['score']:.0f})"),
            (
                "watertight with --unseen close",
                str(closed["quality"]["level0.3"]["is_watertight"]).lower(),
            ),
        ],
        {title: seconds for title, seconds in stages.seconds.items() if title and title != "eval"},
    )


def percent(evaluation: Any) -> str:
    """The Chamfer distance, in shares of the truth's diameter."""
    return f"{evaluation['chamfer_percent']:.3f} % of the diameter"


def f_score(evaluation: Any) -> float:
    """The F-score at the second of the usual thresholds."""
    return float(evaluation["scores"][1]["f_score"])


def tell(rows: Sequence[tuple[str, str]], seconds: dict[str, float]) -> None:
    """Print the two tables."""
    print("| measure | |\n|---|---:|")
    for name, value in rows:
        print(f"| {name} | {value} |")
    print("\n| command | seconds |\n|---|---:|")
    for name, took in seconds.items():
        print(f"| {name} | {took:.0f} |")
    print(f"| total (goal: below {WANTED_SECONDS:.0f}) | {sum(seconds.values()):.0f} |")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a splats run of the built-in scene")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured(Path(folder), chosen.run)


if __name__ == "__main__":
    main()
