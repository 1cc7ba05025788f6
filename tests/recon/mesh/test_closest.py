"""Exact distances between points and triangles, against a search through all of them and closed forms."""

import gc
import weakref

import numpy as np
import pytest

from fieldwatch.recon.mesh import MeshError, Triangles
from fieldwatch.recon.mesh.closest import SurfaceSearch, closest_points
from fieldwatch.recon.mesh.point_triangle import nearest_on_triangles


def by_all(mesh, points):
    """The distance of each point by measuring every face."""
    found = []
    for point in points:
        places = nearest_on_triangles(np.repeat(point[None], len(mesh.faces), axis=0), mesh.corners)
        found.append(np.linalg.norm(places - point, axis=1).min())
    return np.array(found)


@pytest.mark.parametrize(
    ("point", "place"),
    [
        ((0.25, 0.25, 3.0), (0.25, 0.25, 0.0)),  # above the inside
        ((-1.0, -2.0, 1.0), (0.0, 0.0, 0.0)),  # beyond a corner
        ((0.5, -2.0, 0.0), (0.5, 0.0, 0.0)),  # beyond a side
        ((1.0, 1.0, 0.0), (0.5, 0.5, 0.0)),  # beyond the long side
        ((0.2, 0.3, 0.0), (0.2, 0.3, 0.0)),  # on it
    ],
)
def test_every_region_of_a_triangle(point, place):
    corners = np.array([[[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]])
    assert nearest_on_triangles(np.array([point]), corners)[0] == pytest.approx(place, abs=1e-15)


def test_triangles_without_area_are_their_sides():
    corners = np.array([[[0.0, 0, 0], [2, 0, 0], [1, 0, 0]], [[1.0, 1, 1]] * 3])
    found = nearest_on_triangles(np.array([[1.5, 2, 0], [0.0, 0, 0]]), corners)
    assert found == pytest.approx(np.array([[1.5, 0, 0], [1, 1, 1]]))


def test_it_is_the_nearest_of_all_faces_of_whatever_size():
    random = np.random.default_rng(0)
    places = random.normal(size=(600, 3)) * 10.0 ** random.uniform(-4, 1, size=(600, 1))
    soup = Triangles(vertices=places, faces=random.integers(0, 600, (300, 3)))
    points = np.concatenate([random.normal(size=(150, 3)), places[:20], 1e3 * random.normal(size=(10, 3))])
    found, distances, faces = closest_points(soup, points)
    assert distances == pytest.approx(by_all(soup, points), rel=1e-12, abs=1e-15)
    assert np.linalg.norm(points - found, axis=1) == pytest.approx(distances)
    own = nearest_on_triangles(points, soup.corners[faces])
    assert np.array_equal(own, found)


def test_a_face_far_larger_than_the_others(forms):
    plate = Triangles(vertices=np.array([[-50.0, -50, -1], [50, -50, -1], [0, 50, -1]]), faces=np.array([[0, 1, 2]]))
    mesh = forms.joined(forms.icosphere(2, 0.1), plate)
    points = np.array([[0.0, 0, -0.9], [0, 0, 0.5], [5, 5, -0.5]])
    assert closest_points(mesh, points)[1] == pytest.approx(by_all(mesh, points))
    assert closest_points(mesh, points)[2][[0, 2]].tolist() == [320, 320]


def test_the_middle_of_a_ball_is_as_far_from_all_faces(forms):
    mesh = forms.icosphere(3)
    points = np.zeros((3, 3))
    assert SurfaceSearch(mesh).closest(points).distances == pytest.approx(by_all(mesh, points))


def test_what_is_kept_for_a_mesh_is_built_once_and_ends_with_it(forms):
    mesh = forms.icosphere(1)
    kept = SurfaceSearch.kept_for(mesh)
    assert SurfaceSearch.kept_for(mesh) is kept
    assert SurfaceSearch.kept_for(forms.icosphere(1)) is not kept
    gone = weakref.ref(kept)
    del kept, mesh
    gc.collect()
    assert gone() is None


def test_no_points_have_no_distances(forms):
    assert len(closest_points(forms.cone(), np.zeros((0, 3)))[1]) == 0


def test_what_cannot_be_measured_is_refused(forms):
    with pytest.raises(MeshError, match="without faces"):
        closest_points(Triangles(vertices=np.zeros((1, 3)), faces=np.zeros((0, 3), np.int64)), np.zeros((1, 3)))
    with pytest.raises(MeshError, match=r"1 of 2 points.*row 1"):
        closest_points(forms.cone(), np.array([[0.0, 0, 0], [np.nan, 0, 0]]))
