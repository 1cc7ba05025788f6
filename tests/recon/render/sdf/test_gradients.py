"""Three ways to a gradient, on fields whose gradient is known."""

import pytest
import torch

from fieldwatch.recon.render import gradient_ad, gradient_dfd, gradient_fd, plane_distances

NORMAL = torch.tensor([0.48, -0.6, 0.64], dtype=torch.float64)
SHAPE = torch.tensor([[0.9, 0.2, 0.0], [0.2, 0.7, -0.1], [0.0, -0.1, 0.5]], dtype=torch.float64)


def plane(points):
    return points @ NORMAL.to(points.dtype) - 0.1


def sphere(points):
    return points.norm(dim=-1) - 0.6


def quadric(points):
    return ((points @ SHAPE.to(points.dtype)) * points).sum(-1) - 0.3


GRADIENTS = {
    plane: NORMAL.expand_as,
    sphere: lambda p: p / p.norm(dim=-1, keepdim=True),
    quadric: lambda p: 2 * p @ SHAPE,
}
FIELDS = pytest.mark.parametrize("field", GRADIENTS, ids=lambda f: f.__name__)


def shell(count=200):
    """Points 0.5 to 0.7 from the middle, in double precision."""
    points = torch.randn(count, 3, dtype=torch.float64)
    return points / points.norm(dim=-1, keepdim=True) * (0.5 + 0.2 * torch.rand(count, 1).double())


@FIELDS
def test_automatic_gradients_are_exact(field):
    points = shell()
    values, gradient = gradient_ad(field, points)
    assert torch.equal(values, field(points))
    assert torch.allclose(gradient, GRADIENTS[field](points), atol=1e-14)


def test_automatic_gradients_can_be_differentiated_again():
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    points = shell(5).requires_grad_()
    _, gradient = gradient_ad(lambda p: scale * sphere(p), points)
    gradient.square().sum().backward()
    assert scale.grad.item() == pytest.approx(2 * 2 * 5)
    assert points.grad is not None


def test_automatic_gradients_without_a_graph_work_where_gradients_are_off():
    with torch.no_grad():
        values, gradient = gradient_ad(sphere, shell(), create_graph=False)
    assert not values.requires_grad
    assert not gradient.requires_grad


@FIELDS
def test_central_differences_are_within_eps_squared(field):
    points = shell()
    error = (gradient_fd(field, points, 1e-3) - GRADIENTS[field](points)).abs().max().item()
    assert error < (2e-6 if field is sphere else 1e-11)


@FIELDS
def test_central_differences_in_single_precision(field):
    points = shell()
    error = (gradient_fd(field, points.float(), 1e-3).double() - GRADIENTS[field](points)).abs().max().item()
    assert error < 3e-4


def patches(side=3, step=1e-3, samples=40):
    """Sections on marching planes of a camera at distance 3, turned, with a focal length of 800 pixels."""
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    offset = torch.arange(side, dtype=torch.float64) - side // 2
    center = 60 * torch.randn(samples, 2, dtype=torch.float64)
    x = (center[:, 0, None, None] + offset).expand(-1, side, -1) / 800
    y = (center[:, 1, None, None] + offset[:, None]).expand(-1, -1, side) / 800
    directions = torch.stack([x, y, torch.ones_like(x)], -1)
    directions = directions / directions.norm(dim=-1, keepdim=True) @ turn.T
    axis = turn[:, 2].expand(samples, 3)
    central = directions[:, side // 2, side // 2]
    begin = 2.4 + 0.1 * torch.rand(samples, dtype=torch.float64)
    ends = [plane_distances(t, central, directions, axis) for t in (begin, begin + step)]
    points = [-3 * turn[:, 2] + t[..., None] * directions for t in ends]
    return points, axis, turn


def dfd(field, points):
    return gradient_dfd(*(field(p.reshape(-1, 3)).view(p.shape[:-1]) for p in points), *points)


@FIELDS
@pytest.mark.parametrize("side", [2, 3, 5])
def test_directional_differences_agree_within_half_a_step(field, side):
    points, _, _ = patches(side)
    expected = GRADIENTS[field](points[0].reshape(-1, 3)).view_as(points[0])
    error = (dfd(field, points) - expected).norm(dim=-1)
    curvature = {plane: 1e-8, sphere: 1 / 0.45, quadric: 1.95}[field]
    pixel = 2.5 / 800
    assert error.max().item() < curvature * (0.5e-3 + 0.75 * pixel) + 1e-9
    if side > 2:  # central across: what is left is the forward difference along the ray
        assert error[:, 1:-1, 1:-1].max().item() < curvature * 0.75e-3 + 1e-5


@FIELDS
def test_all_three_agree(field):
    points, _, _ = patches(3, 1e-4)
    places = points[0][:, 1, 1]
    three = (gradient_ad(field, places)[1], gradient_fd(field, places), dfd(field, points)[:, 1, 1])
    assert max((a - three[0]).norm(dim=-1).max().item() for a in three[1:]) < 3e-4


def test_marching_planes_are_across_the_optical_axis():
    points, axis, _ = patches()
    depth = (points[0] * axis[:, None, None]).sum(-1)
    assert float((depth - depth[:, :1, :1]).abs().max()) < 1e-14


def test_directional_differences_have_gradients_by_the_field_not_by_the_places():
    points, _, _ = patches()
    leaves = [p.clone().requires_grad_() for p in points]
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    values = [scale * plane(p.reshape(-1, 3)).view(p.shape[:-1]) for p in points]
    gradient_dfd(*values, *leaves).sum().backward()
    assert scale.grad.item() == pytest.approx(9 * 40 * NORMAL.sum().item(), rel=1e-6)
    assert [leaf.grad for leaf in leaves] == [None, None]


def test_no_samples_have_no_gradients():
    nothing = torch.zeros(0, 3, 3)
    assert gradient_dfd(nothing, nothing, torch.zeros(0, 3, 3, 3), torch.zeros(0, 3, 3, 3)).shape == (0, 3, 3, 3)
    assert gradient_fd(sphere, torch.zeros(0, 3)).shape == (0, 3)
    assert gradient_ad(sphere, torch.zeros(0, 3))[1].shape == (0, 3)


def test_what_spans_no_space_is_refused():
    points, _, _ = patches()
    with pytest.raises(ValueError, match="not span space"):
        dfd(sphere, [points[0], points[0]])
    with pytest.raises(ValueError, match="at least 2 x 2 pixels"):
        dfd(sphere, [p[:, :1] for p in points])


def test_a_field_with_an_axis_too_many_is_refused():
    for gradient in (gradient_ad, gradient_fd):
        with pytest.raises(ValueError, match=r"shape \(\d+, 1\) for \d+ points"):
            gradient(lambda p: p[:, :1], torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"eps .* greater than 0, .* got 0\.0"):
        gradient_fd(sphere, torch.zeros(4, 3), 0.0)
