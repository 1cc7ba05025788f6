"""The cost of differences of normals: how it is chosen for the maps, and its formula."""

from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.data import SolidUnion, ring_cameras, synthetic_normal_maps
from fieldwatch.recon.losses.rendered_surface import difference_cost
from fieldwatch.recon.pipelines.normals.config import TermOptions
from fieldwatch.recon.pipelines.normals.normal_cost import norm_of, terms_for


@pytest.fixture(scope="module")
def maps():
    return synthetic_normal_maps(SolidUnion(), cameras=ring_cameras(2, 8), depth="none")


def of_bits(maps, bits):
    return replace(maps, views=tuple(replace(view, bits=bits) for view in maps.views))


def test_the_robust_cost_squares_small_differences_and_is_linear_for_large_ones():
    lengths = torch.tensor([1e-3, 1e-2, 30.0, 31.0], dtype=torch.float64)
    difference = lengths[:, None] * torch.tensor([[2.0, -1.0, 2.0]], dtype=torch.float64) / 3
    cost = difference_cost(difference, "robust", 0.5)
    assert cost[:2].tolist() == pytest.approx(lengths[:2].square().tolist(), rel=1e-3)
    assert float(cost[3] - cost[2]) == pytest.approx(2 * 0.5, rel=1e-3)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("noise", [None, 0.4])
def test_clean_maps_of_any_bits_are_trained_with_squares(maps, bits, noise):
    options = terms_for(TermOptions(), replace(of_bits(maps, bits), noise=noise))
    assert norm_of(options)[0] == "l2"
