"""Directions over the sphere, and items at equal distances."""

import pytest
import torch

from fieldwatch.recon.geometry import evenly_spaced, spread_directions


@pytest.mark.parametrize("phase", [0.0, 0.5])
def test_directions_are_unit_vectors_that_leave_no_gap(phase):
    found = spread_directions(200, phase=phase)
    assert torch.allclose(found.norm(dim=1), torch.ones(200, dtype=torch.float64))
    assert found.mean(0).abs().max() < 0.02
    places = torch.nn.functional.normalize(torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    # 200 caps of 8 degrees have the area of the sphere; those of the best lattice, which cover it, have 9.
    assert (places.double() @ found.T).amax(1).acos().max() < 12 * torch.pi / 180


def test_the_phase_turns_the_spiral_about_the_z_axis():
    one = spread_directions(50)
    other = spread_directions(50, phase=0.5)
    assert torch.equal(one[:, 2], other[:, 2])
    angle = torch.atan2(other[:, 1], other[:, 0]) - torch.atan2(one[:, 1], one[:, 0])
    assert torch.allclose(torch.cos(angle), torch.cos(angle[:1]).expand(50))


@pytest.mark.parametrize(
    ("count", "most", "expected"),
    [(10, 3, [0, 3, 6]), (3, 10, [0, 1, 2]), (4, 4, [0, 1, 2, 3]), (0, 5, []), (5, 0, [])],
)
def test_items_are_taken_at_equal_distances(count, most, expected):
    assert evenly_spaced(range(count), most) == expected
