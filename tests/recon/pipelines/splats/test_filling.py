"""Gap filling from photos: positions, depths and colors of the added points."""

import pytest
import torch
from torch.testing import assert_close

from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.pipelines.splats import filling
from fieldwatch.recon.pipelines.splats.filling import Filling, fill_gaps

DENSE = solid_photos(views=6, size=48, held_out=3, points=300)
PHOTOS = DENSE.having(points=DENSE.points[::10], colors=DENSE.colors[::10])
LONGER = 48


def filled(photos=PHOTOS, seed=0, **settings):
    return fill_gaps(photos, Filling(**settings), generator=torch.Generator().manual_seed(seed))


def projected(points, camera):
    motion = camera.camera_from_world.float()
    local = points @ motion[:3, :3].T + motion[:3, 3]
    return local[:, :2] / local[:, 2:] * torch.tensor([camera.fx, camera.fy]) + torch.tensor([camera.cx, camera.cy])


def one_photo(index=1, **changed):
    return PHOTOS.having(train=(index,), test=(), **changed)


def test_points_fall_into_gaps_and_have_the_color_of_the_photo():
    photos = one_photo()
    points, colors = filled(photos, count=40, gap=0.1)
    places = projected(points, photos.cameras[1])
    known = projected(photos.points, photos.cameras[1])
    assert 10 < len(points) <= 40
    assert torch.cdist(places, known).amin(1).min() > 0.1 * LONGER - 1e-3
    columns, rows = places.long().unbind(1)
    off_the_edge = ((places - places.round()).abs() > 1e-3).all(1)
    assert torch.equal(photos[1].image[rows, columns][off_the_edge], colors[off_the_edge])


def test_depths_are_those_of_the_neighbors():
    photos = one_photo()
    camera = photos.cameras[1]
    forward = camera.forward.float()
    wall = camera.position.float() + 3.0 * forward
    across = torch.linalg.cross(forward, torch.tensor([0.3, 0.5, 0.8]))
    wall = wall + 0.05 * torch.arange(-2, 3)[:, None] * across / across.norm()
    photos = photos.having(points=wall, colors=torch.zeros(5, 3, dtype=torch.uint8))
    points, _ = filled(photos, count=50, spread=0.0)
    assert len(points) == 50
    assert_close((points - camera.position.float()) @ forward, torch.full((50,), 3.0))
    points, _ = filled(photos, count=50, spread=0.2)
    depths = ((points - camera.position.float()) @ forward / 3).log()
    assert 0.1 < depths.std() < 0.3


@pytest.mark.parametrize("neighbors", [1, 8])
def test_a_tree_finds_the_same_neighbors_as_all_distances(monkeypatch, neighbors):
    points, colors = filled(count=200, neighbors=neighbors)
    monkeypatch.setattr(filling, "_MOST_DISTANCES", 0)
    others, other_colors = filled(count=200, neighbors=neighbors)
    assert_close(points, others)
    assert torch.equal(colors, other_colors)


def test_held_out_photos_are_not_read():
    def read(index):
        assert index in PHOTOS.train
        return PHOTOS.read(index)

    points, colors = filled(PHOTOS.having(read=read), count=30)
    assert len(points) == len(colors) == 30


def test_masked_and_transparent_pixels_are_left_out():
    half = torch.full((48, 48), 255, dtype=torch.uint8)
    half[:, :24] = 0
    for part in ("mask", "alpha"):
        photos = one_photo(read=lambda index, part=part: PhotoPixels(image=PHOTOS[index].image, **{part: half}))
        places = projected(filled(photos, count=40, gap=0.02)[0], photos.cameras[1])
        assert len(places) > 5
        assert places[:, 0].min() > 24 - 1e-3


def test_the_same_seed_gives_the_same_points():
    one = filled(count=30)
    other = filled(count=30)
    third = filled(count=30, seed=1)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
    assert not torch.equal(one[0], third[0])


@pytest.mark.parametrize(("settings", "points"), [({"count": 0}, 30), ({"gap": 9.0}, 30), ({}, 0)])
def test_there_may_be_nothing_to_fill_or_nothing_known(settings, points):
    photos = PHOTOS.having(points=PHOTOS.points[:points], colors=PHOTOS.colors[:points])
    found = filled(photos, **settings)
    assert [tuple(part.shape) for part in found] == [(0, 3), (0, 3)]
    assert found[1].dtype == torch.uint8


@pytest.mark.parametrize("wrong", [{"count": -1}, {"gap": 0.0}, {"neighbors": 0}, {"spread": float("nan")}])
def test_settings_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValueError, match="gap filling"):
        Filling(**wrong)
