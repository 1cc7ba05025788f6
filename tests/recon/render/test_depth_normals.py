"""Blended normals against those of the blended depth: the fused kernel is the composition in double precision."""

from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.render import depth_normal_consistency, depth_normal_consistency_reference, native_available

SIZES = [(64, 48), (3, 3), (130, 17), (33, 70)]
TOO_SMALL = [(1, 1), (1, 9), (9, 1), (2, 2), (2, 30)]
"""Sizes, in pixels across and down, at which no pixel has four neighbors."""


@pytest.fixture(autouse=True)
def kernels():
    there, reason = native_available()
    if not there:
        pytest.skip(reason)


def camera(width, height, pose=None):
    pose = torch.eye(4) if pose is None else pose
    lens = {"fx": 0.9 * width, "fy": 1.1 * width, "cx": 0.4 * width, "cy": 0.6 * height}
    return Camera(name="eye", width=width, height=height, world_from_camera=pose, **lens)


def maps(width, height, roughness=0.01):
    """Normals, alpha and depth of a wavy wall, blended; a third of the pixels is not opaque where it is long."""
    chance = torch.Generator().manual_seed(width * 100 + height)
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    noise = torch.randn(height, width, generator=chance)
    wall = 3 + 0.3 * x + 0.2 * torch.sin(4 * y) + roughness * noise
    alpha = 0.75 + 0.24 * torch.sin(7 * x) * (1 if max(width, height) > 9 else 0) - 0.02 * noise.abs()
    normals = torch.nn.functional.normalize(torch.randn(height, width, 3, generator=chance), dim=-1)
    return normals * alpha[..., None], alpha, wall * alpha


def outcome(consistency, parts, *how, dtype=torch.float32, **options):
    """Value and gradients of twice the value."""
    leaves = [part.to(dtype, copy=True).requires_grad_() for part in parts]
    value = consistency(*leaves, *how, **options)
    (2 * value).backward()
    return [value.detach(), *(leaf.grad for leaf in leaves)]


def both(parts, eye, **options):
    ours = outcome(depth_normal_consistency, parts, eye, **options)
    return ours, outcome(depth_normal_consistency_reference, parts, eye, dtype=torch.float64, **options)


def assert_same(ours, wanted):
    for found, right in zip(ours, wanted, strict=True):
        assert found.dtype == torch.float32
        assert (found - right).abs().max() <= 1e-5 * right.abs().max()


@pytest.mark.parametrize("size", SIZES)
def test_native_is_the_composition_in_double_precision(size):
    ours, wanted = both(maps(*size), camera(*size))
    assert_same(ours, wanted)
    assert wanted[0] != 0
    assert all(gradient.any() for gradient in wanted[1:])


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(threads):
    results = []
    for count in (1, threads):
        torch.set_num_threads(count)
        results.append(outcome(depth_normal_consistency, maps(70, 41), camera(70, 41)))
    torch.set_num_threads(1)
    assert all(torch.equal(one, more) for one, more in zip(*results, strict=True))


@pytest.mark.parametrize("size", TOO_SMALL)
def test_nothing_counts_where_no_pixel_has_four_neighbors(size):
    ours, wanted = both(maps(*size), camera(*size))
    for found, right in zip(ours, wanted, strict=True):
        assert not found.any()
        assert not right.any()


def test_only_pixels_of_the_mask_count():
    mask = torch.rand(48, 64, generator=torch.Generator().manual_seed(3)) > 0.1
    ours, wanted = both(maps(64, 48), camera(64, 48), mask=mask)
    assert_same(ours, wanted)
    assert abs(ours[0] - both(maps(64, 48), camera(64, 48))[0][0]) > 1e-3
    assert not ours[3][~mask].any()


def test_a_mask_that_hides_all_gives_zero():
    ours, _ = both(maps(64, 48), camera(64, 48), mask=torch.zeros(48, 64, dtype=torch.bool))
    assert not any(part.any() for part in ours)


def test_pixels_that_are_not_opaque_do_not_count():
    ours, wanted = both(maps(64, 48), camera(64, 48), opaque=0.9)
    assert_same(ours, wanted)
    assert not any(part.any() for part in both(maps(64, 48), camera(64, 48), opaque=1.0)[0])


def test_what_was_not_drawn_or_lies_behind_does_not_count():
    normals, alpha, depth = maps(64, 48)
    alpha[10:20, 5:30] = 0
    depth[10:20, 5:30] = 0
    depth[30:34, 40:50] *= -1
    ours, wanted = both((normals, alpha, depth), camera(64, 48))
    assert_same(ours, wanted)
    assert not ours[3][12:18, 7:28].any()


def test_maps_with_gaps_in_memory_are_read_right():
    parts = maps(64, 48)
    eye = camera(64, 48)
    normals, alpha, depth = (part.transpose(0, 1).contiguous().transpose(0, 1) for part in parts)
    assert not normals.is_contiguous()
    assert depth_normal_consistency(normals, alpha, depth, eye) == depth_normal_consistency(*parts, eye)


def test_the_pose_of_the_camera_does_not_matter():
    parts = maps(64, 48)
    eye = camera(64, 48)
    moved = camera(64, 48, pose=look_at((3.0, 1.0, 2.0), (0.0, 0.0, 0.0)))
    assert depth_normal_consistency(*parts, eye) == depth_normal_consistency(*parts, moved)
    single, turned = (depth_normal_consistency_reference(*parts, one) for one in (eye, moved))
    assert single == turned


def test_a_plane_drawn_with_its_own_normal_has_no_error():
    eye = camera(64, 48)
    normal = torch.tensor([0.6, 0.0, -0.8])
    wall = -2 / (eye.directions() @ normal)
    alpha = torch.full((48, 64), 0.8)
    parts = (normal * alpha[..., None], alpha, wall * alpha)
    assert abs(depth_normal_consistency(*parts, eye)) < 1e-6
    assert depth_normal_consistency(-parts[0], alpha, parts[2], eye).item() == pytest.approx(1.6)


@pytest.mark.parametrize("where", [(0, 0), (20, 30)])
def test_a_normal_that_is_not_finite_is_seen(where):
    normals, alpha, depth = maps(64, 48)
    normals[where][1] = torch.nan
    assert depth_normal_consistency(normals, alpha, depth, camera(64, 48)).isnan()
    assert depth_normal_consistency_reference(normals, alpha, depth, camera(64, 48)).isnan()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_depth_that_is_not_finite_passes_no_gradient(bad):
    normals, alpha, depth = maps(64, 48)
    depth[20, 30] = bad
    ours = outcome(depth_normal_consistency, (normals, alpha, depth), camera(64, 48))
    assert ours[0] == pytest.approx(depth_normal_consistency_reference(normals, alpha, depth, camera(64, 48)).item())
    assert all(part.isfinite().all() for part in ours)


def test_without_gradients_the_value_is_the_same():
    parts = maps(64, 48)
    eye = camera(64, 48)
    assert depth_normal_consistency(*parts, eye) == outcome(depth_normal_consistency, parts, eye)[0]


def test_the_gradient_can_be_taken_twice():
    normals, alpha, depth = (part.requires_grad_() for part in maps(20, 20))
    value = depth_normal_consistency(normals, alpha, depth, camera(20, 20))
    first, again = (torch.autograd.grad(value, (normals, alpha, depth), retain_graph=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_maps_of_another_size_than_the_camera_are_refused():
    wrong = replace(camera(64, 48), width=60)
    with pytest.raises(ValueError, match=r"maps of 64x48 .*camera 'eye' of 60x48"):
        depth_normal_consistency(*maps(64, 48), wrong)


def test_other_precisions_take_the_composition():
    normals, alpha, depth = (part.double() for part in maps(64, 48))
    found, wanted = (
        consistency(normals, alpha, depth, camera(64, 48))
        for consistency in (depth_normal_consistency, depth_normal_consistency_reference)
    )
    assert found.dtype == torch.float64
    assert found == wanted
