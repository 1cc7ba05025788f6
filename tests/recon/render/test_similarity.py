"""L1 and SSIM: the fused kernel is the torch form, and the torch form is what the paper says."""

import math

import pytest
import torch

from fieldwatch.recon.losses import ssim
from fieldwatch.recon.render import image_similarity, image_similarity_reference, native_available


def images(height, width, channels, dtype=torch.float32):
    chance = torch.Generator().manual_seed(height * width + channels)
    photo = torch.rand(height, width, channels, generator=chance).to(dtype)
    noise = torch.randn(height, width, channels, generator=chance).to(dtype)
    return (photo + 0.2 * noise).requires_grad_(), photo


def by_hand(image, photo):
    """SSIM of one pixel after the other, straight from the definition."""
    height, width, channels = image.shape
    taps = torch.tensor([math.exp(-((i - 5) ** 2) / 4.5) for i in range(11)], dtype=image.dtype)
    window = torch.outer(taps, taps) / taps.sum() ** 2
    pad = torch.nn.functional.pad
    x, y = (pad(part.permute(2, 0, 1), (5, 5, 5, 5)) for part in (image, photo))
    values = []
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                a = x[c, i : i + 11, j : j + 11]
                b = y[c, i : i + 11, j : j + 11]
                ma = (window * a).sum()
                mb = (window * b).sum()
                va = (window * a * a).sum() - ma**2
                vb = (window * b * b).sum() - mb**2
                cov = (window * a * b).sum() - ma * mb
                top = (2 * ma * mb + 0.01**2) * (2 * cov + 0.03**2)
                values.append(top / ((ma**2 + mb**2 + 0.01**2) * (va + vb + 0.03**2)))
    return torch.stack(values).mean()


def test_the_torch_form_is_the_definition():
    image, photo = images(9, 14, 2, torch.float64)
    found = image_similarity_reference(image, photo)
    torch.testing.assert_close(found.ssim, by_hand(image, photo))
    torch.testing.assert_close(found.l1, (image - photo).abs().mean())


def test_inside_the_border_it_is_the_ssim_of_the_losses():
    image, photo = images(24, 30, 3, torch.float64)
    x, y = (part.permute(2, 0, 1)[None] for part in (image, photo))
    wide = [torch.nn.functional.pad(part, (5, 5, 5, 5)) for part in (x, y)]
    torch.testing.assert_close(image_similarity_reference(image, photo).ssim, ssim(*wide)[0])


@pytest.mark.parametrize("size", [(1, 1, 3), (5, 4, 1), (11, 300, 3), (64, 64, 3), (37, 61, 7)])
def test_native_is_the_reference_forward_and_backward(size):
    if not native_available()[0]:
        pytest.skip(native_available()[1])
    image, photo = images(*size)
    exact = image.detach().double().requires_grad_()
    exact_photo = photo.double()
    ours = image_similarity(image, photo)
    wanted = image_similarity_reference(exact, exact_photo)
    for found, right in zip(ours, wanted, strict=True):
        assert found.item() == pytest.approx(right.item(), abs=1e-5)
    (0.8 * ours.l1 - 0.2 * ours.ssim).backward()
    (0.8 * wanted.l1 - 0.2 * wanted.ssim).backward()
    assert (image.grad - exact.grad).abs().max() < 1e-5 * exact.grad.abs().max()


@pytest.mark.parametrize("part", [0, 1])
def test_each_part_has_its_own_gradient(part):
    image, photo = images(16, 16, 3)
    exact = image.detach().double().requires_grad_()
    image_similarity(image, photo)[part].backward()
    image_similarity_reference(exact, photo.double())[part].backward()
    torch.testing.assert_close(image.grad.double(), exact.grad, rtol=1e-4, atol=1e-7)


def test_the_same_bits_for_any_number_of_threads():
    image, photo = images(50, 70, 3)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        image.grad = None
        found = image_similarity(image, photo)
        (found.l1 + found.ssim).backward()
        results.append((found.l1.detach(), found.ssim.detach(), image.grad))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_equal_images_are_perfect():
    photo = images(20, 20, 3)[1]
    found = image_similarity(photo.clone(), photo)
    assert found.l1 == 0
    assert found.ssim.item() == pytest.approx(1, abs=1e-6)


def test_one_bad_pixel_of_a_photo_is_seen():
    image, photo = images(40, 40, 3)
    photo[7, 8, 1] = math.nan
    found = image_similarity(image, photo)
    assert found.l1.isnan()
    assert found.ssim.isnan()


def test_double_precision_takes_the_reference():
    image, photo = images(12, 12, 3, torch.float64)
    assert image_similarity(image, photo).ssim.dtype == torch.float64


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"\(4, 4, 3\).*shape \(4, 5, 3\)"):
        image_similarity(torch.zeros(4, 4, 3), torch.zeros(4, 5, 3))


def test_a_photo_with_a_gradient_is_refused():
    with pytest.raises(ValueError, match=r"shape \(4, 4, 3\).*requires a gradient"):
        image_similarity(torch.zeros(4, 4, 3), torch.zeros(4, 4, 3, requires_grad=True))
