"""Quality of the splats pipeline: on the built-in scene, whose surface is known, and on a scene of photos.

    python benchmarks/splats_quality.py                                        # every regularizer, built-in scene
    python benchmarks/splats_quality.py --scene data/real/colmap_plush # preset cpu, exposure and surface terms

Each row is one run of `fieldwatch train splats` in a separate process. Distances are those of Gaussians with an opacity
above one half to the true surface, in world units (the built-in scene is 3.2 wide).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REGULARIZERS = ("none", "planar", "dn_consistency", "density", "sdf")
"""`none` first: the other rows are compared with it."""
WANTED_DB = 28.0
WANTED_RATIO = 2.0
PHOTOS = {
    "3DGS": ("-r", "none"),
    "3DGS, exposure": ("-r", "none", "--exposure"),
    "planar": (),
    "planar, exposure": ("--exposure",),
    "SuGaR (dn_consistency)": ("-r", "dn_consistency"),
}
"""Runs on a scene of photos, and their flags beside --preset cpu."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run: its last evaluation, and the duration of the command in seconds."""

    metrics: dict[str, float]
    seconds: float

    def cell(self, tag: str, digits: int = 2) -> str:
        """Format a value for a table; a dash if it was not measured."""
        return f"{self.metrics[tag]:.{digits}f}" if tag in self.metrics else "-"


def trained(*flags: str) -> Result:
    """Run the command.

    Raises:
        SystemExit: the command failed; the message contains its stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "splats", "--out", f"{folder}/run", "--turntable", "0", "--json", *flags]
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "fieldwatch", *words], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"fieldwatch {' '.join(words)} exited with {done.returncode}:\n{done.stderr}")
        return Result(metrics=json.loads(done.stdout)["metrics"], seconds=time.monotonic() - began)


def built_in(regularizers: list[str], flags: list[str]) -> None:
    """Print a row for every regularizer, with the distance to the surface compared with the run without any."""
    print(
        f"Built-in scene, default preset; goals: {WANTED_DB:.0f} dB, and half the mean distance of the run without "
        "regularization (none).\n"
    )
    print("| -r | held out, dB | SSIM | mean distance | median | improvement over none | Gaussians, k | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    plain = 0.0
    for name in regularizers:
        result = trained("-r", name, *flags)
        own = result.metrics["Surface/mean_distance"]
        plain = own if name == "none" else plain
        ratio = f"{plain / own:.2f}x" if plain else "-"
        cells = [result.cell("Test/psnr"), result.cell("Test/ssim", 4), result.cell("Surface/mean_distance", 4)]
        cells += [result.cell("Surface/median_distance", 4), ratio, result.cell("Test/num_gaussians_K", 1)]
        print(f"| {name} | {' | '.join(cells)} | {result.seconds:.0f} |", flush=True)


def photographed(scene: Path, flags: list[str]) -> None:
    """Print rows with and without exposure compensation, and with and without surface terms of both kinds."""
    print(f"{scene.name}, preset cpu; goals: 29.5 dB and SSIM 0.93 without exposure compensation, 30.5 dB with it.\n")
    print(
        "With exposure compensation, a held-out photo is rendered with the mean color transform of the training photos "
        "before and after it, which does not use the photo itself. The other columns are without a transform, and with "
        "a transform that is fitted to the photo and cross-validated by tiles.\n"
    )
    print("| | held out, dB | SSIM | no transform, dB | fitted, dB | SSIM | train, dB | Gaussians, k | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for label, own in PHOTOS.items():
        result = trained("--data", str(scene), "--preset", "cpu", *own, *flags)
        cells = [result.cell("Test/psnr"), result.cell("Test/ssim", 4), result.cell("Test/psnr_as_drawn")]
        cells += [result.cell("Test/psnr_fitted"), result.cell("Test/ssim_fitted", 4), result.cell("Test/train_psnr")]
        cells.append(result.cell("Test/num_gaussians_K", 1))
        print(f"| {label} | {' | '.join(cells)} | {result.seconds:.0f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", type=Path, help="folder of a COLMAP scene; by default the built-in scene")
    parser.add_argument("--regularizers", nargs="+", choices=REGULARIZERS, default=list(REGULARIZERS))
    parser.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="further flags of every run; must come last"
    )
    options = parser.parse_args()
    if options.scene:
        photographed(options.scene, options.flags)
    else:
        built_in(sorted(options.regularizers, key=REGULARIZERS.index), options.flags)


if __name__ == "__main__":
    main()
