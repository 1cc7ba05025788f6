"""The cost of differences of normals: how it is chosen for the maps, and its formula."""

import math
from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.data import SolidUnion, ring_cameras, synthetic_normal_maps
from fieldwatch.recon.losses.rendered_surface import difference_cost
from fieldwatch.recon.pipelines.normals.config import TermOptions
from fieldwatch.recon.pipelines.normals.normal_cost import ROBUST_FROM, norm_of, terms_for


@pytest.fixture(scope="module")
def maps():
    return synthetic_normal_maps(SolidUnion(), cameras=ring_cameras(2, 8), depth="none")


def test_the_robust_cost_squares_small_differences_and_is_linear_for_large_ones():
    lengths = torch.tensor([1e-3, 1e-2, 30.0, 31.0], dtype=torch.float64)
    difference = lengths[:, None] * torch.tensor([[2.0, -1.0, 2.0]], dtype=torch.float64) / 3
    cost = difference_cost(difference, "robust", 0.5)
    assert cost[:2].tolist() == pytest.approx(lengths[:2].square().tolist(), rel=1e-3)
    assert float(cost[3] - cost[2]) == pytest.approx(2 * 0.5, rel=1e-3)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_noise_changes_no_other_cost(maps, norm):
    options = TermOptions(normal_norm=norm)
    assert terms_for(options, replace(maps, noise=15.0)) == options


@pytest.mark.parametrize(
    ("stated", "noise", "scale"),
    [(None, None, ROBUST_FROM), (None, 5.0, ROBUST_FROM), (None, 20.0, math.radians(50)), (0.2, 20.0, 0.2)],
)
def test_the_scale_of_the_robust_cost_follows_the_noise_unless_it_is_stated(maps, stated, noise, scale):
    options = terms_for(TermOptions(normal_norm="robust", robust_from=stated), replace(maps, noise=noise))
    assert norm_of(options) == ("robust", pytest.approx(scale))
