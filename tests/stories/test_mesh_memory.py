"""The memory that an extraction may take: kept, with the same mesh, or refused with what would fit."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.spatial import cKDTree

from fieldwatch.recon.mesh import read_mesh
from fieldwatch.recon.pipelines.splats import Gaussians, SplatModel, SplatsConfig, prepare_scene
from fieldwatch.recon.pipelines.splats.start import start_run

ROOT = Path(__file__).parents[2]
CONFIG = SplatsConfig(views=3, held_out=0, device="cpu", schedule_scale=0.001)
FUSION = "--method tsdf --resolution 288 --points 2000 --no-background --no-pictures".split()
WHOLE = ("--triangles", 10**8)  # more than there are: the fused surface itself
POISSON = "--points 20000 --triangles 20000 --no-background --no-pictures".split()
CELL = 3.2 / 288  # of the fusion's grid
MEBI = 1 << 20
GIBI = 1 << 30


@pytest.fixture(scope="module")
def opaque(tmp_path_factory):
    """A run with opaque Gaussians on the points of the built-in scene."""
    folder = tmp_path_factory.mktemp("bounded") / "run"
    scene = prepare_scene(CONFIG)
    gaussians = Gaussians.from_points(scene.photos.points, scene.photos.colors, degree=1, opacity=0.9)
    with start_run(CONFIG, scene, folder, sinks=()) as run:
        run.track(**SplatModel(gaussians, scene.background).checkpoint_items())
        run.resume()
        for _ in run.steps(1):
            run.save_after_step({"psnr": 1.0})
    return folder


AND_TELL = """
import sys
from fieldwatch.cli.entry import main

code = main(sys.argv[1:])
with open("/proc/self/status") as status:
    print("VmHWM:", next(line.split()[1] for line in status if line.startswith("VmHWM")))
sys.exit(code)
"""
"""The command, and at its end what it took at most. Who started it would see its own memory in that, until exec."""


def extracted(run, out, *words):
    """Exit code, the most memory that the process had (bytes), and its messages."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    command = [sys.executable, "-c", AND_TELL, "mesh", "extract", run, "--out", out, *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, check=False)
    peak = re.search(r"VmHWM: (\d+)", done.stdout)
    assert peak is not None, done.stderr
    return done.returncode, 1024 * int(peak[1]), " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def free(opaque, tmp_path_factory):
    """Where an extraction without a bound put its mesh, and the memory that it took."""
    out = tmp_path_factory.mktemp("free") / "free"
    code, peak, said = extracted(opaque, out, *FUSION, *WHOLE)
    assert code == 0, said
    return out, peak


def test_memory_stays_below_the_bound_and_the_mesh_is_the_same(opaque, free, tmp_path):
    out, unbounded = free
    bound = round(0.88 * unbounded / GIBI, 2)
    code, peak, said = extracted(opaque, tmp_path / "bound", *FUSION, *WHOLE, "--memory", bound)
    assert code == 0, said
    assert peak <= bound * GIBI, f"{peak / MEBI:.0f} MiB were taken, allowed were {bound * 1024:.0f}"
    one, other = (read_mesh(folder / "tsdf.ply") for folder in (out, tmp_path / "bound"))
    assert len(one.faces) == len(other.faces) > 200_000
    assert len(one.vertices) == len(other.vertices)
    distances, _ = cKDTree(one.vertices).query(other.vertices)
    assert distances.max() < 1e-9 * CELL  # rays rendered in other pieces round otherwise, nothing else


def test_decimation_stays_below_the_bound_too(opaque, free, tmp_path):
    bound = round(0.88 * free[1] / GIBI, 2)
    code, peak, said = extracted(opaque, tmp_path / "bound", *FUSION, "--triangles", 20_000, "--memory", bound)
    assert code == 0, said
    assert peak <= bound * GIBI, f"{peak / MEBI:.0f} MiB were taken, allowed were {bound * 1024:.0f}"
    assert 19_000 < len(read_mesh(tmp_path / "bound" / "tsdf.ply").faces) <= 20_000


def test_grid_that_does_not_fit_is_refused_with_one_that_does(opaque, free, tmp_path):
    bound = round(0.8 * free[1] / GIBI, 2)
    code, peak, said = extracted(opaque, tmp_path / "refused", *POISSON, "--resolution", 512, "--memory", bound)
    assert code == 2
    assert not (tmp_path / "refused").exists()
    assert peak <= bound * GIBI
    told = re.search(r"at resolution 512 .* needs (\d+) MiB, the limit is (\d+) MiB: a resolution of (\d+) fits", said)
    assert told, said
    needed, allowed, fitting = map(int, told.groups())
    assert needed > allowed
    code, peak, said = extracted(opaque, tmp_path / "fits", *POISSON, "--resolution", fitting, "--memory", bound)
    assert code == 0, said
    assert peak <= bound * GIBI, f"{peak / MEBI:.0f} MiB were taken, allowed were {bound * 1024:.0f}"
    assert len(read_mesh(tmp_path / "fits" / "level0.3.ply").faces) > 5000
