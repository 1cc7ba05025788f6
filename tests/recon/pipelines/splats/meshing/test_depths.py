"""Empty space according to depth maps."""

import numpy as np
import torch

from fieldwatch.recon.geometry import look_at
from fieldwatch.recon.pipelines.splats.meshing.depths import DepthMaps
from fieldwatch.recon.render import View


def view_from(place, size=64) -> View:
    pose = torch.linalg.inv(look_at(place, (0.0, 0.0, 0.0)).double()).float()
    return View(camera_from_world=pose, fx=size, fy=size, cx=size / 2, cy=size / 2, width=size, height=size)


def wall(view: View, depth: float) -> np.ndarray:
    return np.full((view.height, view.width), depth, np.float32)


def test_place_before_the_wall_is_empty_by_its_distance_and_behind_it_is_not() -> None:
    maps = DepthMaps(2, 1 << 20)
    for view in (view_from((0.0, -4.0, 0.0)), view_from((0.2, -4.0, 0.0))):
        maps.add(view, wall(view, 4.0))
    before, behind = maps.emptiness(np.array([[0.0, -1.0, 0.0], [0.0, 1.0, 0.0]]))
    np.testing.assert_allclose(before, 1.0, atol=0.01)
    np.testing.assert_allclose(behind, -1.0, atol=0.01)


def test_one_witness_is_not_enough() -> None:
    maps = DepthMaps(2, 1 << 20)
    first = view_from((0.0, -4.0, 0.0))
    second = view_from((0.0, 4.0, 0.0))
    maps.add(first, wall(first, 4.0))
    maps.add(second, wall(second, 2.0))  # its wall is nearer and hides the middle
    assert maps.emptiness(np.array([[0.0, -0.5, 0.0]]))[0] < 0


def test_pixel_without_a_surface_shows_that_all_along_it_is_empty() -> None:
    maps = DepthMaps(2, 1 << 20)
    for view in (view_from((0.0, -4.0, 0.0)), view_from((4.0, 0.0, 0.0))):
        maps.add(view, wall(view, 0.0))
    assert maps.emptiness(np.array([[0.0, 0.0, 0.0]]))[0] == np.inf


def test_unknown_pixels_and_places_outside_the_pictures_say_nothing() -> None:
    maps = DepthMaps(2, 1 << 20)
    for view in (view_from((0.0, -4.0, 0.0)), view_from((0.1, -4.0, 0.0))):
        maps.add(view, wall(view, np.nan))
    unknown, behind_the_cameras = maps.emptiness(np.array([[0.0, 0.0, 0.0], [0.0, -9.0, 0.0]]))
    assert unknown == behind_the_cameras == -np.inf


def test_maps_are_thinned_to_their_budget() -> None:
    view = view_from((0.0, -4.0, 0.0))
    maps = DepthMaps(2, 2 * 4 * 64 * 64 // 16)
    for _ in range(2):
        maps.add(view, wall(view, 4.0))
    assert sum(depth.nbytes for _, _, depth in maps._maps) <= 2 * 4 * 64 * 64 // 16
    np.testing.assert_allclose(maps.emptiness(np.array([[0.3, -1.0, 0.2]])), 1.0, atol=0.01)


def test_what_has_the_depth_of_a_view_is_seen_by_it() -> None:
    maps = DepthMaps(2, 1 << 20)
    for view in (view_from((0.0, -4.0, 0.0)), view_from((0.2, -4.0, 0.0))):
        maps.add(view, wall(view, 4.0))
    points = np.array([[0.0, 0.05, 0.0], [0.0, 0.5, 0.0], [0.0, -0.5, 0.0], [0.0, -9.0, 0.0]])
    # On the wall; behind it; before it, where both see through; behind the cameras.
    np.testing.assert_array_equal(maps.sightings(points, np.full(4, 0.1), 5), [2, 0, 0, 0])
    np.testing.assert_array_equal(maps.sightings(points, np.full(4, 0.1), 1), [1, 0, 0, 0])


def test_empty_and_unknown_pixels_see_nothing() -> None:
    for value in (0.0, np.nan):
        maps = DepthMaps(1, 1 << 20)
        view = view_from((0.0, -4.0, 0.0))
        maps.add(view, wall(view, value))
        assert maps.sightings(np.array([[0.0, 0.0, 0.0]]), np.array([10.0]), 1)[0] == 0


def test_beside_an_edge_both_depths_count() -> None:
    maps = DepthMaps(1, 1 << 20)
    view = view_from((0.0, -4.0, 0.0))
    depth = wall(view, 4.0)
    depth[:, 33:] = 6.0
    maps.add(view, depth)
    # Columns 32 (beside the edge) and 28 (away from it) at a depth of 6.
    beside, away = ((column + 0.5 - 32) / 64 * 6 for column in (32, 28))
    points = np.array([[beside, 2.0, 0.0], [away, 2.0, 0.0], [away, 2.0, 0.0]])
    np.testing.assert_array_equal(maps.sightings(points, np.array([0.1, 0.1, 2.1]), 1), [1, 0, 1])
