"""The algorithms that repeat to the bit on a GPU give the values of the usual ones."""

import torch

from fieldwatch.recon.pipelines.video.models.blocks import PatchMeans
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


def test_means_of_patches_by_products_are_those_of_the_pooling(fake_cuda):
    features = torch.rand(2, 3, 7, 10, generator=torch.Generator().manual_seed(1))
    results = []
    for wanted in (False, True):
        with deterministic_algorithms(wanted=wanted):
            leaf = features.to("cuda").requires_grad_()
            means = PatchMeans(3, 4)(leaf)
            means.square().sum().backward()
            results.append([means.detach().cpu(), leaf.grad.cpu()])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
