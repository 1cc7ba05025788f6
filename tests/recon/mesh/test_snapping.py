import numpy as np
import pytest

from fieldwatch.recon.mesh import MeshError, OrientedPoints, snapped
from fieldwatch.recon.mesh.quality import aspect_ratios


def on_sphere(count, radius=1.0):
    places = np.random.default_rng(0).normal(size=(count, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    green = np.tile(np.array([0, 255, 0], np.uint8), (count, 1))
    return OrientedPoints(points=radius * places, normals=places, colors=green)


def test_vertices_come_onto_the_points(forms):
    mesh = snapped(forms.icosphere(), on_sphere(200_000, 1.05), farthest=0.2)
    assert np.linalg.norm(mesh.vertices, axis=1) == pytest.approx(np.full(642, 1.05))
    assert mesh.colors is not None
    assert (mesh.colors == [0, 255, 0]).all()
    assert (mesh.closed, mesh.outward) == (True, True)


def test_what_is_too_far_stays(forms):
    ball = forms.icosphere()
    assert (snapped(ball, on_sphere(10_000, 2.0), farthest=0.1).vertices == ball.vertices).all()


def test_few_points_collapse_and_turn_no_face(forms):
    ball = forms.icosphere(4)
    mesh = snapped(ball, on_sphere(500), farthest=1.0)
    assert (mesh.closed, mesh.outward, len(mesh.welded().vertices)) == (True, True, len(ball.vertices))
    assert np.einsum("ij,ij->i", mesh.normals, ball.normals).min() > 0.2
    assert aspect_ratios(mesh).min() > 0.1 * aspect_ratios(ball).min()
    assert (mesh.vertices != ball.vertices).any()


def test_no_points_move_nothing(forms):
    ball = forms.icosphere(1)
    none = OrientedPoints(points=np.empty((0, 3)), normals=np.empty((0, 3)))
    assert snapped(ball, none, farthest=1.0) is ball
    with pytest.raises(MeshError, match="at least 0 world units, got -1"):
        snapped(ball, none, farthest=-1.0)
