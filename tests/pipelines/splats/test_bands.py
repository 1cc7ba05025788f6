"""A picture in bands is the picture: its maps, its gradients, and all that growth reads of it."""

import pytest
import torch

from fieldwatch.pipelines.splats.bands import bands_of, most_bands, splat_in_bands
from fieldwatch.pipelines.splats.contribution import largest_share
from fieldwatch.pipelines.splats.meshing.surface import OpaqueGaussians
from fieldwatch.render import ScreenTally

MAPS = ("features", "alpha", "depth", "normals")


@pytest.fixture
def model(tiny_model):
    """Gaussians of many sizes whose colours change with the direction, before a grey background."""
    torch.manual_seed(0)
    with torch.no_grad():
        tiny_model.gaussians.rest.normal_(0, 0.3)
        tiny_model.gaussians.log_scales.add_(torch.randn_like(tiny_model.gaussians.log_scales))
    tiny_model.background = torch.full((3,), 0.5)
    return tiny_model


def drawn(model, view, bands, **options):
    """Draw a view, go backward through all of its maps; return the picture, all gradients, and a tally."""
    model.gaussians.zero_grad()
    model.bands = bands
    picture = model.draw(view, normals=True, **options)
    weights = torch.Generator().manual_seed(1)
    maps = [getattr(picture, name) for name in MAPS]
    torch.stack([(one * torch.rand(one.shape, generator=weights)).sum() for one in maps]).sum().backward()
    tally = ScreenTally(len(model.gaussians))
    tally.add(picture, view)
    return picture, {name: p.grad.clone() for name, p in model.gaussians.named_parameters()}, tally


@pytest.mark.parametrize(("depth", "magnitudes"), [("planar", True), ("centre", False)])
@pytest.mark.parametrize("antialiased", [False, True])
def test_maps_gradients_and_tally_are_those_of_the_whole_picture(model, tiny_scene, depth, magnitudes, antialiased):
    model.antialiased = antialiased
    view = tiny_scene.views[0].scaled(2.1)  # 84 rows: five tiles and a part of one
    whole, gradients, tally = drawn(model, view, 1, depth=depth, magnitudes=magnitudes)
    for count in (2, 100):
        picture, parts, counted = drawn(model, view, count, depth=depth, magnitudes=magnitudes)
        for name in MAPS:
            torch.testing.assert_close(getattr(picture, name), getattr(whole, name), rtol=1e-4, atol=1e-5)
        for name, gradient in gradients.items():
            assert (parts[name] - gradient).norm() < 1e-5 * gradient.norm(), name
        assert torch.equal(picture.ids, whole.ids)
        torch.testing.assert_close(picture.radii, whole.radii)
        torch.testing.assert_close(picture.means2d, whole.means2d)
        torch.testing.assert_close(counted.pulls, tally.pulls, rtol=1e-3, atol=1e-4 * float(tally.pulls.max()))
        assert torch.equal(counted.sightings, tally.sightings)


def test_a_gradient_of_one_map_alone_reaches_what_it_depends_on(model, tiny_scene):
    def slopes(bands):
        model.gaussians.zero_grad()
        model.bands = bands
        model.draw(tiny_scene.views[1].scaled(2)).alpha.sum().backward()
        return model.gaussians.opacity_logits.grad

    assert (slopes(3) - slopes(1)).norm() < 1e-5 * slopes(1).norm()


def test_bands_end_between_tiles_and_hold_as_much_work_each(tiny_scene):
    view = tiny_scene.views[0].scaled(5)  # 200 rows, 13 tiles
    nowhere = torch.zeros(0, 3)
    bands = bands_of(view, 4, nowhere)
    assert [band.rows for band in bands] == [slice(0, 64), slice(64, 112), slice(112, 160), slice(160, 200)]
    assert all(band.bounds == view.bounds and band.cy == view.cy - band.top for band in bands)
    assert len(bands_of(view, 1000, nowhere)) == most_bands([view, tiny_scene.views[1]]) == 13
    low = (view.position + view.rotation[2] + 0.4 * view.rotation[1]).repeat(50, 1)
    assert [band.rows for band in bands_of(view, 4, low)] == [slice(0, 112), slice(112, 200)]  # all in the last tile


def test_gaussians_that_are_not_finite_or_behind_are_no_work(tiny_scene):
    view = tiny_scene.views[0]
    wrong = torch.tensor([[torch.nan] * 3, [torch.inf] * 3, (view.position - view.rotation[2]).tolist()])
    assert [band.rows for band in bands_of(view, 2, wrong)] == [slice(0, 32), slice(32, 40)]


def test_nothing_is_drawn_in_bands_but_inside_of_the_block(model):
    assert model.bands == 1
    with pytest.raises(ValueError, match="given up"), model.in_parts(2):
        assert model.bands > 1
        raise ValueError("given up")
    assert model.bands == 1
    with model.in_parts(1):
        assert model.bands == 1


def test_shares_of_light_and_surfaces_for_meshes_are_those_of_whole_pictures(model, tiny_scene):
    views = [view.scaled(2) for view in tiny_scene.training_views]
    whole, opaque = largest_share(model, views), OpaqueGaussians.of(model)
    model.bands = 3
    torch.testing.assert_close(largest_share(model, views), whole, rtol=1e-4, atol=1e-4)
    in_bands = OpaqueGaussians.of(model)
    assert (opaque.bands, in_bands.bands) == (1, 3)
    one, other = opaque.draw(views[0]), in_bands.draw(views[0])
    assert one.median_depth is not None
    assert other.median_depth is not None
    same = one.median_ids == other.median_ids
    assert same.float().mean() > 0.99  # half the light may be gone one Gaussian sooner or later, by rounding
    torch.testing.assert_close(one.median_depth[same], other.median_depth[same], rtol=1e-4, atol=1e-4)


def test_one_band_is_the_call_itself(model, tiny_scene):
    scales, opacities = model.shapes()
    gaussians = (model.gaussians.means, model.gaussians.quaternions, scales, opacities)
    view = tiny_scene.views[0]
    one = splat_in_bands(gaussians, model.gaussians.harmonics, view, 1, degree=1, background=model.background)
    assert torch.equal(one.features, model.draw(view, degree=1).features)
