"""The algorithms that repeat to the bit on a GPU give the values of the usual ones."""

import pytest
import torch

from fieldwatch.recon.pipelines.video.algorithm import convolutions_in_order
from fieldwatch.recon.pipelines.video.models.blocks import PatchMeans, UpBlock, resample
from fieldwatch.recon.pipelines.video.models.options import ModelOptions
from fieldwatch.recon.render import composite
from fieldwatch.run import deterministic_algorithms


def test_running_sums_in_fixed_order_composite_the_same(fake_cuda):
    chance = torch.Generator().manual_seed(2)
    ray_index = torch.arange(7).repeat_interleave(torch.tensor([0, 3, 1, 40, 0, 17, 2]))
    alpha = torch.rand(len(ray_index), generator=chance)
    distances = torch.rand(len(ray_index), generator=chance)
    alpha[5] = 1.0
    results = []
    for wanted in (False, True):
        with deterministic_algorithms(wanted=wanted):
            leaf = alpha.to("cuda").requires_grad_()
            made = composite(leaf, ray_index.to("cuda"), 7, distances.to("cuda"))
            (made.depth.sum() + made.opacity.square().sum()).backward()
            results.append([made.weights.detach().cpu(), made.depth.detach().cpu(), leaf.grad.cpu()])
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [(7, 10), (6, 8)])
def test_means_of_patches_are_those_of_the_pooling(fake_cuda, size):
    features = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1))
    results = []
    for device in ("cpu", "cuda"):
        leaf = features.to(device).requires_grad_()
        means = PatchMeans(3, 4)(leaf)
        (gradient,) = torch.autograd.grad(means.square().sum(), leaf)
        results.append([means.detach().cpu(), gradient.cpu()])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    assert not fake_cuda.ledger.unordered


def test_a_row_and_a_column_are_repeated_as_by_the_padding(fake_cuda):
    """With an even kernel, a transposed convolution is one pixel short."""
    torch.manual_seed(0)
    block = UpBlock(3, 2, stride=2, kernel=2, options=ModelOptions(conv_type=("convnext", "conv")))
    features = torch.rand(2, 3, 4, 5)
    results = []
    for device in ("cpu", "cuda"):
        leaf = features.to(device).requires_grad_()
        made = block.to(device)(leaf)
        assert made.shape[-2:] == (8, 10)
        with convolutions_in_order():
            (gradient,) = torch.autograd.grad(made.square().sum(), leaf)
        results.append([made.detach().cpu(), gradient.cpu()])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    assert not fake_cuda.ledger.unordered


@pytest.mark.parametrize("size", [(8, 15), (9, 7), (3, 4)], ids=["larger", "mixed", "smaller"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bilinear_resampling_has_the_gradient_of_torch(fake_cuda, size, dtype):
    features = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(3)).to(dtype)
    results = []
    for device in ("cpu", "cuda"):
        leaf = features.to(device).requires_grad_()
        made = resample(leaf, size)
        (gradient,) = torch.autograd.grad(made.square().sum(), leaf)
        assert gradient.dtype == dtype
        results.append([made.detach().cpu(), gradient.cpu()])
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
    assert not fake_cuda.ledger.unordered
