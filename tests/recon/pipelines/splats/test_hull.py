"""Transparent photos: where they show the background, nothing is trained and no surface is extracted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.pipelines.splats.hull import VisualHull, mask_of_photo
from fieldwatch.recon.pipelines.splats.initialization import sample_inside

SIZE = 64
RADIUS = 0.5


def evenly(count: int) -> torch.Tensor:
    height = 1 - 2 * (torch.arange(count) + 0.5) / count
    turn = torch.arange(count) * 2.399963
    flat = (1 - height.square()).sqrt()
    return torch.stack([flat * turn.cos(), flat * turn.sin(), height], -1)


def picture_of_a_ball(camera: Camera) -> PhotoPixels:
    origins, directions = camera.rays()
    along = -(origins * directions).sum(-1)
    apart = (origins + along[..., None] * directions).norm(dim=-1)
    alpha = (apart < RADIUS).to(torch.uint8) * 255
    return PhotoPixels(image=alpha[..., None].repeat(1, 1, 3), alpha=alpha)


@pytest.fixture(scope="module")
def photos() -> PhotoSet:
    lens = {"width": SIZE, "height": SIZE, "fx": 1.3 * SIZE, "fy": 1.3 * SIZE, "cx": SIZE / 2, "cy": SIZE / 2}
    cameras = tuple(
        Camera(name=f"{i:02d}.png", world_from_camera=look_at(position, (0, 0, 0), (0.1, 0.2, 1)), **lens)
        for i, position in enumerate((2 * evenly(24)).tolist())
    )
    return PhotoSet(
        cameras=cameras,
        read=lambda index: picture_of_a_ball(cameras[index]),
        points=torch.zeros(0, 3),
        colors=torch.zeros(0, 3, dtype=torch.uint8),
        train=tuple(range(24)),
        test=(),
        source="a ball",
        masked=False,
    )


def test_what_two_photos_show_as_background_is_outside(photos: PhotoSet) -> None:
    hull = VisualHull.of(photos)
    assert len(hull) == 24
    directions = evenly(200).double().numpy()
    assert not hull.outside(0.99 * RADIUS * directions).any()
    assert hull.outside(1.25 * RADIUS * directions).all()
    assert hull.outside(np.array([[0.0, 0.0, 1.0], [50.0, 0.0, 0.0]])).tolist() == [True, False]  # no photo shows it


def test_one_wrong_photo_carves_nothing(photos: PhotoSet) -> None:
    def read(index: int) -> PhotoPixels:
        picture = photos.read(index)
        if index or picture.alpha is None:
            return replace(picture, alpha=None)
        return replace(picture, alpha=torch.zeros_like(picture.alpha))

    hull = VisualHull.of(photos.having(read=read))
    assert len(hull) == 1
    assert not hull.outside(np.zeros((1, 3))).any()


def test_masked_pixels_say_nothing(photos: PhotoSet) -> None:
    def read(index: int) -> PhotoPixels:
        return replace(photos.read(index), mask=torch.zeros(SIZE, SIZE, dtype=torch.uint8))

    masked = photos.having(read=read, masked=True)
    assert not VisualHull.of(masked).outside(np.array([[0.0, 0.0, 0.9]])).any()
    counted = mask_of_photo(masked, 0).counted
    assert counted is not None
    assert not bool(counted.any())


def test_no_photo_is_read_where_none_is_transparent(photos: PhotoSet) -> None:
    def read(_: int) -> PhotoPixels:
        raise AssertionError("read")

    opaque = photos.having(read=read, transparent=False)
    assert len(VisualHull.of(opaque)) == 0
    assert mask_of_photo(opaque, 0).solid is None


def test_large_photos_are_held_coarsely_and_carve_alike(photos: PhotoSet) -> None:
    cameras = tuple(camera.resized(1300, 1300) for camera in photos.cameras[::3])
    large = photos.having(cameras=cameras, read=lambda i: picture_of_a_ball(cameras[i]), train=tuple(range(8)))
    hull = VisualHull.of(large)
    assert not hull.outside(0.99 * RADIUS * evenly(200).double().numpy()).any()
    assert hull.outside(np.array([[0.0, 0.0, 0.9]])).all()


def test_random_places_lie_inside(photos: PhotoSet) -> None:
    torch.manual_seed(0)
    hull = VisualHull.of(photos)
    places = sample_inside(hull, 500, torch.full((3,), -1.0), torch.full((3,), 1.0))
    assert places.shape == (500, 3)
    # 14 % of the whole box; near the cameras, few photos show any given position
    assert float((places.norm(dim=1) < 1.3 * RADIUS).float().mean()) > 0.7
    assert bool(hull.covers(places.double().numpy()).all())
    with pytest.raises(ValueError, match="silhouettes"):
        sample_inside(hull, 500, torch.full((3,), 0.8), torch.full((3,), 0.9))


def test_a_small_object_in_a_large_box_begins_with_fewer_places(photos: PhotoSet) -> None:
    torch.manual_seed(0)
    hull = VisualHull.of(photos)
    places = sample_inside(hull, 20_000, torch.full((3,), -40.0), torch.full((3,), 40.0))
    assert 100 <= len(places) < 20_000
    assert bool(hull.covers(places.double().numpy()).all())
