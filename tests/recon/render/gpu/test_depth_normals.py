"""Normals of depth by our own GPU kernels: torch's values in double precision, in any order of threads."""

import pytest
import torch

from fake_cuda.emulator import FORWARD, REVERSE, SHUFFLED
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.render import (
    depth_normal_consistency,
    depth_normal_consistency_reference,
    depth_normals_problem,
)

pytestmark = pytest.mark.pretended


def camera(width, height):
    lens = {"fx": 0.9 * width, "fy": 1.1 * width, "cx": 0.4 * width, "cy": 0.6 * height}
    return Camera(name="eye", width=width, height=height, world_from_camera=torch.eye(4), **lens)


def maps(width, height):
    """Normals, alpha and depth of a wavy wall, blended; a third of the pixels is not opaque."""
    chance = torch.Generator().manual_seed(width * 100 + height)
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    noise = torch.randn(height, width, generator=chance)
    wall = 3 + 0.3 * x + 0.2 * torch.sin(4 * y) + 0.01 * noise
    alpha = 0.75 + 0.24 * torch.sin(7 * x) * (1 if max(width, height) > 9 else 0) - 0.02 * noise.abs()
    normals = torch.nn.functional.normalize(torch.randn(height, width, 3, generator=chance), dim=-1)
    return normals * alpha[..., None], alpha, wall * alpha


def outcome(consistency, parts, eye, **options):
    """Value and gradients of twice the value."""
    leaves = [part.clone().requires_grad_() for part in parts]
    value = consistency(*leaves, eye, **options)
    return [part.detach().cpu() for part in (value, *torch.autograd.grad(2 * value, leaves))]


def on_gpu(parts, eye, mask=None, by="difference"):
    mask = None if mask is None else mask.to("cuda")
    return outcome(depth_normal_consistency, [part.to("cuda") for part in parts], eye, mask=mask, by=by)


def assert_same(found, parts, eye, mask=None, by="difference"):
    wanted = outcome(depth_normal_consistency_reference, [part.double() for part in parts], eye, mask=mask, by=by)
    for ours, right in zip(found, wanted, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - right).abs().max() <= 1e-4 * right.abs().max()
    return wanted


@pytest.mark.parametrize("by", ["difference", "cosine"])
@pytest.mark.parametrize("size", [(3, 3), (64, 48), (130, 17), (33, 70)])
def test_value_and_gradients_are_those_of_the_reference_in_every_order(fake_cuda, size, by):
    parts = maps(*size)
    parts[0][::3] *= 0.005  # short ones, which are not scaled to length 1
    several = []
    for order in (FORWARD, REVERSE, SHUFFLED):
        fake_cuda.emulator.order = order
        several.append(on_gpu(parts, camera(*size), by=by))
    wanted = assert_same(several[0], parts, camera(*size), by=by)
    assert all(part.any() for part in wanted)
    for other in several[1:]:
        assert all(torch.equal(a, b) for a, b in zip(several[0], other, strict=True))


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 30)])
def test_nothing_counts_where_no_pixel_has_four_neighbors(fake_cuda, size):
    assert not any(part.any() for part in on_gpu(maps(*size), camera(*size)))


def test_only_pixels_of_the_mask_count(fake_cuda):
    mask = torch.rand(21, 37, generator=torch.Generator().manual_seed(3)) > 0.1
    parts = maps(37, 21)
    found = on_gpu(parts, camera(37, 21), mask)
    assert_same(found, parts, camera(37, 21), mask)
    assert not found[3][~mask].any()


def test_a_value_that_is_not_a_number_shows_wherever_it_stands(fake_cuda):
    normals, alpha, depth = maps(20, 20)
    normals[0, 0, 1] = torch.nan
    assert on_gpu((normals, alpha, depth), camera(20, 20))[0].isnan()


def test_no_surface_without_depth_has_a_gradient(fake_cuda):
    normals, alpha, depth = maps(20, 20)
    found = on_gpu((normals, 0 * alpha, depth), camera(20, 20))
    assert not any(part.any() for part in found)


def test_a_comparison_waits_for_nothing(fake_cuda):
    parts = [part.to("cuda").requires_grad_() for part in maps(37, 21)]
    assert depth_normals_problem() is None  # the trial waits
    before = fake_cuda.ledger.copy()
    torch.autograd.grad(depth_normal_consistency(*parts, camera(37, 21)), parts)
    counted = fake_cuda.ledger.since(before)
    assert counted.waits.total() == counted.unordered.total() == 0
    assert counted.launches.total() <= 4


def test_torch_computes_where_the_kernels_differ(fake_cuda):
    parts = maps(37, 21)
    fake_cuda.emulator.verdicts["depth_normals.cu", 0] = "they differ"
    before = fake_cuda.ledger.copy()
    assert_same(on_gpu(parts, camera(37, 21)), parts, camera(37, 21))
    assert "depth_normals_forward" not in fake_cuda.ledger.since(before).launches
    assert depth_normals_problem() == "they differ"
