"""Check the writers: every format is written by fieldwatch and read by other implementations.

    cp -r scripts/splat_formats /tmp/others && npm --prefix /tmp/others ci --ignore-scripts
    python -m venv /tmp/others/venv && /tmp/others/venv/bin/pip install gaussforge==0.6.0
    python scripts/splat_formats/read_back.py /tmp/others

Each line of the result is one file and one program: the largest differences of what that program reads (converted to
PLY by it) from what `read_gaussians` reads. It exits with 1 if one of them is above its bound. GaussForge keeps the
axes of .spz, so its result is turned by half a turn about x.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from fieldwatch.recon.data.gaussians import WRITABLE, GaussianCloud, read_gaussians, write_gaussians
from fieldwatch.recon.data.gaussians.quantization import half_turn_about_x

SCENE = Path(__file__).parents[2] / "tests/fixtures/splat_files/scene.ply"
TRANSFORM = "node_modules/@playcanvas/splat-transform/bin/cli.mjs"
BOUNDS = {"positions": 1e-4, "log scales": 2e-3, "rotations": 1.0, "opacity": 2e-3, "colors": 5e-3, "SH": 8e-3}
"""Bounds of the differences: world units, logarithms, degrees, and fractions of 1."""
CONVERT = """
import sys, gaussforge
source, kind, target = sys.argv[1:]
result = gaussforge.GaussForge().convert(open(source, "rb").read(), kind, "ply")
open(target, "wb").write(result["data"])
"""


def differences(one: GaussianCloud, other: GaussianCloud) -> dict[str, float]:
    """Return the largest difference of each quantity; the other program may have sorted."""
    rows = torch.cdist(one.means.double(), other.means.double()).argmin(1)
    turns = torch.nn.functional.normalize(one.quaternions.double(), dim=1)
    turns *= torch.nn.functional.normalize(other.quaternions[rows].double(), dim=1)
    functions = min(one.rest.shape[1], other.rest.shape[1])
    quantities = {
        "positions": one.means - other.means[rows],
        "log scales": one.log_scales - other.log_scales[rows],
        "rotations": (2 * turns.sum(1).abs().clamp_max(1).acos()).rad2deg(),
        "opacity": one.opacity_logits.sigmoid() - other.opacity_logits[rows].sigmoid(),
        "colors": one.constant - other.constant[rows],
        "SH": one.rest[:, :functions] - other.rest[rows, :functions],
    }
    return {name: float(values.abs().max()) if values.numel() else 0.0 for name, values in quantities.items()}


def turned(cloud: GaussianCloud) -> GaussianCloud:
    """Return Gaussians turned by half a turn about x."""
    arrays = half_turn_about_x(cloud.means.numpy(), cloud.quaternions.numpy(), cloud.rest.numpy())
    means, quaternions, rest = map(torch.from_numpy, arrays)
    return replace(cloud, means=means, quaternions=quaternions, rest=rest)


def main() -> int:
    """Run the check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("others", type=Path, help="folder with the other programs: node_modules and venv")
    others = parser.parse_args().others
    programs = {
        "splat-transform": lambda source, _kind, target: ["node", others / TRANSFORM, "-q", "-w", source, target],
        "gaussforge": lambda source, kind, target: [others / "venv/bin/python", "-c", CONVERT, source, kind, target],
    }
    cloud = read_gaussians(SCENE)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, suffix in WRITABLE.items():
            written = write_gaussians(Path(folder, f"scene{suffix}"), cloud, name)
            own = read_gaussians(written.path)
            for program, command in programs.items():
                target = Path(folder, f"{program}.ply")
                kind = "compressed.ply" if name == "compressed-ply" else name
                subprocess.run(command(written.path, kind, target), check=True, stdout=subprocess.DEVNULL)  # noqa: S603
                read = read_gaussians(target)
                if (program, name) == ("gaussforge", "spz"):
                    read = turned(read)
                found = differences(own, read)
                beyond = [quantity for quantity, value in found.items() if value > BOUNDS[quantity]]
                failures += bool(beyond)
                rounded = {quantity: float(f"{value:.2g}") for quantity, value in found.items()}
                print(json.dumps({"format": name, "read by": program, "beyond": beyond} | rounded))
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
