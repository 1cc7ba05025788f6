"""SSIM and MS-SSIM against the definition, and for images smaller than the usual window."""

import numpy as np
import pytest
import torch

from fieldwatch.recon.losses import ms_ssim, ssim
from fieldwatch.recon.losses.structural import SCALE_WEIGHTS, ms_ssim_window


def textbook_ssim(a, b, size=11, sigma=1.5):
    """Compute SSIM from five direct means per window in float64."""
    line = np.exp(-((np.arange(size) - size // 2) ** 2) / (2 * sigma**2))
    window = np.outer(line, line) / line.sum() ** 2
    values = []
    for y in range(a.shape[0] - size + 1):
        for x in range(a.shape[1] - size + 1):
            p = a[y : y + size, x : x + size]
            q = b[y : y + size, x : x + size]
            mp = (window * p).sum()
            mq = (window * q).sum()
            vp = (window * (p - mp) ** 2).sum()
            vq = (window * (q - mq) ** 2).sum()
            cov = (window * (p - mp) * (q - mq)).sum()
            values.append((2 * mp * mq + 1e-4) * (2 * cov + 9e-4) / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return np.mean(values)


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(3)
    smooth = torch.nn.functional.interpolate(torch.rand(2, 3, 6, 8, generator=generator), (40, 44), mode="bilinear")
    return smooth, (smooth + 0.05 * torch.randn(smooth.shape, generator=generator)).clamp(0, 1)


def test_ssim_is_the_textbook_value_per_image(pair):
    a, b = pair
    expected = [
        np.mean([textbook_ssim(p, q) for p, q in zip(x, y, strict=True)])
        for x, y in zip(a.double().numpy(), b.double().numpy(), strict=True)
    ]
    np.testing.assert_allclose(ssim(a.double(), b.double()), expected, rtol=1e-10)
    np.testing.assert_allclose(ssim(a, b), expected, atol=2e-5)


def test_ssim_is_one_for_equal_images_and_low_for_unrelated_ones(pair):
    a, b = pair
    assert ssim(a, a) == pytest.approx(torch.ones(2))
    assert (ssim(a, b) < 0.99).all()
    assert (ssim(a, 1 - a) < 0.2).all()


def test_ms_ssim_with_one_level_is_ssim(pair):
    a, b = pair
    assert ms_ssim(a, b, levels=1) == pytest.approx(ssim(a, b), abs=2e-3)  # mean per channel first


def test_ms_ssim_of_a_large_image_uses_the_standard_window_and_weights():
    assert ms_ssim_window(161) == 11
    assert sum(SCALE_WEIGHTS) == pytest.approx(1.0, abs=1e-4)
    generator = torch.Generator().manual_seed(5)
    a = torch.rand(1, 1, 176, 176, generator=generator).double()
    b = (a + 0.1 * torch.randn(a.shape, generator=generator)).clamp(0, 1)
    expected = 1.0
    x = a
    y = b
    for level, weight in enumerate(SCALE_WEIGHTS):
        whole, contrast = _parts(x, y)
        expected *= (whole if level == 4 else contrast) ** weight
        x, y = torch.nn.functional.avg_pool2d(x, 2), torch.nn.functional.avg_pool2d(y, 2)
    assert ms_ssim(a, b).item() == pytest.approx(expected, abs=1e-4)


def _parts(a, b):
    line = torch.exp(-((torch.arange(11.0).double() - 5) ** 2) / 4.5)
    window = (torch.outer(line, line) / line.sum() ** 2)[None, None]
    mean = lambda x: torch.nn.functional.conv2d(x, window)  # noqa: E731
    ma = mean(a)
    mb = mean(b)
    contrast = (2 * (mean(a * b) - ma * mb) + 9e-4) / (mean(a * a) - ma**2 + mean(b * b) - mb**2 + 9e-4)
    luminance = (2 * ma * mb + 1e-4) / (ma**2 + mb**2 + 1e-4)
    return (luminance * contrast).mean().item(), contrast.mean().item()


@pytest.mark.parametrize(
    ("side", "window"), [(161, 11), (160, 9), (129, 9), (128, 7), (96, 5), (80, 5), (65, 5), (64, 3), (33, 3)]
)
def test_the_window_shrinks_with_the_patch(side, window):
    assert ms_ssim_window(side) == window
    image = torch.rand(1, 3, side, side + 7, generator=torch.Generator().manual_seed(side))
    assert ms_ssim(image, image) == pytest.approx(torch.ones(1), abs=1e-4)


def test_small_images_say_how_many_levels_fit():
    image = torch.zeros(1, 3, 20, 60)
    with pytest.raises(ValueError, match=r"5 levels.*33 pixels.* 20: pass levels=4"):
        ms_ssim(image, image)
    assert ms_ssim(image, image, levels=4) == pytest.approx(torch.ones(1))
    with pytest.raises(ValueError, match="got 2: use larger patches"):
        ms_ssim(image[:, :, :2], image[:, :, :2])
    with pytest.raises(ValueError, match="in 1 to 5, got 6"):
        ms_ssim(image, image, levels=6)
    with pytest.raises(ValueError, match=r"11 pixels at 5 levels.*40 x 60 pixels.* 3"):
        ms_ssim(torch.zeros(1, 3, 40, 60), torch.zeros(1, 3, 40, 60), window=11)
    with pytest.raises(ValueError, match=r"11 pixels.*8 x 60 pixels"):
        ssim(image[:, :, :8], image[:, :, :8])


@pytest.mark.usefixtures("unchecked")
def test_images_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="the same shape"):
        ssim(torch.zeros(1, 3, 20, 20), torch.zeros(1, 3, 20, 21))
    with pytest.raises(ValueError, match="the same shape"):
        ms_ssim(torch.zeros(3, 20, 20), torch.zeros(3, 20, 20))


def test_ms_ssim_of_opposite_images_has_finite_gradients():
    """For a negative image the contrast terms are negative, where fractional powers are undefined."""
    target = torch.rand(1, 3, 40, 40, generator=torch.Generator().manual_seed(7))
    prediction = (1 - target).requires_grad_()
    value = ms_ssim(prediction, target)
    value.sum().backward()
    assert value.isfinite().all()
    assert prediction.grad.isfinite().all()


def test_gradients_agree_with_finite_differences():
    generator = torch.Generator().manual_seed(9)
    a, b = torch.rand(2, 1, 1, 14, 15, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: ssim(x, b), (a.requires_grad_(),))
    big, other = torch.rand(2, 1, 1, 34, 34, generator=generator, dtype=torch.float64)
    other = 0.7 * big + 0.3 * other  # positive contrast at every scale
    assert torch.autograd.gradcheck(lambda x: ms_ssim(x, other), (big.requires_grad_(),), fast_mode=True)
