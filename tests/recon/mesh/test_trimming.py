import numpy as np
import pytest

from fieldwatch.recon.mesh import (
    MeshError,
    OrientedPoints,
    poisson_surface,
    trimmed,
    without_outliers,
    without_small_pieces,
)


def on_sphere(count):
    places = np.random.default_rng(0).normal(size=(count, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    return OrientedPoints(points=places, normals=places)


def test_far_points_go_and_near_ones_stay():
    sphere = on_sphere(2_000)
    far = np.array([[30.0, 0, 0], [0, 40, 0]])
    lonely = OrientedPoints(points=far, normals=np.tile([0.0, 0, 1], (2, 1)))
    kept = without_outliers(OrientedPoints.joined(sphere, lonely))
    assert kept.points.tolist() == sphere.points.tolist()


def test_few_points_are_all_kept():
    assert len(without_outliers(on_sphere(10))) == 10
    with pytest.raises(MeshError, match=r"greater than 0, got 0"):
        without_outliers(on_sphere(10), neighbors=0)


@pytest.mark.parametrize("count", [300, 30_000])
def test_an_object_sampled_all_over_stays_watertight(count):
    points = on_sphere(count)
    surface = poisson_surface(points, resolution=96)
    assert trimmed(surface, 0.1, support=points).closed


def test_half_a_sphere_opens_only_where_nothing_was_sampled():
    whole = on_sphere(40_000)
    points = whole.chosen(whole.points[:, 2] > 0)
    surface = poisson_surface(points, resolution=64)
    mesh = trimmed(surface, 0.5, support=points)
    rim = mesh.vertices[mesh.edges.ends[mesh.edges.boundary].reshape(-1)]
    assert len(rim) > 0
    assert rim[:, 2].max() < 2 * surface.cell
    assert mesh.vertices[:, 2].min() > -4 * surface.cell
    assert len(mesh.faces) < 0.8 * len(surface.mesh.faces)


def test_the_side_without_samples_goes_as_a_whole_even_at_a_low_quantile():
    whole = on_sphere(40_000)
    points = whole.chosen(whole.points[:, 2] > 0)
    surface = poisson_surface(points, resolution=64)
    mesh = trimmed(surface, 0.1, support=points)
    flat = mesh.vertices[mesh.vertices[:, 2] < 0]
    assert np.hypot(flat[:, 0], flat[:, 1]).min() > 0.8
    assert trimmed(surface, 0.0, support=points) is surface.mesh


def test_what_trimming_cannot_do_is_said():
    points = on_sphere(2_000)
    surface = poisson_surface(points, resolution=32)
    elsewhere = OrientedPoints(points=points.points + 50, normals=points.normals)
    with pytest.raises(MeshError, match="removes all"):
        trimmed(surface, 1.0, support=elsewhere)
    with pytest.raises(MeshError, match="must be from 0 to 1"):
        trimmed(surface, 1.5, support=points)


def test_small_pieces_go(forms):
    both = forms.joined(forms.icosphere(3), forms.icosphere(0))
    assert len(without_small_pieces(both, least_share=0.02).faces) == 1280
    assert without_small_pieces(both, least_faces=20) is both
    assert len(without_small_pieces(both, least_faces=10_000).faces) == 1280
    with pytest.raises(MeshError, match=r"fraction of .* 0 to 1"):
        without_small_pieces(both, least_share=3.0)
