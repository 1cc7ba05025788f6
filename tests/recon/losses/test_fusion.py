"""Named pixel losses: weights, and the error for unknown names."""

import pytest
import torch

from fieldwatch.recon.losses import ms_ssim, pixel_loss, ssim
from fieldwatch.recon.losses.fusion import PIXEL_LOSSES, frequency_error
from fieldwatch.recon.losses.pixel import l1, l2

# name: weights of L1, L2, 1 - SSIM, 1 - MS-SSIM, from the table of the original
TABLE = {
    "L1": (1, 0, 0, 0),
    "L2": (0, 1, 0, 0),
    "SSIM": (0, 0, 1, 0),
    "Fusion1": (0, 0.3, 0.7, 0),
    "Fusion2": (0.3, 0, 0.7, 0),
    "Fusion3": (0, 0.5, 0.5, 0),
    "Fusion4": (0.5, 0, 0.5, 0),
    "Fusion5": (0, 0.7, 0.3, 0),
    "Fusion6": (0.7, 0, 0.3, 0),
    "Fusion7": (0.3, 0.7, 0, 0),
    "Fusion8": (0.5, 0.5, 0, 0),
    "Fusion9": (0.9, 0, 0.1, 0),
    "Fusion10": (0.7, 0, 0, 0.3),
    "Fusion11": (0.9, 0, 0, 0.1),
    "Fusion12": (0.8, 0, 0, 0.2),
}


@pytest.fixture(scope="module")
def pair():
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(2, 3, 48, 64, generator=generator)
    return a, (a + 0.1 * torch.randn(a.shape, generator=generator)).clamp(0, 1)


@pytest.mark.parametrize("name", TABLE)
def test_each_named_loss_is_its_weighted_sum(name, pair):
    a, b = pair
    errors = (l1(a, b), l2(a, b), 1 - ssim(a, b).mean(), 1 - ms_ssim(a, b).mean())
    expected = sum(weight * error for weight, error in zip(TABLE[name], errors, strict=True))
    assert pixel_loss(name)(a, b) == pytest.approx(float(expected), rel=1e-6)


def test_frequency_loss_is_sixty_fusion10_plus_the_spectrum(pair):
    a, b = pair
    fa = torch.fft.fft2(a)
    fb = torch.fft.fft2(b)
    spectrum = torch.stack([(fa.real - fb.real).abs(), (fa.imag - fb.imag).abs()]).mean()
    assert frequency_error(a, b) == pytest.approx(float(spectrum), rel=1e-5)
    assert pixel_loss("Fusion10_freq")(a, b) == pytest.approx(float(60 * pixel_loss("Fusion10")(a, b) + spectrum))


def test_no_name_is_missing_and_none_is_extra():
    assert set(PIXEL_LOSSES) == {*TABLE, "Fusion10_freq"}


@pytest.mark.parametrize("name", PIXEL_LOSSES)
def test_perfect_predictions_cost_nothing_and_every_loss_has_finite_gradients(name):
    target = torch.rand(1, 3, 40, 40, generator=torch.Generator().manual_seed(1))
    assert pixel_loss(name)(target, target) == pytest.approx(0, abs=1e-5)
    prediction = (1 - target).requires_grad_()
    pixel_loss(name)(prediction, target).backward()
    assert prediction.grad.isfinite().all()
    assert prediction.grad.abs().sum() > 0


def test_an_unknown_name_lists_all_and_names_the_nearest():
    with pytest.raises(ValueError, match=r"L1, L2, SSIM, .*'fusion6'.* Fusion6\?"):
        pixel_loss("fusion6")
    with pytest.raises(ValueError, match=r"--loss .* got 'perceptual'$"):
        pixel_loss("perceptual")
