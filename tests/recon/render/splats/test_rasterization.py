"""The one call: what it draws, what it refuses, and who draws it."""

import math

import pytest
import torch

import fieldwatch.recon.render.splats.rasterization as module
from fieldwatch import InputError
from fieldwatch.recon.render import DensificationStatistics, View, apply_3d_filter, rasterize, rotations


def view(size=32, **options):
    settings = {"fx": 32.0, "fy": 32.0, "cx": 16.0, "cy": 16.0, "width": size, "height": size}
    return View(camera_from_world=torch.eye(4), **(settings | options))


def ball(z=2.0, opacity=0.8, count=1, dtype=torch.float32):
    """Return round Gaussians in front of the camera, one behind the other."""
    depths = z + torch.arange(count, dtype=dtype)
    means = torch.stack([torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype), depths], -1)
    quaternions = torch.tensor([1.0, 0, 0, 0], dtype=dtype).repeat(count, 1)
    return [means, quaternions, torch.full((count, 3), 0.25, dtype=dtype), torch.full((count,), opacity, dtype=dtype)]


BACKENDS = pytest.mark.parametrize("backend", ["native", "reference"])


@BACKENDS
def test_a_ball_is_a_bell_on_the_image(backend):
    """Seen from afar: variance (f s / z)^2 + eps2d, centered on the principal point."""
    means, quaternions, scales, opacities = ball(z=200.0)
    drawn = rasterize(
        means, quaternions, scales * 100, opacities, view(), features=torch.ones(1, 1), eps2d=0.5, backend=backend
    )
    offsets = torch.arange(32) + 0.5 - 16
    squared = offsets[:, None] ** 2 + offsets[None, :] ** 2
    bell = 0.8 * torch.exp(-squared / (2 * ((32 * 25 / 200) ** 2 + 0.5)))
    torch.testing.assert_close(drawn.alpha, torch.where(bell >= 1 / 255, bell, 0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(drawn.features[..., 0], drawn.alpha)


@BACKENDS
def test_the_nearer_covers_the_farther(backend):
    values = torch.tensor([[1.0], [10.0], [100.0]])
    drawn = rasterize(
        *ball(count=3, opacity=0.5), view(), features=values, depth="center", median=True, backend=backend
    )
    flipped = [part.flip(0) for part in ball(count=3, opacity=0.5)]
    other = rasterize(*flipped, view(), features=values.flip(0), depth="center", median=True, backend=backend)
    assert drawn.features[16, 16, 0] == pytest.approx(0.5 * 1 + 0.25 * 10 + 0.125 * 100, rel=0.03)
    assert drawn.expected_depth()[16, 16] == pytest.approx((0.5 * 2 + 0.25 * 3 + 0.125 * 4) / 0.875, rel=0.01)
    assert drawn.median_depth[16, 16] in (2.0, 3.0)
    assert drawn.median_depth[0, 0] == 0
    torch.testing.assert_close(drawn.features, other.features)


@BACKENDS
def test_alpha_stops_at_its_ceiling_and_nothing_shows_behind_an_opaque_stack(backend):
    means, quaternions, scales, opacities = ball(count=6, opacity=1.0)
    values = torch.arange(6.0)[:, None]
    drawn = rasterize(means, quaternions, 10 * scales, opacities, view(), features=values, backend=backend)
    assert drawn.alpha.max() <= 1
    assert drawn.features[16, 16, 0] == pytest.approx(0.0099, rel=0.05)


@BACKENDS
def test_the_background_fills_what_is_left(backend):
    color = torch.tensor([0.2, 0.4])
    drawn = rasterize(*ball(), view(), features=torch.zeros(1, 2), background=color, backend=backend)
    torch.testing.assert_close(drawn.features, (1 - drawn.alpha)[..., None] * color)


@BACKENDS
def test_without_gaussians_there_is_background_and_gradients_are_empty(backend):
    parts = [part.requires_grad_() for part in ball(count=0)]
    drawn = rasterize(
        *parts, view(), features=torch.zeros(0, 3), background=torch.ones(3), depth="planar", backend=backend
    )
    assert drawn.features.eq(1).all()
    assert drawn.expected_depth().eq(0).all()
    drawn.features.sum().backward()
    assert [tuple(part.grad.shape) for part in parts if part.grad is not None] in ([], [(0, 3), (0, 4), (0, 3), (0,)])


@BACKENDS
def test_normals_look_at_the_camera(backend):
    means, _, _, opacities = ball()
    scales = torch.tensor([[0.3, 0.3, 0.01]])
    for quaternion in (torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([[0.0, 1, 0, 0]])):
        drawn = rasterize(means, quaternion, scales, opacities, view(), normals=True, backend=backend)
        direction = drawn.normals[16, 16] / drawn.alpha[16, 16]
        torch.testing.assert_close(direction, torch.tensor([0.0, 0.0, -1.0]), rtol=0, atol=1e-5)
    assert drawn.features.shape == (32, 32, 0)


@BACKENDS
def test_compensation_keeps_the_light_of_a_small_gaussian(backend):
    """A Gaussian of a tenth of a pixel: blurred without compensation it gives far too much light."""
    means, quaternions, _, opacities = ball()
    scales = torch.full((1, 3), 0.1 * 2 / 32)
    light = 2 * math.pi * 0.01 * 0.8
    sums = [
        rasterize(
            means,
            quaternions,
            scales,
            opacities,
            view(33, cx=16.5, cy=16.5),
            features=torch.ones(1, 1),
            antialiased=kept,
            backend=backend,
        )
        .alpha.sum()
        .item()
        for kept in (False, True)
    ]
    assert sums[0] > 10 * light
    assert sums[1] == pytest.approx(light, rel=0.2)


def test_the_3d_filter_widens_and_dims():
    scales = torch.tensor([[3.0, 4.0, 0.0]])
    opacities = torch.tensor([0.5])
    wider, dimmer = apply_3d_filter(scales, opacities, torch.tensor([4.0]))
    torch.testing.assert_close(wider, torch.tensor([[5.0, 32**0.5, 4.0]]))
    assert dimmer == 0
    unchanged = apply_3d_filter(scales, opacities, torch.tensor([0.0]))
    torch.testing.assert_close(unchanged[0], scales)


def test_rotations_turn_as_quaternions_do():
    half = math.sqrt(0.5)
    turned = rotations(torch.tensor([[2 * half, 0.0, 0.0, 2 * half]])) @ torch.tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(turned[0], torch.tensor([0.0, 1.0, 0.0]))


@BACKENDS
def test_a_camera_that_moves_sees_what_a_world_that_moves_shows(backend):
    turn = rotations(torch.tensor([[0.9, 0.1, -0.3, 0.2]]))[0]
    shift = torch.tensor([0.4, -0.2, 0.7])
    camera_from_world = torch.eye(4)
    camera_from_world[:3, :3] = turn.T
    camera_from_world[:3, 3] = -turn.T @ shift
    means, quaternions, scales, opacities = ball(count=3)
    scales = scales * torch.tensor([1.0, 0.5, 0.2])
    still = rasterize(means, quaternions, scales, opacities, view(), depth="planar", normals=True, backend=backend)
    quaternion = torch.tensor([[0.9, 0.1, -0.3, 0.2]]).repeat(3, 1)
    moved_view = View(camera_from_world=camera_from_world, fx=32.0, fy=32.0, cx=16.0, cy=16.0, width=32, height=32)
    moved = rasterize(
        means @ turn.T + shift, quaternion, scales, opacities, moved_view, depth="planar", normals=True, backend=backend
    )
    for name in ("alpha", "depth", "normals"):
        torch.testing.assert_close(getattr(moved, name), getattr(still, name), rtol=1e-4, atol=1e-4)


def test_a_scaled_view_shows_the_same_picture_smaller():
    whole = view(64, fx=64.0, fy=64.0, cx=30.0, cy=34.0)
    half = view(64, fx=64.0, fy=64.0, cx=30.0, cy=34.0).scaled(0.5)
    assert (half.width, half.height, half.cx, half.fx) == (32, 32, 15.0, 32.0)
    large = rasterize(*ball(), whole, features=torch.ones(1, 1), eps2d=0.0)
    small = rasterize(*ball(), half, features=torch.ones(1, 1), eps2d=0.0)
    shrunk = torch.nn.functional.avg_pool2d(large.alpha[None, None], 2)[0, 0]
    torch.testing.assert_close(small.alpha, shrunk, rtol=0, atol=0.02)


def test_a_view_without_size_is_refused():
    with pytest.raises(ValueError, match="focal length, got 0 x 0"):
        view(0)


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="normals=True"):
        rasterize(*ball(), view())


@pytest.mark.parametrize("degree", [-1, 2, 4])
def test_a_degree_beyond_the_coefficients_is_refused(degree):
    with pytest.raises(ValueError, match=f"degree {degree} need"):
        rasterize(*ball(), view(), spherical_harmonics=(torch.zeros(1, 1, 3), torch.zeros(1, 3, 3)), sh_degree=degree)


def test_a_depth_that_was_not_drawn_is_refused():
    with pytest.raises(ValueError, match="depth='center'"):
        rasterize(*ball(), view(), normals=True).expected_depth()


def test_the_reference_has_no_absgrad():
    with pytest.raises(ValueError, match=r"absgrad=True.*gsplat"):
        rasterize(*ball(), view(), normals=True, absgrad=True, backend="reference")


def test_gsplat_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gsplat", None)
    with pytest.raises(InputError, match=r"pip install 'fieldwatch\[gpu\]'"):
        rasterize(*ball(), view(), normals=True, backend="gsplat")


def test_double_precision_and_a_machine_without_compiler_take_the_reference(monkeypatch):
    assert rasterize(*ball(dtype=torch.float64), view(), normals=True).alpha.dtype == torch.float64
    monkeypatch.setattr(module, "native_available", lambda: (False, "no compiler"))
    assert module._choose_backend("auto", torch.zeros(1, 3)) is module.REFERENCE


def test_statistics_add_up_what_densification_reads():
    means, *rest = ball(count=3)
    means = torch.cat([means[:2], torch.tensor([[0.0, 0.0, -5.0]])]).requires_grad_()
    statistics = DensificationStatistics(3)
    camera = view()
    lengths = torch.zeros(3)
    for step in (1.0, 2.0):
        drawn = rasterize(means, *rest, camera, features=torch.tensor([[1.0], [2.0], [3.0]]))
        weights = torch.arange(32.0)[None, :, None]
        (step * drawn.features * weights).sum().backward()
        statistics.add(drawn, camera)
        lengths[drawn.ids] += torch.linalg.vector_norm(drawn.means2d.grad * 16, dim=-1)
    assert statistics.counts.tolist() == [2, 2, 0]
    assert (statistics.mean_gradient()[:2] > 0).all()
    torch.testing.assert_close(statistics.mean_gradient(), lengths / torch.tensor([2, 2, 1]))
    assert statistics.radii[0] > statistics.radii[1] > 0
    again = DensificationStatistics(1)
    again.load_state_dict(statistics.state_dict())
    assert torch.equal(again.mean_gradient(), statistics.mean_gradient())


def test_statistics_want_a_gradient():
    with pytest.raises(ValueError, match="no gradient reached means2d"):
        DensificationStatistics(1).add(rasterize(*ball(), view(), normals=True), view())
