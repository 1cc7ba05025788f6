"""Inside and outside, and how a mesh fits the centers of Gaussians."""

import numpy as np
import pytest

from fieldwatch.recon.mesh import MeshError, Triangles, gaussian_fit
from fieldwatch.recon.mesh.inside import encloses, points_inside


def shifted(mesh, by):
    return Triangles(vertices=mesh.vertices + by, faces=mesh.faces)


def test_a_ball_and_a_cone_hold_what_their_formulas_say(forms):
    points = np.random.default_rng(0).uniform(-1.2, 1.2, (4000, 3))
    away = np.linalg.norm(points, axis=1)
    sure = (away < 0.99) | (away > 1)  # the ball's faces lie a little inside
    assert np.array_equal(points_inside(forms.icosphere(4), points)[sure], (away < 1)[sure])
    slope = (1 - points[:, 2] / 2) - np.hypot(points[:, 0], points[:, 1])
    sure = (slope < 0) | (slope > 0.01)
    found = points_inside(forms.cone(64, 2.0), points)
    assert np.array_equal(found[sure], ((slope > 0) & (points[:, 2] > 0))[sure])


def test_points_in_line_with_corners_and_edges(forms):
    ball = forms.icosphere(2)
    assert points_inside(ball, 0.9 * ball.vertices).all()
    assert not points_inside(ball, 1.1 * ball.vertices).any()
    assert points_inside(ball, np.zeros((1, 3))).all()


@pytest.mark.parametrize("turned", [False, True])
def test_overlapping_bodies_count_once_and_shells_are_hollow(forms, turned):
    ball = forms.icosphere(2)
    two = forms.joined(ball, shifted(ball, [0.5, 0, 0]))
    hollow = forms.joined(ball, forms.icosphere(2, 0.5).turned())
    points = np.array([[0.25, 0, 0], [-0.9, 0, 0], [1.4, 0, 0], [3, 0, 0], [0.7, 0, 0]])
    mesh = two.turned() if turned else two
    assert points_inside(mesh, points).tolist() == [True, True, True, False, True]
    assert points_inside(hollow.turned() if turned else hollow, points).tolist() == [False, True, False, False, True]


def test_flipped_faces_and_seams_change_nothing(forms):
    ball = forms.icosphere(2)
    points = np.random.default_rng(1).normal(size=(200, 3))
    wanted = points_inside(ball, points)
    which = np.zeros(len(ball.faces), np.bool_)
    which[::7] = True
    assert np.array_equal(points_inside(ball.turned(which), points), wanted)
    assert np.array_equal(points_inside(forms.torn(ball), points), wanted)


def test_an_open_mesh_has_no_inside(forms):
    assert not encloses(forms.patch())
    assert encloses(forms.torn(forms.icosphere(1)))
    with pytest.raises(MeshError, match="20 edges"):
        points_inside(forms.patch(), np.zeros((1, 3)))


def test_the_fit_of_gaussians_to_a_ball(forms):
    directions = np.random.default_rng(0).normal(size=(100, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    centers = np.concatenate([0.5 * directions[:75], 1.5 * directions[75:]])
    found = gaussian_fit(forms.icosphere(5), centers)
    assert found["Mesh/GaussianFit/coverage"] == 0.75
    assert found["Mesh/GaussianFit/avg_distance"] == pytest.approx(0.5, abs=1e-3)
    assert found["Mesh/GaussianFit/max_distance"] == pytest.approx(0.5, abs=1e-3)


def test_an_open_mesh_has_distances_but_no_coverage(forms):
    found = gaussian_fit(forms.patch(5), np.array([[2.5, 2.5, 1], [2.5, 2.5, -3]]))
    assert found == {
        "Mesh/GaussianFit/coverage": None,
        "Mesh/GaussianFit/avg_distance": 2,
        "Mesh/GaussianFit/max_distance": 3,
    }


def test_no_gaussians_have_no_fit(forms):
    with pytest.raises(MeshError, match="least one Gaussian"):
        gaussian_fit(forms.cone(), np.zeros((0, 3)))
