"""Bound Gaussians: flat, in the plane of their triangle, correctly rotated, with gradients to the vertices."""

import math

import pytest
import torch

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.splats.gaussians import NotFiniteError
from fieldwatch.recon.pipelines.splats.model import SplatModel, view_of
from fieldwatch.recon.pipelines.splats.refined.binding import BoundGaussians, BoundRows, face_normals, triangle_sizes
from fieldwatch.recon.render import rotations

SINGLE = torch.tensor([[0, 1, 2]])
AXES = [(1.0, 0, 0), (-1.0, 0, 0), (0, 1.0, 0), (0, -1.0, 0), (0, 0, 1.0), (0, 0, -1.0)]


def random_triangles(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3 * count, 3, generator=generator, dtype=torch.float64), torch.arange(3 * count).view(-1, 3)


def triangle_towards(normal):
    """Return a triangle with this normal from two vectors perpendicular to it."""
    normal = torch.tensor(normal, dtype=torch.float64)
    across = torch.linalg.cross(normal, torch.tensor([0.31, 0.87, 0.4], dtype=torch.float64))
    across /= across.norm()
    up = torch.linalg.cross(normal, across)
    return torch.stack([torch.zeros(3, dtype=torch.float64), 0.7 * across, 0.2 * across + 0.5 * up])


def covariances(gaussians):
    axes = rotations(gaussians.quaternions) * gaussians.scales[:, None, :]
    return axes @ axes.mT


def expected_covariances(gaussians):
    """Return the covariances from the rotation R = [n, x e1 + y e2, -y e1 + x e2]."""
    corners = gaussians.vertices.detach()[gaussians.faces].repeat_interleave(gaussians.per_triangle, 0)
    normal = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal /= normal.norm(dim=1, keepdim=True)
    e1 = corners[:, 0] - corners[:, 1]
    e1 /= e1.norm(dim=1, keepdim=True)
    e2 = torch.linalg.cross(normal, e1)
    x, y = (gaussians.turns / gaussians.turns.norm(dim=1, keepdim=True)).detach()[..., None].unbind(1)
    axes = torch.stack([normal, x * e1 + y * e2, x * e2 - y * e1], 2) * gaussians.scales.detach()[:, None, :]
    return axes @ axes.mT


@pytest.mark.parametrize("per_triangle", [1, 3, 4, 6])
def test_shapes_are_those_of_the_formula_whatever_the_triangle_and_the_turn(make_bound, per_triangle):
    gaussians = make_bound(*random_triangles(200), per_triangle)
    with torch.no_grad():
        gaussians.turns.copy_(torch.randn_like(gaussians.turns))
        gaussians.plane_log_scales.add_(torch.randn_like(gaussians.plane_log_scales))
    assert torch.allclose(covariances(gaussians), expected_covariances(gaussians), atol=1e-10)


@pytest.mark.parametrize("normal", AXES)
@pytest.mark.parametrize("turn", [(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -2.0)])
def test_triangles_across_an_axis_and_turns_by_quarters_are_no_exception(make_bound, normal, turn):
    gaussians = make_bound(triangle_towards(normal), SINGLE)
    with torch.no_grad():
        gaussians.turns.copy_(torch.tensor([turn]))
        gaussians.plane_log_scales.copy_(torch.tensor([[-1.0, -2.0]]))
    assert torch.allclose(covariances(gaussians), expected_covariances(gaussians), atol=1e-12)
    covariances(gaussians).sum().backward()
    assert bool(torch.isfinite(gaussians.vertices.grad).all())
    assert bool(torch.isfinite(gaussians.turns.grad).all())


@pytest.mark.parametrize("per_triangle", [1, 3, 4, 6])
def test_centers_and_long_axes_lie_in_the_plane_and_the_first_axis_is_the_normal(make_bound, per_triangle):
    gaussians = make_bound(*random_triangles(50), per_triangle)
    normals = face_normals(gaussians.corners).repeat_interleave(per_triangle, 0)
    firsts = gaussians.vertices[gaussians.faces[:, 0]].repeat_interleave(per_triangle, 0)
    assert ((gaussians.means - firsts) * normals).sum(1).abs().max() < 1e-12
    axes = rotations(gaussians.quaternions)
    assert torch.allclose((axes[:, :, 0] * normals).sum(1).abs(), torch.ones(len(gaussians), dtype=torch.float64))
    assert (axes[:, :, 1:] * normals[:, :, None]).sum(1).abs().max() < 1e-12
    assert torch.allclose(gaussians.scales[:, 0], torch.tensor(1e-5, dtype=torch.float64))


def test_they_begin_round_as_large_as_the_shortest_side_says(make_bound):
    gaussians = make_bound([[0.0, 0, 0], [3.0, 0, 0], [0, 4.0, 0]], [[0, 1, 2]], 4)
    assert torch.allclose(gaussians.scales[:, 1:], torch.full((4, 2), 3 / (4 * math.sqrt(3))))
    assert torch.allclose(gaussians.opacities, torch.tensor(0.8))
    assert torch.allclose(gaussians.means[0], torch.tensor([1.0, 4 / 3, 0]))
    assert gaussians.degree == 1
    assert [gaussians.degree_at(step, every=10) for step in (0, 9, 10, 99)] == [0, 0, 1, 1]


def test_sizes_by_area_are_those_by_side_on_equilateral_triangles_and_larger_on_narrow_ones():
    corners = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [0.5, math.sqrt(3) / 2, 0]], [[0, 0, 0], [4, 0, 0], [4, 1, 0]]])
    assert torch.allclose(triangle_sizes(corners, "shortest"), torch.ones(2))
    assert torch.allclose(triangle_sizes(corners, "area"), torch.tensor([1.0, math.sqrt(8 / math.sqrt(3))]))


def test_gradients_of_places_and_shapes_are_those_of_finite_differences(make_bound):
    vertices, faces = random_triangles(2, seed=3)
    gaussians = make_bound(vertices, faces)
    with torch.no_grad():
        gaussians.turns.copy_(torch.randn_like(gaussians.turns))

    def placed(places, turns):
        state = {"vertices": places, "turns": turns}
        return torch.func.functional_call(Placed(gaussians), {f"gaussians.{k}": v for k, v in state.items()}, ())

    inputs = [part.detach().clone().requires_grad_() for part in (gaussians.vertices, gaussians.turns)]
    assert torch.autograd.gradcheck(placed, inputs, atol=1e-7)


class Placed(torch.nn.Module):
    """Centers and covariances from a single call."""

    def __init__(self, gaussians):
        super().__init__()
        self.gaussians = gaussians

    def forward(self):
        return self.gaussians.means, covariances(self.gaussians)


def test_the_gradient_of_a_picture_reaches_the_vertices(make_bound):
    vertices, faces = random_triangles(6, seed=1)
    gaussians = make_bound(0.5 * vertices, faces)
    with torch.no_grad():
        gaussians.constant.copy_(torch.randn_like(gaussians.constant))
    view = double_view()
    model = SplatModel(gaussians, torch.zeros(3, dtype=torch.float64))
    weights = torch.randn(view.height, view.width, 3, dtype=torch.float64)

    def rendered():
        return (model.render(view).features * weights).sum()

    rendered().backward()
    direction = torch.randn_like(gaussians.vertices)
    slope = (gaussians.vertices.grad * direction).sum()
    step = 1e-6
    with torch.no_grad():
        gaussians.vertices.add_(step * direction)
        after = rendered()
        gaussians.vertices.sub_(2 * step * direction)
        before = rendered()
    assert abs(slope) > 1e-2
    assert (after - before) / (2 * step) == pytest.approx(slope.item(), rel=1e-4)


def double_view():
    pose = torch.eye(4, dtype=torch.float64)
    pose[2, 3] = -4.0
    camera = Camera(name="double", fx=30.0, fy=30.0, cx=12.0, cy=12.0, width=24, height=24, world_from_camera=pose)
    view = view_of(camera, torch.device("cpu"))
    return type(view)(**{**vars(view), "camera_from_world": view.camera_from_world.double()})


def test_what_is_found_once_is_what_is_found_each_time_and_is_forgotten(make_bound):
    gaussians = make_bound(*random_triangles(5))
    before = (gaussians.means, gaussians.quaternions, gaussians.normals)
    with gaussians.cached_geometry():
        inside = (gaussians.means, gaussians.quaternions, gaussians.normals)
    assert all(torch.equal(one, other) for one, other in zip(before, inside, strict=True))
    with torch.no_grad():
        gaussians.vertices.add_(1)
    assert torch.allclose(gaussians.means, before[0] + 1)


def test_a_face_without_area_is_finite_and_so_is_its_gradient(make_bound):
    gaussians = make_bound([[0.0, 0, 0], [1.0, 0, 0], [2.0, 0, 0], [1.0, 1.0, 0]], [[0, 1, 2], [0, 1, 3], [1, 1, 1]])
    total = gaussians.quaternions.sum() + gaussians.means.sum() + gaussians.scales.sum()
    total.backward()
    assert all(bool(part.isfinite().all()) for part in (gaussians.quaternions, gaussians.scales))
    assert bool(gaussians.vertices.grad.isfinite().all())


def test_rows_and_clouds_are_those_of_free_gaussians(make_bound):
    gaussians = make_bound(*(part for part in random_triangles(7)), 3)
    rows = gaussians.rows()
    cloud = gaussians.to_cloud()
    assert torch.allclose(rows.quaternions.norm(dim=1), torch.ones(21, dtype=torch.float64))
    assert torch.allclose(rows.log_scales.exp(), gaussians.scales)
    assert not any(part.requires_grad for part in rows)
    assert torch.equal(cloud.means, rows.means)
    assert list(gaussians.groups()) == ["vertices", "plane_log_scales", "turns", "opacity_logits", "constant", "rest"]


def look(count, **changes):
    parts = {"plane_log_scales": (2,), "turns": (2,), "opacity_logits": (), "constant": (3,), "rest": (0, 3)}
    usual = {name: torch.ones(count, *shape) for name, shape in parts.items()}
    return BoundRows(**(usual | changes))


@pytest.mark.parametrize(
    ("count", "options", "error", "message"),
    [
        (2, {"per_triangle": 3, "thickness": 1.0}, ValueError, "1 faces with 3 Gaussians each need 3 rows"),
        (1, {"per_triangle": 1, "thickness": 0.0}, ValueError, "thickness .* got 0"),
        (1, {"per_triangle": 1, "thickness": math.inf}, ValueError, "thickness .* got inf"),
    ],
)
def test_what_does_not_fit_is_refused(count, options, error, message):
    with pytest.raises(error, match=message):
        BoundGaussians(torch.eye(3), SINGLE, look(count), **options)


def test_values_that_are_not_finite_are_refused(make_bound):
    with pytest.raises(NotFiniteError, match="vertices of Gaussian 0 is not finite"):
        BoundGaussians(torch.eye(3).log(), SINGLE, look(1), per_triangle=1, thickness=1.0)
    with pytest.raises(ValueError, match=r"initial opacity .* got 1"):
        make_bound(torch.eye(3), SINGLE, opacity=1.0)
