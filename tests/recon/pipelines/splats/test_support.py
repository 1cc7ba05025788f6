"""Photos from nearly the same place support more Gaussians than as many photos from all around."""

from math import tau

import pytest
import torch

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.pipelines.splats.support import (
    MOST_CONFIRMED,
    PIXELS_PER_GAUSSIAN,
    confirming_photos,
    supported_by,
    training_pixels,
)

DISTANCE = 4.0


def photos_at(positions, points=None):
    """A set of 20x10 photos that look at the origin, the last one held out."""
    cameras = tuple(
        Camera(
            name=f"{number}.png",
            width=20,
            height=10,
            fx=20.0,
            fy=20.0,
            cx=10.0,
            cy=5.0,
            world_from_camera=look_at(position.tolist(), (0.0, 0.0, 0.0)),
        )
        for number, position in enumerate(positions)
    )
    points = torch.zeros(1, 3) if points is None else points
    return PhotoSet(
        cameras=cameras,
        read=lambda _: pytest.fail("no photo is read"),
        points=points,
        colors=torch.zeros(len(points), 3, dtype=torch.uint8),
        train=tuple(range(len(cameras) - 1)),
        test=(len(cameras) - 1,),
        source="test",
    )


def around(count, step):
    """Positions on a circle, a step of degrees apart."""
    angles = torch.arange(count + 1) * step * tau / 360
    return torch.stack([DISTANCE * angles.cos(), DISTANCE * angles.sin(), torch.full_like(angles, 0.3)], 1)


@pytest.mark.parametrize(
    ("step", "confirming"),
    [
        (30, 1.0),  # nobody else is near
        (4, (2 * 2 + 6 * 3) / 8),  # the two at the ends have one neighbor
        (0.1, 8.0),
    ],
)
def test_photos_within_five_degrees_are_counted(step, confirming):
    photos = photos_at(around(8, step))
    assert confirming_photos(photos) == pytest.approx(confirming)
    raised = min(confirming, MOST_CONFIRMED)
    assert training_pixels(photos) == 8 * 20 * 10
    assert supported_by(photos) == int(1600 * raised) // PIXELS_PER_GAUSSIAN


def test_the_median_point_counts_and_points_that_no_photo_sees_do_not():
    far_away = torch.tensor([[0.0, 0.0, 1e3]] * 300)
    # Close to the ring, the same cameras are seen from far apart.
    mostly_far_away = torch.cat([torch.zeros(3, 3), far_away, torch.tensor([[DISTANCE - 0.05, 0.1, 0.3]])])
    ring = around(8, 0.1)
    assert confirming_photos(photos_at(ring, far_away)) == 1
    assert confirming_photos(photos_at(ring, mostly_far_away[[0, 1, 2, -1]])) == 8
    # No more points are looked at than are needed, spread over all of them.
    assert confirming_photos(photos_at(ring, torch.cat([torch.zeros(700, 3), far_away]))) == 8


def test_without_points_nothing_is_confirmed():
    photos = photos_at(around(8, 0.1), torch.zeros(0, 3))
    assert confirming_photos(photos) == 1
    assert supported_by(photos) == 1600 // PIXELS_PER_GAUSSIAN
