"""SSIM and Adam by our own GPU kernels: values of torch's operations, in any order of threads, without a wait."""

import copy
import math

import pytest
import torch

from fake_cuda.emulator import FORWARD, REVERSE, SHUFFLED
from fieldwatch.recon.render import VisibleAdam, image_similarity
from fieldwatch.recon.render.gpu import MOST_LISTED
from fieldwatch.recon.render.similarity import image_similarity_reference
from fieldwatch.recon.render.splats import photo_loss

pytestmark = pytest.mark.pretended


def compared(compare, image, photo):
    leaf = image.clone().requires_grad_()
    l1, ssim = compare(leaf, photo)
    (gradient,) = torch.autograd.grad(0.8 * l1 - 0.2 * ssim, leaf)
    return [l1.detach().cpu(), ssim.detach().cpu(), gradient.cpu()]


def loss_and_gradient(image, photo):
    leaf = image.clone().requires_grad_()
    found = photo_loss(leaf, photo, 0.3)
    (gradient,) = torch.autograd.grad(2 * found.loss, leaf)
    return [found.loss.detach().cpu(), gradient.cpu()], found.psnr


@pytest.mark.parametrize("size", [(1, 1), (16, 16), (5, 40), (33, 17)])
def test_similarity_is_that_of_the_reference_in_every_order(fake_cuda, size):
    chance = torch.Generator().manual_seed(0)
    photo = torch.rand(*size, 3, generator=chance)
    image = (photo + 0.2 * torch.randn(*size, 3, generator=chance)).clamp(0, 1)
    image[0, 0] = photo[0, 0]  # equal pixels have no slope of the absolute difference
    wanted = compared(image_similarity_reference, image, photo)
    several = []
    for order in (FORWARD, REVERSE, SHUFFLED):
        fake_cuda.emulator.order = order
        several.append(compared(image_similarity, image.to("cuda"), photo.to("cuda")))
    for found, value in zip(several[0], wanted, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)
    for other in several[1:]:
        assert all(torch.equal(a, b) for a, b in zip(several[0], other, strict=True))


@pytest.mark.parametrize("size", [(1, 1), (5, 40), (90, 70)])
def test_the_photo_loss_is_that_of_a_cpu_in_every_order(fake_cuda, size):
    chance = torch.Generator().manual_seed(1)
    photo = torch.rand(*size, 3, generator=chance)
    image = (photo + 0.2 * torch.randn(*size, 3, generator=chance)).clamp(0, 1)
    wanted, _ = loss_and_gradient(image, photo)
    several = []
    for order in (FORWARD, REVERSE, SHUFFLED):
        fake_cuda.emulator.order = order
        found, psnr = loss_and_gradient(image.to("cuda"), photo.to("cuda"))
        several.append([*found, psnr.cpu()])
    for found, value in zip(several[0], wanted, strict=False):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)
    assert float(several[0][-1]) == pytest.approx(-10 * math.log10(float((image - photo).square().mean())), rel=1e-4)
    for other in several[1:]:
        assert all(torch.equal(a, b) for a, b in zip(several[0], other, strict=True))


def test_a_value_that_is_not_a_number_shows_in_similarity(fake_cuda):
    image = torch.rand(20, 20, 3, device="cuda")
    image[3, 4, 1] = torch.nan
    found = image_similarity(image, torch.rand(20, 20, 3, device="cuda"))
    assert found.l1.cpu().isnan()
    assert found.ssim.cpu().isnan()


def steps(device, visible, *, refused=()):
    chance = torch.Generator().manual_seed(0)
    leaves = [torch.randn(30, *shape, generator=chance) for shape in ((3,), (), (2, 3))]
    leaves = [leaf.to(device).requires_grad_() for leaf in leaves]
    optimizer = VisibleAdam([{"params": [leaf], "lr": 0.1 * (1 + i)} for i, leaf in enumerate(leaves)])
    for step in range(4):
        for leaf in leaves:
            leaf.grad = torch.randn(leaf.shape, generator=chance).to(device)
        optimizer.visible = None if visible is None else visible(step).to(device)
        optimizer.found_inf = torch.tensor(float(step in refused)).to(device)
        optimizer.step()
    return leaves, optimizer


def random_rows(step):
    return torch.rand(30, generator=torch.Generator().manual_seed(step)) < 0.4


@pytest.mark.parametrize(
    "visible", [None, random_rows, lambda step: random_rows(step).nonzero()[:, 0]], ids=["all", "mask", "rows"]
)
def test_adam_moves_the_rows_that_the_cpu_moves(fake_cuda, visible):
    on_cpu, _ = steps("cpu", visible, refused=(2,))
    several = []
    for order in (FORWARD, REVERSE, SHUFFLED):
        fake_cuda.emulator.order = order
        on_gpu, optimizer = steps("cuda", visible, refused=(2,))
        several.append([leaf.detach().cpu() for leaf in on_gpu])
    for a, b in zip(several[0], on_cpu, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-6)
    for other in several[1:]:
        assert all(torch.equal(a, b) for a, b in zip(several[0], other, strict=True))
    assert {float(state["step"].cpu()) for state in optimizer.state.values()} == {3.0}


def test_a_step_of_adam_waits_for_nothing(fake_cuda):
    _, optimizer = steps("cuda", random_rows)
    before = fake_cuda.ledger.copy()
    optimizer.step()
    counted = fake_cuda.ledger.since(before)
    assert counted.waits.total() == 0
    assert counted.launches == {"adam_visible": 1}


def test_more_parameters_than_fit_into_a_launch_are_all_moved(fake_cuda):
    leaves = [torch.zeros(3, device="cuda", requires_grad=True) for _ in range(MOST_LISTED + 2)]
    optimizer = VisibleAdam(leaves, lr=0.1)
    for leaf in leaves:
        leaf.grad = torch.ones_like(leaf)
    optimizer.step()  # with a trial of the kernel
    before = fake_cuda.ledger.copy()
    optimizer.step()
    assert fake_cuda.ledger.since(before).launches == {"adam_visible": 2}
    for leaf in leaves:
        torch.testing.assert_close(leaf.detach().cpu(), torch.full((3,), -0.2))


def test_state_of_a_cpu_goes_on_on_the_gpu(fake_cuda):
    leaves, optimizer = steps("cpu", random_rows)
    stored = copy.deepcopy(optimizer.state_dict())
    moved = [leaf.detach().to("cuda").requires_grad_() for leaf in leaves]
    again = VisibleAdam([{"params": [leaf]} for leaf in moved])
    again.load_state_dict(stored)
    for one, other in zip(leaves, moved, strict=True):
        one.grad = torch.ones_like(one)
        other.grad = torch.ones_like(other)
    for each in (optimizer, again):
        each.visible = None
        each.found_inf = None
        each.step()
    for one, other in zip(leaves, moved, strict=True):
        torch.testing.assert_close(other.detach().cpu(), one.detach(), rtol=1e-5, atol=1e-6)
