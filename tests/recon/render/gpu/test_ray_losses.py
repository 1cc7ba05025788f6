"""Costs of differences of normals on a GPU, against the losses in plain torch."""

import pytest
import torch

from fake_cuda.emulator import FORWARD, REVERSE, SHUFFLED
from fieldwatch.recon.losses import normal_error
from fieldwatch.recon.render.sdf_gpu import ObservedRays, ray_terms

RAYS = 300  # more than a block of threads


def drawn():
    generator = torch.Generator().manual_seed(0)
    opacity = torch.rand(RAYS, generator=generator)
    normal = torch.randn(RAYS, 3, generator=generator) * opacity[:, None]
    observed = torch.nn.functional.normalize(torch.randn(RAYS, 3, generator=generator), dim=-1)
    known = torch.rand(RAYS, generator=generator) > 0.3
    return opacity, normal, observed, known


@pytest.mark.parametrize(("norm", "scale"), [("l1", 0.1), ("l2", 0.1), ("robust", 0.1), ("robust", 2.0)])
def test_costs_and_gradients_are_those_of_the_reference_in_every_order(fake_cuda, norm, scale):
    opacity, normal, observed, known = drawn()
    wanted_normal = normal.clone().requires_grad_()
    wanted = normal_error(wanted_normal, observed, known, norm=norm, scale=scale)
    wanted.backward()
    found = []
    for order in (FORWARD, REVERSE, SHUFFLED):
        if fake_cuda.counts:
            fake_cuda.emulator.order = order
        rendered = normal.cuda().requires_grad_()
        count = torch.full((1,), RAYS, dtype=torch.int32, device="cuda")
        rays = ObservedRays(
            kept=count,
            normals=observed.cuda(),
            mask=known.cuda(),
            known=known.cuda(),
            weights=None,
            least_opacity=None,
            norm=norm,
            scale=scale,
        )
        term = ray_terms(opacity.cuda(), rendered, normal.cuda(), count, rays).normal
        term.backward()
        found.append((term.detach().cpu(), rendered.grad.cpu()))
    torch.testing.assert_close(found[0][0], wanted.detach())
    torch.testing.assert_close(found[0][1], wanted_normal.grad)
    for again in found[1:]:
        assert torch.equal(again[0], found[0][0])
        assert torch.equal(again[1], found[0][1])
