"""NeuS opacities: the equation, its gradients, and what a sharp or a deep section does to it."""

import pytest
import torch

from fieldwatch.recon.render import neus_alpha, section_alpha


def quotient(start, end, sharpness):
    """Equation 13 as it is written, in double precision."""
    near = torch.sigmoid(sharpness * start)
    far = torch.sigmoid(sharpness * end)
    return ((near - far) / near).clamp_min(0)


def spread(count, low, high):
    return low + (high - low) * torch.rand(count, dtype=torch.float64)


@pytest.mark.parametrize("sharpness", [1.0, 20.0, 200.0])
def test_sections_follow_the_equation(sharpness):
    start = spread(500, -0.1, 0.1)
    end = spread(500, -0.1, 0.1)
    expected = quotient(start, end, sharpness)
    assert torch.allclose(section_alpha(start, end, sharpness), expected, atol=1e-12)
    assert torch.allclose(section_alpha(start.float(), end.float(), sharpness), expected.float(), atol=2e-5)


def test_a_section_that_leaves_the_surface_is_clear():
    assert section_alpha(torch.tensor([-0.1, 0.0, 0.2]), torch.tensor([0.1, 0.3, 0.2]), 50.0).tolist() == [0, 0, 0]


def test_middles_and_cosines_follow_the_equation_of_a_plane():
    sdf = spread(200, -0.05, 0.05)
    cosine = spread(200, -1, 1)
    length = spread(200, 1e-3, 1e-2)
    closing = -torch.relu(-cosine) * length / 2
    assert torch.allclose(neus_alpha(sdf, cosine, length, 100.0), quotient(sdf - closing, sdf + closing, 100.0))


def test_annealing_starts_half_way_to_head_on():
    sdf = torch.zeros(3, dtype=torch.float64)
    length = torch.full((3,), 0.01, dtype=torch.float64)
    cosine = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    for anneal in (0.0, 0.25, 1.0):
        closing = anneal * torch.tensor([1.0, 0.0, 0.0]) + (1 - anneal) * torch.tensor([1.0, 0.5, 0.0])
        expected = quotient(closing.double() * 0.005, -closing.double() * 0.005, 80.0)
        assert torch.allclose(neus_alpha(sdf, cosine, length, 80.0, anneal), expected)


def test_a_ray_along_or_out_of_the_surface_has_gradients_while_annealed():
    cosine = torch.tensor([0.0, 0.5], requires_grad=True)
    neus_alpha(torch.zeros(2), cosine, torch.full((2,), 0.01), 80.0, 0.5).sum().backward()
    assert bool((cosine.grad < 0).all())


@pytest.mark.parametrize("anneal", [-0.1, 1.1, float("nan")])
def test_annealing_outside_its_range_is_refused(anneal):
    with pytest.raises(ValueError, match=r"anneal .*from 0 to 1"):
        neus_alpha(torch.zeros(1), torch.zeros(1), torch.ones(1), 1.0, anneal)


def test_gradients_match_finite_differences():
    sharpness = torch.tensor(60.0, dtype=torch.float64, requires_grad=True)
    sdf, cosine = (value.requires_grad_() for value in (spread(20, -0.1, 0.1), spread(20, -1, -0.1)))
    length = torch.full((20,), 0.01, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda f, c, s: neus_alpha(f, c, length, s, 0.5), (sdf, cosine, sharpness))


@pytest.mark.parametrize("sharpness", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("sdf", [-1.0, -1e-3, 0.0, 1e-3, 1.0])
def test_a_saturated_section_is_finite(sharpness, sdf):
    start = torch.tensor([sdf + 0.005], requires_grad=True)
    end = torch.tensor([sdf - 0.005], requires_grad=True)
    s = torch.tensor(sharpness, requires_grad=True)
    alpha = section_alpha(start, end, s)
    alpha.sum().backward()
    assert 0 <= alpha.item() <= 1
    assert all(bool(torch.isfinite(leaf.grad).all()) for leaf in (start, end, s))


def test_deep_inside_a_section_is_still_opaque():
    """There the quotient with 1e-5 added is 1e-5 / 1e-5 at most of rounding: alpha = 1 - exp(-s length)."""
    alpha = section_alpha(torch.tensor([-0.500]), torch.tensor([-0.502]), 500.0)
    assert alpha.item() == pytest.approx(1 - torch.tensor(-1.0).exp().item(), rel=1e-4)
