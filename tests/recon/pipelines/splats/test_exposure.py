"""Exposures: learned without drift, estimated for photos in between, and fitted without scoring a pixel by itself."""

import pytest
import torch
from torch.testing import assert_close

from fieldwatch.recon.pipelines.splats.exposure import (
    RIDGE,
    ExposureRates,
    Exposures,
    cross_fitted,
    exposed,
    fit_color,
    identity,
    make_exposure_optimizer,
)

NAMES = [f"{number:03d}.jpg" for number in (1, 2, 3, 5)]
DARK = torch.tensor([[0.8, 0.02, 0.0, 0.01], [0.0, 0.7, 0.03, 0.02], [0.01, 0.0, 0.75, 0.03]])
BRIGHT = torch.tensor([[1.2, 0.0, 0.0, -0.02], [0.0, 1.1, 0.0, 0.0], [0.0, 0.0, 1.15, 0.01]])


def picture(height=70, width=90, seed=0):
    return torch.rand(height, width, 3, generator=torch.Generator().manual_seed(seed))


def trained(steps=400):
    """Train on four photos of one image: dark, bright, and twice unchanged."""
    image = picture(12, 12)
    exposures = Exposures(NAMES)
    photos = [exposed(image, DARK), exposed(image, BRIGHT), image, image]
    rates = ExposureRates(first=2e-2, last=1e-3, decay_steps=steps)
    optimizer = make_exposure_optimizer(exposures, rates)
    for step in range(steps):
        index = step * 3 % 4
        rates.apply(optimizer, step, index)
        optimizer.zero_grad()
        (exposures(image, index) - photos[index]).square().mean().backward()
        optimizer.step()
    return exposures


def test_nothing_changes_at_the_start():
    image = picture()
    assert_close(Exposures(NAMES)(image, 3), image)


def test_the_mean_map_is_identity_whatever_was_learned():
    exposures = Exposures(NAMES)
    with torch.no_grad():
        exposures.raw.add_(torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(1)))
    assert_close(exposures.maps().mean(0), identity())
    assert_close(torch.stack([exposures.map_of(index) for index in range(4)]), exposures.maps())


def test_exposures_of_photos_are_learned_up_to_their_mean():
    maps = trained().maps()
    image = picture(12, 12)
    wanted = torch.stack([DARK, BRIGHT, identity(), identity()])
    wanted = wanted - wanted.mean(0) + identity()
    for found, right in zip(maps, wanted, strict=True):
        assert (exposed(image, found) - exposed(image, right)).abs().mean() < 0.04
    assert maps[0].diagonal().mean() < maps[2].diagonal().mean() < maps[1].diagonal().mean()


def test_one_step_moves_the_map_of_one_photo_only():
    exposures = Exposures(NAMES)
    rates = ExposureRates(decay_steps=10)
    image = picture(4, 4)
    optimizer = make_exposure_optimizer(exposures, rates)
    for index in (0, 2):
        before = exposures.raw.detach().clone()
        rates.apply(optimizer, 0, index)
        optimizer.zero_grad()
        exposures(image, index).square().mean().backward()
        optimizer.step()
        moved = (exposures.raw.detach() != before).flatten(1).any(1)
        assert moved.tolist() == [number == index for number in range(4)]


def test_the_rate_falls_evenly_in_its_logarithm_and_stays():
    rates = ExposureRates(first=1e-2, last=1e-4, decay_steps=100)
    assert [rates.at(step) for step in (0, 50, 100, 900)] == pytest.approx([1e-2, 1e-3, 1e-4, 1e-4])
    optimizer = make_exposure_optimizer(Exposures(NAMES), rates)
    assert rates.apply(optimizer, 50, 1) == optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("name", "neighbors"),
    [("000.jpg", [0]), ("002b.jpg", [1, 2]), ("004.jpg", [2, 3]), ("009.jpg", [3]), ("002.jpg", [0, 2])],
)
def test_a_photo_between_gets_the_mean_of_its_neighbors(name, neighbors):
    exposures = Exposures(NAMES)
    with torch.no_grad():
        exposures.raw.add_(torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(1)))
    assert_close(exposures.between(name), exposures.maps()[neighbors].mean(0))


def test_a_single_photo_has_the_mean_exposure():
    exposures = Exposures(["only.jpg"])
    assert_close(exposures.between("only.jpg"), identity())


def test_a_stored_state_gives_the_same_maps():
    exposures = trained(40)
    other = Exposures(NAMES)
    other.load_state_dict(exposures.state_dict())
    assert torch.equal(other.maps(), exposures.maps())
    with pytest.raises(RuntimeError, match="size mismatch"):
        Exposures(NAMES[:2]).load_state_dict(exposures.state_dict())


def test_a_map_is_found_again():
    image = picture()
    assert_close(fit_color(image, exposed(image, DARK)), DARK, atol=0.02, rtol=0)
    assert_close(fit_color(image, image), identity())


def test_a_flat_image_comes_close_to_its_photo_by_little_changes():
    image = torch.full((8, 8, 3), 0.5)
    photo = torch.full((8, 8, 3), 0.7)
    found = fit_color(image, photo)
    assert_close(exposed(image, found), photo, atol=1e-3, rtol=0)
    assert (found - identity()).abs().max() < 0.2


def test_black_and_nothing_leave_identity():
    black = torch.zeros(8, 8, 3)
    assert_close(fit_color(black, black), identity())
    assert_close(fit_color(picture(8, 8), black, torch.zeros(8, 8, dtype=torch.bool)), identity())


def test_masked_pixels_do_not_count():
    image = picture(8, 8)
    mask = torch.ones(8, 8, dtype=torch.bool)
    photo = exposed(image, DARK)
    wanted = fit_color(image[:6], photo[:6])
    photo[6:] = torch.nan
    mask[6:] = False
    assert_close(fit_color(image, photo, mask), wanted)


def test_the_fit_is_the_least_of_error_and_departure():
    image = picture(9, 7)
    photo = picture(9, 7, seed=1)

    def worth(found):
        return (exposed(image, found) - photo).square().sum(-1).mean() + RIDGE * (found - identity()).square().sum()

    best = fit_color(image, photo)
    for seed in range(8):
        step = 0.01 * torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        assert worth(best) < worth(best + step)


def test_cross_fitting_undoes_an_exposure():
    image = picture()
    photo = exposed(image, DARK)
    assert (cross_fitted(image, photo) - photo).square().mean() < 1e-2 * (image - photo).square().mean()


def test_no_pixel_is_changed_by_a_map_that_saw_it():
    image = picture()
    photo = picture(seed=1)
    before = cross_fitted(image, photo)
    changed = photo.clone()
    changed[5, 7] = 1 - changed[5, 7]
    moved = (cross_fitted(image, changed) != before).any(-1)
    assert not moved[:32, :32].any()
    assert moved[:32, 32:64].any()
    assert not moved[32:64, 32:64].any()


def test_cross_fitting_gains_nothing_where_there_is_nothing_to_fit():
    image = torch.full((64, 64, 3), 0.5)
    noise = image + 0.1 * torch.randn(64, 64, 3, generator=torch.Generator().manual_seed(2))
    assert (cross_fitted(image, noise) - noise).square().mean() > 0.99 * (image - noise).square().mean()


@pytest.mark.parametrize("names", [[], ["b", "a"], ["a", "a"]])
def test_names_that_have_no_order_are_refused(names):
    with pytest.raises(ValueError, match="ascending names"):
        Exposures(names)


@pytest.mark.usefixtures("unchecked")
def test_sizes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"image of shape \(.*photo of shape \(.*mask of"):
        fit_color(picture(4, 4), picture(4, 5))
    with pytest.raises(ValueError, match=r"image of shape \(.*photo of shape \(.*mask of"):
        fit_color(picture(4, 4), picture(4, 4), torch.ones(4, 5, dtype=torch.bool))


def test_what_can_not_be_fitted_is_refused():
    with pytest.raises(ValueError, match="NaN or infinite"):
        fit_color(picture(4, 4), torch.full((4, 4, 3), torch.nan))
    with pytest.raises(ValueError, match="photo 4"):
        Exposures(NAMES).map_of(4)
    with pytest.raises(ValueError, match="above 0"):
        ExposureRates(first=0.0)
