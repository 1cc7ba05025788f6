import importlib.util
import sys

import numpy as np
import pytest

from fieldwatch.recon.mesh import MeshError, OrientedPoints, open3d_poisson

SPHERE = np.random.default_rng(0).normal(size=(3_000, 3))
SPHERE /= np.linalg.norm(SPHERE, axis=1, keepdims=True)
POINTS = OrientedPoints(points=SPHERE, normals=SPHERE, colours=np.full((3_000, 3), 9, np.uint8))


@pytest.fixture
def fake(tmp_path):
    """An executable that is called as a Python would be: -c, program, points, mesh, depth."""

    def write(lines):
        path = tmp_path / "python"
        path.write_text("\n".join([f"#!{sys.executable}", "import os, sys, time", *lines]))
        path.chmod(0o755)
        return str(path)

    return write


def test_its_mesh_comes_back_with_colours_and_densities(fake):
    lines = [
        "import numpy as np",
        "assert os.environ['OMP_NUM_THREADS'] == '1' and sys.argv[5] == '6'",
        "points = np.load(sys.argv[3])['points']",
        "np.savez(sys.argv[4], vertices=points[:3], faces=np.array([[0, 1, 2]], np.int32))",
    ]
    surface = open3d_poisson(POINTS, depth=6, python=fake(lines))
    assert surface.mesh.vertices.tolist() == SPHERE[:3].tolist()
    assert surface.mesh.colours is not None
    assert (surface.mesh.colours.max(), surface.cell) == (9, pytest.approx(2.2 / 64, rel=0.01))
    counted = surface.density * 4 * np.pi / surface.cell**2
    assert 1_000 < counted.min() <= counted.max() < 9_000


def test_a_python_without_open3d_is_said(tmp_path):
    if importlib.util.find_spec("open3d") is not None:
        surface = open3d_poisson(POINTS, depth=5)
        assert surface.mesh.closed
    else:
        with pytest.raises(MeshError, match=r"Open3D.*No module named 'open3d'"):
            open3d_poisson(POINTS)


def test_no_python_there_is_said(tmp_path):
    with pytest.raises(MeshError, match="cannot be started"):
        open3d_poisson(POINTS, python=str(tmp_path / "absent"))


def test_a_crash_there_leaves_us_alive(fake):
    lines = ["sys.stderr.write('octree\\n')", "sys.stderr.flush()", "os.kill(os.getpid(), 11)"]
    with pytest.raises(MeshError, match=r"SIGSEGV.*octree"):
        open3d_poisson(POINTS, python=fake(lines))


def test_a_failure_there_is_told(fake):
    with pytest.raises(MeshError, match=r"failed with status 1; it wrote: [\s\S]*no convergence"):
        open3d_poisson(POINTS, python=fake(["raise RuntimeError('no convergence')"]))


def test_a_time_out_ends_it(fake):
    with pytest.raises(MeshError, match=r"was stopped after 0.5 s"):
        open3d_poisson(POINTS, python=fake(["time.sleep(60)"]), timeout=0.5)


def test_no_mesh_is_told(fake):
    with pytest.raises(MeshError, match="left no mesh"):
        open3d_poisson(POINTS, python=fake([]))


def test_no_points_and_no_depth_are_refused_here():
    with pytest.raises(MeshError, match=r"16 points or more.* 0"):
        open3d_poisson(POINTS.chosen(np.zeros(3_000, np.bool_)))
    with pytest.raises(MeshError, match="depth 1 to 16"):
        open3d_poisson(POINTS, depth=40)
