"""Checks of normal maps: each detects an injected fault and accepts a correct set."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch.recon.data import SolidUnion, check_normal_maps, ring_cameras, synthetic_normal_maps
from fieldwatch.recon.data.normal_maps import PlacedShape
from fieldwatch.recon.data.normal_maps.agreement import (
    median_disagreement,
    outline_pixels,
    outward_share,
    spread_views,
)
from fieldwatch.recon.data.normal_maps.axes import Convention
from fieldwatch.recon.data.normal_maps.hull import visual_hull
from fieldwatch.recon.data.normal_maps.layout import mask_holes
from fieldwatch.recon.data.solids.shapes import RoundedBox, Sphere


@pytest.fixture(scope="module")
def healthy():
    return synthetic_normal_maps(views=10, size=72)


@pytest.fixture(scope="module")
def ball():
    scene = SolidUnion((PlacedShape(Sphere(0.6), np.zeros(3), np.eye(3)),))
    return synthetic_normal_maps(scene, cameras=ring_cameras(8, 64, elevations=(20.0,)))


def each(normal_set, change):
    """Return the set with `change(index, view)` applied to every view."""
    return replace(normal_set, views=tuple(change(i, view) for i, view in enumerate(normal_set.views)))


def shifted(normal_set, *names):
    """Return the set with maps of the next view."""
    views = normal_set.views
    return each(normal_set, lambda i, v: replace(v, **{n: getattr(views[(i + 1) % len(views)], n) for n in names}))


def found(normal_set):
    return [check.name for check in check_normal_maps(normal_set)]


def test_nothing_is_said_about_healthy_sets(healthy, ball):
    assert check_normal_maps(healthy) == ()
    assert check_normal_maps(ball) == ()


@pytest.mark.parametrize("views", [3, 20])
def test_nothing_is_said_about_flat_faces_few_views_or_noise(views):
    scene = SolidUnion((PlacedShape(RoundedBox((0.5, 0.4, 0.3), 0.03), np.zeros(3), np.eye(3)),))
    (check,) = check_normal_maps(synthetic_normal_maps(scene, views=views, size=64, noise=4, depth="none"))
    assert (check.name, check.severity) == ("noise", "note")
    assert float(re.search(r"about ([\d.]+) degrees", check.message)[1]) == pytest.approx(4, abs=0.5)


@pytest.mark.parametrize("noise", [5, 10, 15])
def test_noise_is_named_with_its_degrees_and_not_taken_for_other_axes(noise):
    (check,) = check_normal_maps(synthetic_normal_maps(views=10, size=64, noise=noise, depth="none"))
    assert (check.name, check.severity) == ("noise", "note" if noise < 8 else "warning")
    assert float(re.search(r"about ([\d.]+) degrees", check.message)[1]) == pytest.approx(noise, rel=0.15)


def test_a_black_mask_and_nan_are_named(healthy):
    black = each(healthy, lambda i, v: replace(v, mask=v.mask & (i != 4)))
    (check,) = check_normal_maps(black)
    assert (check.name, check.severity) == ("empty_mask", "error")
    assert "--exclude 004" in check.remedy
    assert check.correction == {"exclude": ("004",)}
    (check,) = check_normal_maps(each(healthy, lambda i, v: replace(v, not_finite=0.02 * (i == 4))))
    assert (check.name, check.severity) == ("not_finite", "warning")
    assert "'004'" in check.message
    assert not check.correction
    (check,) = check_normal_maps(each(healthy, lambda i, v: replace(v, not_finite=1.0 * (i == 4))))
    assert (check.name, check.severity) == ("not_finite", "error")
    assert "--exclude 004" in check.remedy
    assert check.correction == {"exclude": ("004",)}


def test_black_masks_alone_are_said_once(healthy):
    assert found(each(healthy, lambda _, v: replace(v, mask=torch.zeros_like(v.mask)))) == ["empty_mask"]


@pytest.mark.parametrize(("shift", "remedy"), [(0.5, "--pixel-center half"), (-0.5, "--pixel-center whole")])
def test_half_a_pixel_shows_in_the_silhouettes(healthy, shift, remedy):
    def change(_, view):
        camera = view.camera
        return replace(view, camera=replace(camera, cx=camera.cx + shift, cy=camera.cy + shift))

    (check,) = check_normal_maps(replace(each(healthy, change)))
    assert (check.name, check.severity) == ("pixel_center", "warning")
    assert remedy in check.remedy


def test_integrated_depth_passes_as_well():
    assert check_normal_maps(synthetic_normal_maps(views=3, size=48, depth="integrated")) == ()


@pytest.mark.parametrize(
    ("signs", "message"),
    [
        ((1, -1, -1), "y and z negated"),
        ((-1, 1, 1), "have x negated"),
        ((1, -1, 1), "have y negated"),
        ((1, 1, -1), "have z negated"),
        ((-1, -1, -1), "x and y and z negated"),
    ],
)
def test_wrong_axes_are_named(healthy, signs, message):
    turned = each(healthy, lambda _, v: replace(v, normals=v.normals * torch.tensor(signs, dtype=torch.float32)))
    (check,) = check_normal_maps(turned)
    assert (check.name, check.severity) == ("axes", "error")
    assert message in check.message
    assert ("--axes opengl" in check.remedy) == (signs == (1, -1, -1))
    assert "--axes" in check.remedy


def test_views_agree_again_once_the_axes_are_right(healthy):
    turned = each(healthy, lambda _, v: replace(v, normals=v.normals * torch.tensor([1.0, -1.0, -1.0])))
    (check,) = check_normal_maps(turned)
    hull = visual_hull(healthy.views)
    right = median_disagreement(healthy.views, hull)
    wrong = median_disagreement(turned.views, hull)
    assert right < 20
    assert wrong > 40
    assert re.search(rf" {wrong:.0f} degrees, after .* {right:.0f}\b", check.message)


@pytest.mark.parametrize("signs", [(1.0, 1.0, 1.0), (1.0, -1.0, -1.0)])
def test_normals_of_the_world_are_told_from_those_of_the_camera(healthy, signs):
    worldly = each(healthy, lambda _, v: replace(v, normals=v.world_normals() * torch.tensor(signs)))
    (check,) = check_normal_maps(worldly)
    assert check.name == "axes"
    assert "world axes" in check.message
    assert "--space world" in check.remedy


def test_a_space_that_was_given_wrongly_is_taken_back(healthy):
    # What a reader makes of normals in camera axes if it takes them for those of the world.
    mistaken = each(
        healthy, lambda _, v: replace(v, normals=v.normals @ v.camera.world_from_camera[:3, :3].to(v.normals))
    )
    (check,) = check_normal_maps(replace(mistaken, convention=Convention(space="world")))
    assert check.name == "axes"
    assert "--axes" in check.remedy
    assert "--space camera" in check.remedy


def test_normals_across_the_outline_add_up_to_one(ball):
    across, down = outward_share(ball.views)
    assert across == pytest.approx(0.5, abs=0.02)
    assert down == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("order", "message"), [([1, 0, 2], "exchanged: y in place of x"), ([2, 1, 0], "BGR")])
def test_exchanged_channels_are_named(healthy, order, message):
    swapped = each(healthy, lambda _, v: replace(v, normals=v.normals[..., order]))
    (check,) = check_normal_maps(swapped)
    assert (check.name, check.severity) == ("axes", "error")
    assert message in check.message


def test_a_thousand_specks_in_a_mask_take_no_minute(healthy):
    def change(i, view):
        mask = view.mask.clone()
        mask[::2, ::2] &= i != 3
        return replace(view, mask=mask)

    assert "holes" in found(each(healthy, change))


@pytest.mark.parametrize(("count", "severity"), [(25, "warning"), (150, "error")])
def test_specks_outside_of_the_object_are_named_and_not_taken_for_its_extent(count, severity):
    maps = synthetic_normal_maps(views=6, size=144)

    def change(i, view):
        mask = view.mask.clone()
        # A grid along the edges of the picture.
        places = [(row, column) for row in (1, 4, 7, 10, 133, 136, 139, 142) for column in range(2, 142, 6)]
        for row, column in places[: count if i == 3 else 0]:
            mask[row, column] = True
        return replace(view, mask=mask)

    (check,) = check_normal_maps(each(maps, change))
    assert (check.name, check.severity) == ("specks", severity)
    assert re.search(r"views 003 have", check.message)
    assert f"{count} groups" in check.message
    assert "--masks normals" in check.remedy


def test_one_view_with_turned_normals_is_named(healthy):
    def change(i, view):
        turned = torch.stack([-view.normals[..., 1], view.normals[..., 0], view.normals[..., 2]], -1)
        return replace(view, normals=turned) if i == 4 else view

    (check,) = check_normal_maps(each(healthy, change))
    assert (check.name, check.severity) == ("turned", "error")
    assert "004" in check.message


def test_the_one_view_that_contradicts_all_others_is_named(healthy):
    def change(i, view):
        zoomed = replace(view.camera, fx=1.6 * view.camera.fx, fy=1.6 * view.camera.fy)
        return replace(view, camera=zoomed) if i == 3 else view

    (check,) = [each for each in check_normal_maps(each(healthy, change)) if each.name == "silhouettes"]
    assert "003" in check.message


def test_lengths_other_than_one_are_seen_now_and_from_reading(healthy):
    short = each(healthy, lambda _, v: replace(v, normals=0.9 * v.normals))
    assert found(short) == ["unit_length"]
    (check,) = check_normal_maps(each(healthy, lambda i, v: replace(v, off_unit=0.3 if i == 4 else 0.0)))
    assert "in 1 of 10 views, 30.0%" in check.message
    assert "'004'" in check.message


def test_normals_that_face_away_in_a_part_of_a_view_are_seen(healthy):
    def change(i, view):
        normals = view.normals.clone()
        middle = slice(30, 40)
        normals[middle, middle] *= -1 if i == 2 else 1
        return replace(view, normals=normals)

    checks = check_normal_maps(each(healthy, change))
    assert [check.name for check in checks] == ["facing"]
    assert "'002'" in checks[0].message


@pytest.mark.parametrize(
    "spoil", [torch.diag(torch.tensor([1.0, 1.02, 1.0, 1.0])), torch.diag(torch.tensor([1.0, -1, 1, 1]))]
)
def test_poses_that_are_no_rotations_are_seen(healthy, spoil):
    def change(i, view):
        pose = view.camera.world_from_camera
        return replace(view, camera=replace(view.camera, world_from_camera=pose @ spoil.to(pose) if i == 1 else pose))

    checks = check_normal_maps(each(healthy, change))
    assert "rotation" in [check.name for check in checks]
    assert "views 001" in next(check for check in checks if check.name == "rotation").message


def test_masks_of_other_views_are_named(healthy):
    checks = check_normal_maps(shifted(healthy, "mask"))
    overlap = next(check for check in checks if check.name == "overlap")
    assert overlap.severity == "error"
    assert "mask of 009" in overlap.message
    assert "normals of 000 better (IoU 1.00" in overlap.message
    assert found(shifted(healthy, "normals")) == ["overlap"]


def test_maps_of_other_views_than_the_cameras_are_seen(healthy):
    assert found(shifted(healthy, "camera")) == ["silhouettes"]


def test_normals_flattened_towards_the_camera_are_seen_across_views(ball):
    """Every view is consistent by itself, as from a network that predicts a relief."""

    def flat(_, view):
        return replace(view, normals=torch.nn.functional.normalize(view.normals * torch.tensor([0.1, 0.1, 1]), dim=-1))

    assert found(each(replace(ball, views=tuple(replace(v, depth=None) for v in ball.views)), flat)) == ["cross_view"]


@pytest.mark.parametrize(
    ("scale", "shift", "severity", "message"),
    [(1.9, 0.0, "error", "extends 1"), (1.0, 0.6, "error", "extends 1"), (0.1, 0.0, "error", "only 0.0")],
)
def test_an_object_beyond_the_unit_sphere_or_lost_in_it_is_seen(ball, scale, shift, severity, message):
    def change(_, view):
        pose = view.camera.world_from_camera.clone()
        pose[:3, 3] = pose[:3, 3] * scale + torch.tensor([0.0, 0.0, shift])
        return replace(view, camera=replace(view.camera, world_from_camera=pose))

    (check,) = check_normal_maps(each(ball, change))
    assert check.name == "hull"
    assert message in check.message


def test_an_empty_hull_is_seen(ball):
    away = torch.tensor([9.0, 0, 0])

    def change(_, view):
        pose = view.camera.world_from_camera.clone()
        pose[:3, 3] += away
        return replace(view, camera=replace(view.camera, world_from_camera=pose))

    checks = check_normal_maps(each(ball, change))
    assert "hull within 1.5 units" in checks[0].message


def test_depth_of_other_views_or_most_of_it_missing_is_seen(healthy):
    assert found(shifted(healthy, "depth")) == ["depth"]
    missing = each(healthy, lambda i, v: replace(v, depth=v.depth * float(i != 3)))
    (check,) = check_normal_maps(missing)
    assert "views 003" in check.message


def test_depth_has_no_scale_to_be_wrong(healthy):
    assert check_normal_maps(each(healthy, lambda i, v: replace(v, depth=v.depth * (2.0 + i)))) == ()


@pytest.mark.parametrize("known", [True, False])
def test_holes_that_are_none_of_the_object_are_seen(healthy, known):
    def change(i, view):
        if i != 5:
            return view
        facing = view.mask & (view.normals[..., 2] < -0.97)
        row, column = facing.nonzero()[int(facing.sum()) // 2].tolist()
        mask = view.mask.clone()
        normals = view.normals.clone()
        mask[row, column] = False
        normals[row, column] *= float(known)
        return replace(view, mask=mask, normals=normals)

    (check,) = check_normal_maps(each(healthy, change))
    assert (check.name, check.severity) == ("holes", "warning")
    assert "views 005 have holes with 1 pixels" in check.message


def test_the_hole_of_a_ring_is_no_fault(healthy):
    """The gaps of the built-in object show the background."""
    assert sum(int(mask_holes(view.mask).sum()) for view in healthy.views) > 5


def test_the_hull_of_a_ball_holds_it_and_little_more(ball):
    hull = visual_hull(ball.views)
    radii = hull.centers(hull.surface()).norm(dim=-1)
    assert float(radii.min()) > 0.6 - hull.cell * 3**0.5
    assert float(hull.inside.sum()) * hull.cell**3 == pytest.approx(4 / 3 * np.pi * 0.6**3, rel=0.12)


def test_outlines_do_not_depend_on_what_is_far_from_them():
    generator = torch.Generator().manual_seed(3)
    small = torch.zeros(60, 50, dtype=torch.bool)
    small[20:40, 12:31] = torch.rand(20, 19, generator=generator) < 0.7
    for top, left in ((0, 0), (37, 21)):
        large = torch.zeros(140, 150, dtype=torch.bool)
        large[top : top + 60, left : left + 50] = small
        (edge, outwards), (in_large, outwards_in_large) = outline_pixels(small), outline_pixels(large)
        assert torch.equal(in_large[top : top + 60, left : left + 50], edge)
        assert int(in_large.sum()) == int(edge.sum()) > 100
        torch.testing.assert_close(outwards_in_large[in_large], outwards[edge])


def test_a_mask_at_the_border_has_no_outline_there():
    mask = torch.zeros(40, 40, dtype=torch.bool)
    mask[:, 25:] = True
    edge, outwards = outline_pixels(mask)
    assert edge.nonzero()[:, 1].unique().tolist() == [25]
    torch.testing.assert_close(outwards[edge], torch.tensor([-1.0, 0.0], dtype=torch.float64).expand(40, 2))
    assert not outline_pixels(torch.zeros(5, 5, dtype=torch.bool))[0].any()


def test_holes_are_enclosed_on_all_four_sides():
    mask = torch.ones(12, 12, dtype=torch.bool)
    mask[3:5, 3:5] = False
    mask[8, 8:] = False
    # A diagonal does not open a hole.
    mask[10, 1] = mask[11, 0] = False
    assert mask_holes(mask).nonzero().tolist() == [[3, 3], [3, 4], [4, 3], [4, 4], [10, 1]]


@pytest.mark.parametrize("count", [3, 40, 41, 1000])
def test_views_of_large_sets_are_chosen_evenly(healthy, count):
    views = [replace(healthy.views[0], name=str(number)) for number in range(count)]
    chosen = [int(view.name) for view in spread_views(views)]
    assert chosen[0] == 0
    assert len(chosen) == min(count, 40)
    gaps = np.diff(chosen)
    assert gaps.max() - gaps.min() <= 1
