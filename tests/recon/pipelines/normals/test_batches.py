"""Rays of a step: sampled in the right regions, weighted for the whole image, identical after a resume."""

import pytest
import torch

from fieldwatch.recon.data import NormalView, ring_cameras
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.normals.batches import RaySource
from fieldwatch.recon.pipelines.normals.config import RayOptions
from fieldwatch.recon.pipelines.normals.scene import Pixels


def view_of(mask, name="0"):
    height, width = mask.shape
    pose = ring_cameras(1, 24)[0].world_from_camera
    lens = {"fx": 30.0, "fy": 30.0, "cx": width / 2, "cy": height / 2}
    camera = Camera(name=name, width=width, height=height, **lens, world_from_camera=pose)
    normals = torch.zeros(height, width, 3)
    normals[mask] = torch.tensor([0.0, 0.0, -1.0])
    return NormalView(name=name, camera=camera, normals=normals, mask=mask)


def pixels_of(*masks):
    return Pixels.of([view_of(mask, str(i)) for i, mask in enumerate(masks)], torch.device("cpu"))


def square(height=30, width=40, corner=(10, 15), size=8):
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[corner[0] : corner[0] + size, corner[1] : corner[1] + size] = True
    return mask


def all_of(batches):
    names = ("view", "pixel", "weights", "mask")
    return {name: torch.cat([getattr(batch, name) for batch in batches]) for name in names}


def test_every_region_gets_its_share_and_pixels_lie_in_it():
    pixels = pixels_of(square(), square(50, 20, (3, 3), 5))
    (batch,) = RaySource(pixels, RayOptions(inside=0.6, views_per_graph=2)).draw(400)
    assert len(batch) == 400
    assert batch.views.tolist() == [0, 1]
    for number, regions in enumerate(pixels.regions):
        own = batch.pixel[batch.view == number]
        parts = own.split([120, 60, 20])  # 0.6, and three quarters of the rest
        for part, region in zip(parts, regions, strict=True):
            assert bool(torch.isin(part, region).all())
    at = pixels.offsets[batch.view] + batch.pixel
    assert torch.equal(batch.mask, pixels.mask[at])
    assert torch.equal(batch.known, pixels.known[at])
    assert torch.equal(batch.normals, pixels.normals[at])
    assert torch.equal(batch.directions, pixels.directions(batch.view, batch.pixel))


@pytest.mark.parametrize("inside", [0.3, 0.7])
def test_the_weighted_sum_is_an_unbiased_estimate_of_the_pictures_mean(inside):
    pixels = pixels_of(square())
    picture = torch.randn(30 * 40) + 2.0 * pixels.mask
    source = RaySource(pixels, RayOptions(inside=inside))
    sums = []
    for _ in range(50):
        (batch,) = source.draw(400)
        assert float(batch.weights.mean()) == pytest.approx(1, abs=1e-6)
        sums.append((batch.weights * picture[batch.pixel]).mean())
    found = torch.stack(sums)
    wanted = float(picture.mean())
    assert float(found.mean()) == pytest.approx(wanted, abs=4 * float(found.std()) / 50**0.5)
    assert float(found.std()) / 50**0.5 < 0.05
    (batch,) = source.draw(400)
    unweighted = float(picture[batch.pixel].mean())
    assert abs(unweighted - wanted) > 0.3


def test_the_same_state_draws_the_same():
    pixels = pixels_of(square(), square(50, 20, (3, 3), 5), square())
    options = RayOptions(views_per_step=2)
    source = RaySource(pixels, options, seed=3)
    other = RaySource(pixels, options, seed=9)
    source.draw(60)
    state = source.state_dict()
    first = all_of(source.draw(60))
    shifts = source.jitter(5)
    noise = source.noise(2, 3)
    other.load_state_dict(state)
    second = all_of(other.draw(60))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(other.jitter(5), shifts)
    assert torch.equal(other.noise(2, 3), noise)
    assert shifts.shape == (5,)
    assert noise.shape == (2, 3)
    again = all_of(RaySource(pixels, options, seed=3).draw(60))
    assert not torch.equal(again["pixel"], first["pixel"])


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    source = RaySource(pixels_of(square()), RayOptions())
    source.draw(30)
    source.jitter(3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("patch", [3, 5])
def test_patches_lie_in_the_picture_row_by_row(patch):
    mask = square(9, 12, (0, 0), 4)  # in the corner: patches around its pixels would leave the picture
    source = RaySource(pixels_of(mask), RayOptions(), patch=patch)
    (batch,) = source.draw(40 * patch**2)
    assert len(batch) == 40 * patch**2
    assert batch.patch == patch
    rows = (batch.pixel // 12).view(-1, patch, patch)
    columns = (batch.pixel % 12).view(-1, patch, patch)
    steps = torch.arange(patch)
    assert torch.equal(rows - rows[:, :1, :1], steps[:, None].expand_as(rows))
    assert torch.equal(columns - columns[:, :1, :1], steps.expand_as(columns))
    assert int(rows.max()) < 9
    assert int(columns.max()) < 12
    assert bool((batch.weights.view(-1, patch**2) == batch.weights.view(-1, patch**2)[:, :1]).all())


def test_rays_are_shared_among_the_views_or_given_to_each():
    pixels = pixels_of(*[square()] * 4)
    assert [len(batch) for batch in RaySource(pixels, RayOptions()).draw(48)] == [12] * 4
    each = RaySource(pixels, RayOptions(rays_per_view=20, views_per_step=3)).draw(48)
    assert [len(batch) for batch in each] == [20] * 3
    few = RaySource(pixels, RayOptions(), patch=3).draw(4)
    assert [len(batch) for batch in few] == [9] * 4


@pytest.mark.parametrize(
    ("options", "patch", "each"),
    [
        (RayOptions(rays_per_view=20), 1, 7),
        (RayOptions(rays_per_view=5), 1, 5),
        (RayOptions(), 1, 7),
        (RayOptions(rays_per_view=40), 3, 9),
    ],
)
def test_rays_per_view_are_limited(options, patch, each):
    source = RaySource(pixels_of(*[square()] * 4), options, patch=patch)
    assert [len(batch) for batch in source.draw(48, 9 if patch == 3 else 7)] == [each] * 4


def test_a_limit_that_does_not_bind_draws_the_same_rays():
    one, other = (RaySource(pixels_of(*[square()] * 4), RayOptions(), seed=5) for _ in range(2))
    for batch, same in zip(one.draw(48), other.draw(48, 12), strict=True):
        assert torch.equal(batch.pixel, same.pixel)


def test_views_come_in_turns_and_in_groups():
    pixels = pixels_of(*[square()] * 5)
    grouped = RaySource(pixels, RayOptions(views_per_graph=2)).draw(50)
    assert [batch.views.tolist() for batch in grouped] == [[0, 1], [2, 3], [4]]
    source = RaySource(pixels, RayOptions(views_per_step=2, views_per_graph=2))
    drawn = [source.draw(20)[0].views.tolist() for _ in range(40)]
    assert all(len(set(pair)) == 2 and pair == sorted(pair) for pair in drawn)
    assert {view for pair in drawn for view in pair} == set(range(5))
    more = RaySource(pixels, RayOptions(views_per_step=9)).draw(50)
    assert [batch.views.tolist() for batch in more] == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize("full", [True, False])
def test_a_mask_that_fills_the_picture_or_is_one_pixel(full):
    mask = torch.full((10, 10), full)
    mask[4, 6] = True
    (batch,) = RaySource(pixels_of(mask), RayOptions()).draw(100)
    assert len(batch) == 100
    if full:
        assert bool(batch.mask.all())
        assert batch.weights.tolist() == pytest.approx([1] * 100)
    else:
        assert int(batch.mask.sum()) == 70
        assert set(batch.pixel[batch.mask].tolist()) == {46}
        assert float(batch.weights[batch.mask].sum()) == pytest.approx(1)  # of 100 pixels


def test_a_single_ray_is_one_in_the_mask():
    (batch,) = RaySource(pixels_of(square()), RayOptions()).draw(1)
    assert batch.mask.tolist() == [True]


def test_the_first_rays_of_a_batch():
    (batch,) = RaySource(pixels_of(square()), RayOptions(), patch=3).draw(90)
    first = batch.first(7)
    assert (len(first), first.patch) == (7, 3)
    assert torch.equal(first.pixel, batch.pixel[:7])
    assert torch.equal(first.weights, batch.weights[:7])
    assert len(batch.first(0)) == 0


@pytest.mark.parametrize(("patch", "parts", "views"), [(1, 2, 4), (1, 4, 4), (1, 8, 4), (3, 5, 2), (3, 64, 1)])
def test_a_batch_in_parts_has_every_ray_once_and_whole_patches(patch, parts, views):
    source = RaySource(pixels_of(*[square()] * 4), RayOptions(views_per_graph=views), patch=patch)
    batch = source.draw(400)[0]
    pieces = batch.split(parts)
    found = torch.cat([torch.stack([piece.view, piece.pixel, piece.mask.long()]) for piece in pieces], 1)
    wanted = torch.stack([batch.view, batch.pixel, batch.mask.long()])
    assert sorted(found.T.tolist()) == sorted(wanted.T.tolist())
    assert all(len(piece) and len(piece) % patch**2 == 0 and piece.patch == patch for piece in pieces)
    assert len(pieces) == min(parts if parts <= views else -(-parts // views) * views, len(batch) // patch**2)
    if parts > len(batch.views) and patch == 1:  # every part sees the object and what is around it
        assert all(0 < float(piece.mask.float().mean()) < 1 for piece in pieces)


def test_one_part_is_the_batch_itself():
    batch = RaySource(pixels_of(square()), RayOptions()).draw(40)[0]
    assert batch.split(1) == [batch]
