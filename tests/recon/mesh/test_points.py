import numpy as np
import pytest

from fieldwatch.recon.mesh import MeshError, OrientedPoints

UP = np.tile([0.0, 0.0, 1.0], (4, 1))
PLACES = np.arange(12.0).reshape(4, 3)
RED = np.tile(np.array([255, 0, 0], np.uint8), (4, 1))


def test_some_are_chosen_in_their_order():
    points = OrientedPoints(points=PLACES, normals=UP, colors=RED).chosen(np.array([True, False, False, True]))
    assert (len(points), points.points[1, 0], points.colors.shape) == (2, 9.0, (2, 3))


def test_sets_are_joined_and_empty_ones_do_not_take_the_colors():
    empty = OrientedPoints(points=np.empty((0, 3)), normals=np.empty((0, 3)))
    joined = OrientedPoints.joined(OrientedPoints(points=PLACES, normals=UP, colors=RED), empty)
    assert (len(joined), joined.colors.tolist()) == (4, RED.tolist())
    assert len(OrientedPoints.joined()) == 0


def test_colors_for_some_only_are_refused():
    plain = OrientedPoints(points=PLACES, normals=UP)
    with pytest.raises(MeshError, match=r"1 of 2 .*have colors"):
        OrientedPoints.joined(plain, OrientedPoints(points=PLACES, normals=UP, colors=RED))


def test_a_normal_that_is_none_is_refused():
    with pytest.raises(MeshError, match=r"4 of 4 normals.*length 1.*point 0"):
        OrientedPoints(points=PLACES, normals=2 * UP)


def test_a_place_that_is_not_finite_is_refused():
    places = PLACES.copy()
    places[2, 1] = np.nan
    with pytest.raises(MeshError, match=r"1 of 4 points.*point 2"):
        OrientedPoints(points=places, normals=UP)


@pytest.mark.usefixtures("unchecked")
def test_counts_that_differ_are_refused():
    with pytest.raises(MeshError, match=r"same length, got \[3, 4\]"):
        OrientedPoints(points=PLACES, normals=UP[:3])
