"""Rendering in bands equals rendering in one piece: maps, gradients, and the input of densification."""

import pytest
import torch

from fieldwatch.recon.pipelines.splats.bands import BANDS, band_count, bands_of, max_bands, render_in_bands, split_views
from fieldwatch.recon.pipelines.splats.contribution import contributions
from fieldwatch.recon.pipelines.splats.meshing.surface import OpaqueGaussians
from fieldwatch.recon.pipelines.splats.scene import Batch
from fieldwatch.recon.render import DensificationStatistics

MAPS = ("features", "alpha", "depth", "normals")


@pytest.fixture
def model(tiny_model):
    """Gaussians of many sizes with view-dependent colors, in front of a gray background."""
    torch.manual_seed(0)
    with torch.no_grad():
        tiny_model.gaussians.rest.normal_(0, 0.3)
        tiny_model.gaussians.log_scales.add_(torch.randn_like(tiny_model.gaussians.log_scales))
    tiny_model.background = torch.full((3,), 0.5)
    return tiny_model


def rendered_with_gradients(model, view, bands, **options):
    """Render a view, backpropagate through all of its maps; return the image, all gradients, and the statistics."""
    model.gaussians.zero_grad()
    picture = model.render(view, normals=True, bands=bands, **options)
    weights = torch.Generator().manual_seed(1)
    maps = [getattr(picture, name) for name in MAPS]
    torch.stack([(one * torch.rand(one.shape, generator=weights)).sum() for one in maps]).sum().backward()
    statistics = DensificationStatistics(len(model.gaussians))
    statistics.add(picture, view)
    return picture, {name: p.grad.clone() for name, p in model.gaussians.named_parameters()}, statistics


@pytest.mark.parametrize(("depth", "absgrad"), [("planar", True), ("center", False)])
@pytest.mark.parametrize("antialiased", [False, True])
def test_maps_gradients_and_statistics_are_those_of_the_whole_picture(model, tiny_scene, depth, absgrad, antialiased):
    model.antialiased = antialiased
    view = tiny_scene.views[0].scaled(2.1)  # 84 rows: five tiles and a part of one
    whole, gradients, statistics = rendered_with_gradients(model, view, 1, depth=depth, absgrad=absgrad)
    for count in (2, 100):
        picture, parts, counted = rendered_with_gradients(model, view, count, depth=depth, absgrad=absgrad)
        for name in MAPS:
            torch.testing.assert_close(getattr(picture, name), getattr(whole, name), rtol=1e-4, atol=1e-5)
        for name, gradient in gradients.items():
            assert (parts[name] - gradient).norm() < 1e-5 * gradient.norm(), name
        assert torch.equal(picture.ids, whole.ids)
        torch.testing.assert_close(picture.radii, whole.radii)
        torch.testing.assert_close(picture.means2d, whole.means2d)
        torch.testing.assert_close(
            counted.gradients, statistics.gradients, rtol=1e-3, atol=1e-4 * float(statistics.gradients.max())
        )
        assert torch.equal(counted.counts, statistics.counts)


def test_a_gradient_of_one_map_alone_reaches_what_it_depends_on(model, tiny_scene):
    def slopes(bands):
        model.gaussians.zero_grad()
        model.render(tiny_scene.views[1].scaled(2), bands=bands).alpha.sum().backward()
        return model.gaussians.opacity_logits.grad

    assert (slopes(3) - slopes(1)).norm() < 1e-5 * slopes(1).norm()


def test_bands_end_between_tiles_and_hold_as_much_work_each(tiny_scene):
    view = tiny_scene.views[0].scaled(5)  # 200 rows, 13 tiles
    nowhere = torch.zeros(0, 3)
    bands = bands_of(view, 4, nowhere)
    assert [band.rows for band in bands] == [slice(0, 64), slice(64, 112), slice(112, 160), slice(160, 200)]
    assert all(band.bounds == view.bounds and band.cy == view.cy - band.top for band in bands)
    assert len(bands_of(view, 1000, nowhere)) == max_bands([view, tiny_scene.views[1]]) == 13
    low = (view.position + view.rotation[2] + 0.4 * view.rotation[1]).repeat(50, 1)
    assert [band.rows for band in bands_of(view, 4, low)] == [slice(0, 112), slice(112, 200)]  # all in the last tile


def test_gaussians_that_are_not_finite_or_behind_are_no_work(tiny_scene):
    view = tiny_scene.views[0]
    wrong = torch.tensor([[torch.nan] * 3, [torch.inf] * 3, (view.position - view.rotation[2]).tolist()])
    assert [band.rows for band in bands_of(view, 2, wrong)] == [slice(0, 32), slice(32, 40)]


def test_more_micro_batches_are_more_bands_and_one_is_the_whole_picture():
    assert [band_count(count) for count in (1, 2, 4)] == [1, 2 * BANDS, 4 * BANDS]


def test_views_of_a_batch_come_one_by_one_each_with_its_share_and_its_own_random_numbers(tiny_scene):
    views = tuple(tiny_scene.photo_view(index) for index in tiny_scene.photos.train[:3])
    names = tuple(view.name for view in views)
    whole = Batch(train_indices=(0, 1, 2), names=names, first=0, views=views)
    last = Batch(train_indices=(0, 1, 2), names=names, first=2, views=views[2:])

    def pieces(batch, views):
        torch.manual_seed(5)
        return list(split_views(batch, 2, views=views, device=torch.device("cpu")))

    assert [(piece.view.name, piece.bands, share) for piece, share in pieces(whole, 3)] == [
        (name, 2 * BANDS, 1 / 3) for name in names
    ]
    ((alone, share),) = pieces(last, 3)
    assert share == 1.0
    draws = [float(torch.rand(1, generator=piece.generator)) for piece, _ in pieces(whole, 3)]
    assert float(torch.rand(1, generator=alone.generator)) == draws[2] != draws[1]
    before = torch.get_rng_state()
    torch.manual_seed(5)
    seeded = torch.get_rng_state()
    assert pieces(last, 1)[0][0].generator is None
    assert torch.equal(torch.get_rng_state(), seeded)
    torch.set_rng_state(before)


def test_shares_of_light_and_surfaces_for_meshes_are_those_of_whole_pictures(model, tiny_scene):
    views = [view.scaled(2) for view in tiny_scene.training_views]
    opaque = OpaqueGaussians.of(model)
    for view in views:
        torch.testing.assert_close(contributions(model, view, 3), contributions(model, view), rtol=1e-4, atol=1e-4)
    in_bands = OpaqueGaussians.of(model, bands=3)
    assert (opaque.bands, in_bands.bands) == (1, 3)
    one = opaque.render(views[0])
    other = in_bands.render(views[0])
    assert one.median_depth is not None
    assert other.median_depth is not None
    same = one.median_ids == other.median_ids
    assert same.float().mean() > 0.99  # by rounding, the median may be one Gaussian earlier or later
    torch.testing.assert_close(one.median_depth[same], other.median_depth[same], rtol=1e-4, atol=1e-4)


def test_one_band_is_the_call_itself(model, tiny_scene):
    scales, opacities = model.shapes()
    gaussians = (model.gaussians.means, model.gaussians.quaternions, scales, opacities)
    view = tiny_scene.views[0]
    one = render_in_bands(gaussians, model.gaussians.harmonics, view, 1, sh_degree=1, background=model.background)
    assert torch.equal(one.features, model.render(view, degree=1).features)
