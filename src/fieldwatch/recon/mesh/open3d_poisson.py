"""Open3D's Poisson reconstruction, in a process of its own: a crash there cannot take this one along."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from fieldwatch.files import read_npz
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.open3d_child import NO_OPEN3D
from fieldwatch.recon.mesh.point_queries import check_filled, sample_density, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.poisson import PoissonSurface, coloured
from fieldwatch.recon.mesh.triangles import Triangles

_CHILD = Path(__file__).with_name("open3d_child.py")
_CUBE_SCALE = 1.1  # of Open3D's cube about the longest side of the points' box
_MAX_SHOWN = 400  # characters of what the process wrote last
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_INSTEAD = "Use the built-in reconstruction instead"


def open3d_poisson(
    points: OrientedPoints, *, depth: int = 10, python: str | None = None, timeout: float = 1800.0
) -> PoissonSurface:
    """Return the surface that Open3D reconstructs from oriented points.

    Open3D is no dependency of ours: any Python that has it will do. It runs in a process of its own with one thread,
    because its reconstruction is known to crash with several (Open3D issues 6828 and 7229).

    Args:
        points: at least 16, with normals outward.
        depth: of its octree, 1 to 16: 2 ** depth cells along the longest side.
        python: the interpreter to run; this one, if None.
        timeout: in seconds.

    Raises:
        MeshError: too few points, a depth out of range, no such interpreter, Open3D is not installed there, it failed,
            crashed, took too long, or left no mesh.
    """
    check_filled(points, 16, "Poisson reconstruction")
    if not 1 <= depth <= 16 or not timeout > 0:
        raise MeshError(f"Open3D was asked for depth {depth} within {timeout} s: depth 1 to 16 and a time above 0")
    with tempfile.TemporaryDirectory(prefix="fieldwatch-open3d-") as folder:
        request = Path(folder) / "points.npz"
        answer = Path(folder) / "mesh.npz"
        np.savez(request, points=points.points, normals=points.normals)
        _run(
            [python or sys.executable, "-c", _CHILD.read_text(), str(request), str(answer), str(depth)], folder, timeout
        )
        mesh = _read(answer)
    tree = search_tree(points.points)
    density = sample_density(tree, mesh.vertices, np.ones(len(points)))
    cell = _CUBE_SCALE * float(np.ptp(points.points, axis=0).max()) / 2**depth
    return PoissonSurface(mesh=coloured(mesh, points), density=density * cell**2, cell=cell)


def _run(command: list[str], folder: str, timeout: float) -> None:
    """Run the process in an empty folder (so that nothing there shadows Open3D) and judge how it ended."""
    # One thread: Open3D's reconstruction crashes with several.
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    python = command[0]
    try:
        process = subprocess.run(  # noqa: S603 (our own script, the user's interpreter)
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MeshError(
            f"Open3D's reconstruction was stopped after {timeout:g} s: lower the depth, thin out the points or allow "
            "more time"
        ) from error
    except OSError as error:
        raise MeshError(f"the Python to run Open3D with cannot be started, {python}: {error}. {_INSTEAD}") from error
    message = process.stderr.strip()[-_MAX_SHOWN:] or "nothing"
    if process.returncode == NO_OPEN3D:
        raise MeshError(f"Open3D is not installed for {python}: {message}. Name a Python that has it. {_INSTEAD}")
    # A negative status is the number of the signal that ended the process.
    if process.returncode < 0:
        raise MeshError(
            f"Open3D crashed with {_signal_name(-process.returncode)}; its last words: {message}. Too little "
            "memory or an "
            f"error of its own: lower the depth. {_INSTEAD}"
        )
    if process.returncode:
        raise MeshError(f"Open3D's process failed with status {process.returncode}; it wrote: {message}. {_INSTEAD}")


def _signal_name(number: int) -> str:
    known = {item.value: item.name for item in signal.Signals}
    return known.get(number, f"signal {number}")


def _read(answer: Path) -> Triangles:
    if not answer.is_file():
        raise MeshError(f"Open3D's process ended without an error but left no mesh. {_INSTEAD}")
    found = read_npz(answer)
    return Triangles(vertices=found["vertices"].astype(np.float64), faces=found["faces"].astype(np.int64))
