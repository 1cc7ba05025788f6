"""Consistency of two views: exact on a plane, with gradients that bring depth and normals back to it."""

import math
from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.pipelines.splats.plane_consistency import (
    PixelPlanes,
    patch_correlation,
    patch_error,
    round_trip,
    round_trip_error,
    sampled,
)

WIDTH = 60
HEIGHT = 40


def camera_at(position, target=(0.0, 0.0, 0.0), name="camera", dtype=torch.float64):
    lens = {"fx": 55.0, "fy": 52.0, "cx": 29.0, "cy": 21.0}
    pose = look_at(position, target).to(dtype)
    return Camera(name=name, width=WIDTH, height=HEIGHT, world_from_camera=pose, **lens)


FIRST = camera_at((0.2, -3.0, 0.4))
SECOND = camera_at((1.0, -2.8, 0.1))
NORMAL = torch.tensor([0.15, -0.97, 0.19], dtype=torch.float64)
NORMAL /= NORMAL.norm()


def plane_depth(camera):
    """The depth of the plane through the origin with NORMAL."""
    rays = camera.directions(torch.zeros(HEIGHT, WIDTH, dtype=torch.float64)) @ camera.world_from_camera[:3, :3].T
    return -(camera.position @ NORMAL) / (rays @ NORMAL)


def texture(camera, gain=1.0, offset=0.0):
    """Gray values of the plane: waves, shorter than a patch is wide."""
    points = camera.unproject(plane_depth(camera))
    waves = torch.sin(9 * points[..., 0]) * torch.cos(7 * points[..., 2] + 1) + torch.sin(15 * points[..., 2])
    return offset + gain * (0.5 + 0.2 * waves)


def planes_of(camera, margin=8, depth_factor=1.0, normal=NORMAL):
    rows, columns = torch.meshgrid(
        torch.arange(margin, HEIGHT - margin), torch.arange(margin, WIDTH - margin), indexing="ij"
    )
    rows = rows.flatten()
    columns = columns.flatten()
    local = (normal @ camera.world_from_camera[:3, :3]).expand(len(rows), 3)
    return PixelPlanes(
        rows=rows,
        columns=columns,
        depth=depth_factor * plane_depth(camera)[rows, columns],
        normals=local,
        valid=torch.ones(len(rows), dtype=torch.bool),
    )


def test_on_the_true_plane_every_pixel_comes_home_and_the_photos_agree():
    planes = planes_of(FIRST)
    trip = round_trip(planes, FIRST, SECOND, plane_depth(SECOND))
    seen = trip.confidence > 0
    assert seen.double().mean() > 0.6  # the others leave the neighbor's photo
    # Depth is interpolated between pixels, which is not exact.
    assert trip.distance[seen].max() < 2e-3
    assert round_trip_error(trip) < 1e-3
    correlation, defined = patch_correlation(planes, FIRST, texture(FIRST), SECOND, texture(SECOND))
    assert (defined & seen).sum() > 500
    assert correlation[defined].min() > 0.98
    assert patch_error(correlation, defined, trip.confidence) < 0.01


def test_the_photos_may_differ_in_brightness_and_contrast():
    planes = planes_of(FIRST)
    plain, defined = patch_correlation(planes, FIRST, texture(FIRST), SECOND, texture(SECOND))
    changed, still = patch_correlation(planes, FIRST, texture(FIRST), SECOND, texture(SECOND, gain=0.6, offset=0.2))
    assert torch.equal(defined, still)
    assert torch.allclose(plain, changed, atol=1e-9)
    # The test can fail: another texture does not correlate.
    other, _ = patch_correlation(planes, FIRST, texture(FIRST), SECOND, texture(SECOND).flip(1))
    assert other[defined].abs().mean() < 0.7


def test_a_wrong_depth_comes_back_elsewhere_by_the_parallax():
    planes = planes_of(FIRST, depth_factor=1.01)
    trip = round_trip(planes, FIRST, SECOND, plane_depth(SECOND))
    seen = trip.confidence > 0
    # Nearly the parallax of the depth error: focal length, times baseline, times the difference of inverse depths.
    baseline = float((SECOND.position - FIRST.position).norm())
    parallax = 55 * baseline * float(1 - 1 / 1.01) / float(planes.depth.mean())
    assert trip.distance[seen].median() == pytest.approx(parallax, rel=0.35)
    assert torch.allclose(trip.confidence[seen], torch.exp(-trip.distance[seen]))


@pytest.mark.parametrize("factor", [0.995, 1.005])
def test_descent_moves_depth_to_the_plane(factor):
    planes = planes_of(FIRST, depth_factor=factor)
    depth = planes.depth.clone().requires_grad_()
    moved = planes._replace(depth=depth)
    trip = round_trip(moved, FIRST, SECOND, plane_depth(SECOND))
    correlation, defined = patch_correlation(moved, FIRST, texture(FIRST), SECOND, texture(SECOND))
    for error in (round_trip_error(trip), patch_error(correlation, defined, trip.confidence)):
        (slope,) = torch.autograd.grad(error, depth, retain_graph=True)
        assert float(slope.sum()) * (factor - 1) > 0


def test_descent_turns_normals_to_the_plane():
    wrong = NORMAL + torch.tensor([0.1, 0.0, -0.1], dtype=torch.float64)
    planes = planes_of(FIRST, normal=wrong / wrong.norm())
    normals = planes.normals.clone().requires_grad_()
    correlation, defined = patch_correlation(
        planes._replace(normals=normals), FIRST, texture(FIRST), SECOND, texture(SECOND)
    )
    error = patch_error(correlation, defined, torch.ones(len(correlation), dtype=torch.float64))
    error.backward()
    assert normals.grad is not None
    off = planes.normals - NORMAL @ FIRST.world_from_camera[:3, :3]
    assert float((normals.grad * off).sum()) > 0


def test_gradients_equal_finite_differences():
    planes = planes_of(FIRST, margin=18, depth_factor=1.004)
    some = torch.arange(0, len(planes.rows), 7)
    planes = PixelPlanes(*(part[some] for part in planes))
    seen = plane_depth(SECOND)
    photos = texture(FIRST), texture(SECOND)

    def error(depth, normals):
        moved = planes._replace(depth=depth, normals=normals)
        trip = round_trip(moved, FIRST, SECOND, seen)
        correlation, _ = patch_correlation(moved, FIRST, photos[0], SECOND, photos[1])
        # Confidences are constants of the loss: left out here, as they would change with the depth.
        return trip.distance.sum() + correlation.sum()

    leaves = (planes.depth.clone().requires_grad_(), planes.normals.clone().requires_grad_())
    # The map is bilinear: a step that crosses no pixel border has no kink.
    assert torch.autograd.gradcheck(error, leaves, eps=1e-7, atol=1e-3, rtol=1e-3)


def test_occluded_pixels_and_those_outside_do_not_count():
    planes = planes_of(FIRST)
    occluded = 0.8 * plane_depth(SECOND)  # something else stands in front
    assert not (round_trip(planes, FIRST, SECOND, occluded).confidence > 0).any()
    nothing = torch.zeros_like(occluded)
    trip = round_trip(planes, FIRST, SECOND, nothing)
    assert round_trip_error(trip).item() == 0
    away = camera_at((0.2, -3.0, 0.4), target=(0.2, -9.0, 0.4))
    behind = round_trip(planes, FIRST, away, plane_depth(SECOND))
    assert not (behind.confidence > 0).any()
    masked = planes._replace(valid=torch.zeros_like(planes.valid))
    _, defined = patch_correlation(masked, FIRST, texture(FIRST), SECOND, texture(SECOND))
    assert not defined.any()


def test_without_texture_and_seen_edge_on_there_is_no_correlation_and_no_slope():
    planes = planes_of(FIRST)
    plain = torch.full((HEIGHT, WIDTH), 0.5, dtype=torch.float64)
    depth = planes.depth.clone().requires_grad_()
    correlation, defined = patch_correlation(planes._replace(depth=depth), FIRST, plain, SECOND, texture(SECOND))
    assert not defined.any()
    error = patch_error(correlation, defined, torch.ones_like(correlation))
    error.backward()
    assert error.item() == 0
    assert depth.grad is not None
    assert torch.isfinite(depth.grad).all()
    along = torch.tensor([1.0, 0.0, 0.02], dtype=torch.float64).expand(len(depth), 3)
    _, defined = patch_correlation(planes._replace(normals=along), FIRST, texture(FIRST), SECOND, texture(SECOND))
    assert not defined[(planes.columns - 29).abs() < 3].any()


def test_samples_are_bilinear_and_outside_is_told():
    values = torch.arange(12.0).reshape(3, 4)
    x = torch.tensor([0.5, 2.0, 3.6, math.nan, 0.4])
    y = torch.tensor([0.5, 1.5, 1.0, 1.0, 1.0])
    found, inside = sampled(values, x, y)
    assert inside.tolist() == [True, True, False, False, False]
    assert found[:2].tolist() == pytest.approx([0.0, 5.5])


def test_single_precision_agrees():
    planes = planes_of(FIRST)
    first, second = (replace(each, world_from_camera=each.world_from_camera.float()) for each in (FIRST, SECOND))
    rounded = planes._replace(depth=planes.depth.float(), normals=planes.normals.float())
    trip = round_trip(rounded, first, second, plane_depth(SECOND).float())
    exact = round_trip(planes, FIRST, SECOND, plane_depth(SECOND))
    assert (trip.distance - exact.distance).abs().max() < 1e-3
