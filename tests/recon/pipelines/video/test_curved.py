"""Curved paths on pictures whose motion is known."""

import pytest
import torch

from fieldwatch.recon.pipelines.video.curved import Paths, estimate_paths, interpolate_curved
from fieldwatch.recon.pipelines.video.motion import interpolate

SIZE = 64
TIMES = (-2.0, -1.0, 1.0, 2.0)


def inner(picture, border=12):
    return picture[..., border:-border, border:-border]


def error(found, truth):
    return (found - truth).square().mean()


def test_a_path_is_a_parabola():
    paths = Paths(velocity=torch.full((1, 2, 1, 1), 3.0), acceleration=torch.full((1, 2, 1, 1), -2.0))
    assert [float(paths.at(time)[0, 0]) for time in (-1.0, 0.0, 2.0)] == [-4.0, 0.0, 2.0]


def test_velocity_and_acceleration_of_a_known_motion(view):
    # A window that moves by +x shows the picture moving by -x.
    pictures = torch.stack([view(3 * time + 0.8 * time**2, -time) for time in TIMES])
    paths = estimate_paths(pictures, TIMES)
    assert (inner(paths.velocity)[:, 0] + 3).abs().mean() < 0.05
    assert (inner(paths.velocity)[:, 1] - 1).abs().mean() < 0.05
    # It is pulled to 0, where texture is weak most.
    assert (inner(paths.acceleration)[:, 0] + 1.6).abs().mean() < 0.25
    assert inner(paths.acceleration)[:, 1].abs().mean() < 0.1


def test_an_accelerated_motion_is_met_where_a_straight_one_is_late(view):
    pictures = torch.stack([view(3 * time + 0.8 * time**2) for time in TIMES])
    truth = inner(view(0))
    curved = inner(interpolate_curved(pictures, TIMES))
    straight = inner(interpolate(pictures[1][None], pictures[2][None])[0])
    assert error(curved, truth) < 0.05 * error(straight, truth)


def test_what_leaves_the_frame_is_taken_from_the_other_image(view):
    pictures = torch.stack([view(5 * time) for time in TIMES])
    truth = view(0)
    found = interpolate_curved(pictures, TIMES)
    blended = interpolate(pictures[1][None], pictures[2][None])[0]
    for columns in (slice(0, 5), slice(-5, None)):
        assert error(found[..., columns], truth[..., columns]) < 0.1 * error(blended[..., columns], truth[..., columns])


def test_an_image_that_the_one_beyond_it_contradicts_counts_less(view):
    background = view(0)
    flash = background.clone()
    flash[:, 20:40, 20:40] = 1
    found = interpolate_curved(torch.stack([background, background, flash, background]), TIMES)
    middle = (slice(None), slice(26, 34), slice(26, 34))
    assert error(found[middle], background[middle]) < 0.3 * error((background + flash)[middle] / 2, background[middle])


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_the_nearer_image_counts_more(share):
    # Brightness changes and nothing moves: only the shares decide.
    pictures = torch.stack([torch.full((3, 16, 16), 0.2), torch.full((3, 16, 16), 0.6)])
    found = interpolate_curved(pictures, (-2 * share, 2 - 2 * share))
    assert torch.allclose(found, torch.full((3, 16, 16), 0.2 + 0.4 * share), atol=1e-4)


@pytest.mark.parametrize("times", [(-2.0, -1.0), (1.0, 2.0)])
def test_a_motion_goes_on_from_one_side(view, times):
    pictures = torch.stack([view(3 * time) for time in times])
    nearest = pictures[min(range(2), key=lambda i: abs(times[i]))]
    truth = inner(view(0))
    assert error(inner(interpolate_curved(pictures, times)), truth) < 0.02 * error(inner(nearest), truth)


def test_still_pictures_stay_as_they_are(view):
    pictures = view(0).expand(4, 3, SIZE, SIZE)
    paths = estimate_paths(pictures, TIMES)
    assert paths.velocity.abs().max() < 1e-4
    assert torch.allclose(interpolate_curved(pictures, TIMES), pictures[0], atol=1e-4)


def test_colors_stay_in_their_range(view):
    # A cubic filter overshoots at edges.
    step = (view(0)[:1] > 0.5).float().expand(3, SIZE, SIZE)
    pictures = torch.stack([step.roll(int(2 * time), -1) for time in TIMES])
    found = interpolate_curved(pictures, TIMES)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
