import numpy as np
import pytest
from scipy.spatial import cKDTree

from fieldwatch.recon.mesh import MeshError, implicit_surface
from fieldwatch.recon.mesh.marching import marching_cubes

LOW = np.full(3, -1.0)
HIGH = np.full(3, 1.0)
MIDDLE = np.array([0.1, 0.05, -0.02])


def ball(points):
    return np.linalg.norm(points - MIDDLE, axis=1) - 0.7


def ball_values(count, reach=1.0):
    ticks = np.linspace(-reach, reach, count)
    points = np.stack(np.meshgrid(ticks, ticks, ticks, indexing="ij"), axis=-1)
    return ball(points.reshape(-1, 3)).reshape(count, count, count).astype(np.float32)


def test_a_sphere_lies_where_it_is():
    mesh = marching_cubes(ball_values(65), low=LOW, cell=1 / 32)
    assert (mesh.closed, mesh.outward, len(mesh.edges.non_manifold)) == (True, True, 0)
    assert np.abs(ball(mesh.vertices)).max() < 0.01 / 32
    assert mesh.signed_volume == pytest.approx(4 / 3 * np.pi * 0.7**3, rel=2e-3)


def test_another_level_is_another_sphere():
    mesh = marching_cubes(ball_values(65), low=LOW, cell=1 / 32, level=-0.2)
    assert np.linalg.norm(mesh.vertices - MIDDLE, axis=1) == pytest.approx(np.full(len(mesh.vertices), 0.5), abs=1e-3)


def test_what_reaches_the_border_is_closed_there_or_left_open():
    values = ball_values(33, reach=0.5)
    closed = marching_cubes(values, low=np.full(3, -0.5), cell=1 / 32)
    assert (closed.closed, closed.outward) == (True, True)
    assert np.abs(closed.vertices).max() == pytest.approx(0.5, abs=1e-4)
    opened = marching_cubes(values, low=np.full(3, -0.5), cell=1 / 32, closed=False)
    assert len(opened.edges.boundary) > 0
    assert len(opened.faces) < len(closed.faces)


@pytest.mark.parametrize("rounded", [False, True])
def test_noise_with_exact_zeros_gives_a_closed_manifold_without_coincident_vertices(rounded):
    values = np.random.default_rng(0).normal(size=(40, 13, 15)).astype(np.float32)
    mesh = marching_cubes(np.rint(values) if rounded else values, low=LOW, cell=0.1)
    assert (mesh.closed, mesh.outward, len(mesh.edges.non_manifold)) == (True, True, 0)
    assert len(mesh.welded().vertices) == len(mesh.vertices)


@pytest.mark.parametrize("constant", [1.0, -1.0])
def test_values_on_one_side(constant):
    mesh = marching_cubes(np.full((5, 6, 7), constant, np.float32), low=LOW, cell=1.0, closed=False)
    assert len(mesh.faces) == 0


def test_what_cannot_be_sampled_is_refused():
    with pytest.raises(MeshError, match=r"two nodes.* shape \("):
        marching_cubes(np.zeros((1, 5, 5), np.float32), low=LOW, cell=1.0)
    with pytest.raises(MeshError, match="1 of 27 values"):
        values = np.zeros((3, 3, 3), np.float32)
        values[1, 1, 1] = np.nan
        marching_cubes(values, low=LOW, cell=1.0)


@pytest.mark.parametrize("block", [7, 16, 100])
def test_blocks_do_not_show(block):
    whole = implicit_surface(ball, LOW, HIGH, resolution=48, block=1000)
    calls = []
    mesh = implicit_surface(ball, LOW, HIGH, resolution=48, block=block, on_block=lambda *a: calls.append(a))
    assert (mesh.closed, mesh.outward, calls[-1][0]) == (True, True, calls[-1][1])
    assert len(mesh.faces) == len(whole.faces)
    assert len(mesh.vertices) == len(whole.vertices)
    assert cKDTree(whole.vertices).query(mesh.vertices)[0].max() < 1e-12


def test_a_block_is_all_that_is_asked_for_at_once():
    sizes = []
    implicit_surface(lambda p: sizes.append(len(p)) or ball(p), LOW, HIGH, resolution=64, block=16)
    assert max(sizes) == 17**3


def test_thin_parts_far_from_others_are_found():
    def two(points):
        return np.minimum(ball(points), np.linalg.norm(points - [-0.9, -0.9, -0.9], axis=1) - 0.03)

    assert implicit_surface(two, LOW, HIGH, resolution=64, block=16).pieces.max() == 1


def test_a_box_cuts_a_surface_closed():
    mesh = implicit_surface(ball, np.zeros(3), HIGH, resolution=32)
    assert (mesh.closed, mesh.outward) == (True, True)
    assert mesh.vertices.min() > -1e-3


def test_a_box_without_inside_is_refused():
    with pytest.raises(MeshError, match="greater than 0, got"):
        implicit_surface(ball, HIGH, LOW, resolution=10)
    with pytest.raises(MeshError, match="not finite at"):
        implicit_surface(lambda p: np.full(len(p), np.inf), LOW, HIGH, resolution=10)
