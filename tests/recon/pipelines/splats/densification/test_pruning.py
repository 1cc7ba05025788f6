"""Pruning and the row numbers after it; opacity resets."""

import math

import pytest
import torch

from fieldwatch.recon.pipelines.splats import Gaussians, NotFiniteError, Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.densification import (
    new_row_numbers,
    oversized,
    prune,
    prune_opacity,
    reset_opacity,
)
from fieldwatch.recon.render import DensificationStatistics


def made(opacities):
    opacities = torch.tensor(opacities)
    gaussians = Gaussians.in_box(len(opacities), torch.zeros(3), torch.ones(3), degree=0)
    with torch.no_grad():
        gaussians.opacity_logits.copy_(opacities.logit())
    return gaussians


def test_only_the_opaque_stay_and_neighbors_can_be_moved_over():
    gaussians = made([0.9, 0.1, 0.6, 0.49, 0.51])
    statistics = DensificationStatistics(5)
    statistics.radii = torch.arange(5.0)
    means = gaussians.means.detach().clone()
    kept = prune_opacity(gaussians, 0.5, statistics)
    assert kept.tolist() == [0, 2, 4]
    assert torch.equal(gaussians.means, means[kept])
    assert statistics.radii.tolist() == [0, 2, 4]
    neighbors = torch.tensor([[0, 2], [2, 4], [4, 1]])
    assert new_row_numbers(kept, 5)[neighbors].tolist() == [[0, 1], [1, 2], [2, -1]]


def test_pruning_nobody_touches_nothing():
    gaussians = made([0.9, 0.8])
    means = gaussians.means
    assert prune_opacity(gaussians).tolist() == [0, 1]
    assert gaussians.means is means


def test_pruning_all_is_refused():
    with pytest.raises(ValueError, match="all 2 Gaussians would"):
        prune_opacity(made([0.1, 0.2]))


def test_an_opacity_that_is_not_finite_is_named():
    with pytest.raises(NotFiniteError, match="means of Gaussian 1 is not finite"):
        gaussians = made([0.9, 0.9])
        gaussians.means.data[1] = math.nan
        prune_opacity(gaussians)


def test_the_largest_axis_decides():
    gaussians = made([0.9, 0.9])
    gaussians.log_scales.data = torch.tensor([[0.1, 0.1, 2.0], [0.5, 0.5, 0.5]]).log()
    assert oversized(gaussians, 1.0).tolist() == [True, False]
    assert prune(gaussians, oversized(gaussians, 1.0)).tolist() == [1]


def test_a_reset_caps_opacities_and_forgets_their_moments_only():
    gaussians = made([0.9, 0.005, 0.02])
    optimizer = make_optimizer(gaussians, Rates(), 1.0)
    (gaussians.opacities.sum() + gaussians.means.square().sum()).backward()
    optimizer.step()
    parameter = gaussians.opacity_logits
    low = gaussians.opacities[1].item()
    assert reset_opacity(gaussians) == 2
    torch.testing.assert_close(gaussians.opacities, torch.tensor([0.01, low, 0.01]))
    assert gaussians.opacity_logits is parameter
    assert not optimizer.state[parameter]["exp_avg"].any()
    assert not optimizer.state[parameter]["exp_avg_sq"].any()
    assert optimizer.state[gaussians.means]["exp_avg"].any()
    with pytest.raises(ValueError, match=r"reset .* got 1\.5"):
        reset_opacity(gaussians, 1.5)
    gaussians.opacity_logits.data[1] = math.nan
    with pytest.raises(NotFiniteError, match="opacity_logits of Gaussian 1"):
        reset_opacity(gaussians)
