"""Surface losses of samples above a plane of flat Gaussians, whose distances are known."""

import pytest
import torch

from fieldwatch.recon.geometry import Camera, camera_extent, look_at, nearest_neighbors
from fieldwatch.recon.losses import (
    Ellipsoids,
    Samples,
    beta,
    better_normal_error,
    contributions,
    density,
    density_error,
    ideal_density,
    near_depth,
    projected_distance,
    sample_near,
    samples_on_surface_error,
    sdf_error,
    sdf_from_density,
    sdf_from_depth,
)

NAMES = ("means", "scales", "quaternions", "opacities")
THIN = 0.02


def plane(side=12, step=0.1, dtype=torch.float64, opacity=1.0):
    """Return discs on z = 0 with standard deviations of 6 grid steps; their thin y axis is rotated to z."""
    line = (torch.arange(side, dtype=dtype) - (side - 1) / 2) * step
    x, y = torch.meshgrid(line, line, indexing="ij")
    count = side * side
    return Ellipsoids(
        means=torch.stack([x.flatten(), y.flatten(), torch.zeros(count, dtype=dtype)], -1),
        scales=torch.tensor([0.6, THIN, 0.6], dtype=dtype).expand(count, 3).clone(),
        quaternions=torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=dtype).expand(count, 4).clone(),
        opacities=torch.full((count,), opacity, dtype=dtype),
    )


def camera(width=48, height=40):
    lens = {"fx": 50.0, "fy": 45.0, "cx": 23.0, "cy": 21.0}
    pose = look_at((0.3, -0.4, 3.0), (0.0, 0.0, 0.0))
    return Camera(name="a", width=width, height=height, **lens, world_from_camera=pose)


def depth_of_ground(own):
    origins, directions = own.rays()
    along = -origins[..., 2] / directions[..., 2]
    return along * (directions @ own.forward)


def drawn(own, count=500, k=16):
    samples = sample_near(own, count, generator=torch.Generator().manual_seed(5))
    return samples, nearest_neighbors(own.means, k).indices[samples.owners]


def test_the_projected_distance_of_a_sample_of_a_plane_is_its_height():
    own = plane()
    samples, _ = drawn(own)
    distance = projected_distance(samples, own)
    assert torch.allclose(distance.abs(), samples.points[:, 2].abs(), atol=1e-12)
    assert distance.std().item() == pytest.approx(1.5 * THIN, rel=0.1)


def test_where_discs_add_up_to_one_the_density_stands_for_the_height():
    own = plane(opacity=1.0)
    samples, rows = drawn(own)
    added = contributions(samples.points, rows, own)
    flat = torch.cat([samples.points[:, :2], torch.zeros(500, 1, dtype=torch.float64)], -1)
    whole = density(contributions(flat, rows, own))  # on the plane; normalizes the saturated density to 1
    thickness = beta(own.thickness[rows.long()])
    distance = sdf_from_density(density(added) / whole, thickness)
    assert torch.allclose(distance, samples.points[:, 2].abs(), atol=0.0025 * THIN)  # the linear part
    ideal = ideal_density(projected_distance(samples, own), thickness)
    assert density_error(density(added) / whole, ideal).item() < 1e-12
    assert density_error(density(added), ideal).item() > 0.1  # 16 opaque discs overlap to far more than 1


def test_depth_tells_the_height_in_front_of_the_ground():
    own = camera()
    ground = depth_of_ground(own)
    points = own.unproject(ground).reshape(-1, 3)
    above = points + torch.tensor([0.0, 0.0, 0.1], dtype=torch.float64)
    distance, valid = sdf_from_depth(points, ground, own)
    assert bool(valid.all())
    assert distance.abs().max().item() < 1e-9
    higher, _ = sdf_from_depth(above, ground, own)
    lower, _ = sdf_from_depth(2 * points - above, ground, own)
    assert bool((higher > 0).all() & (lower < 0).all())


def test_depth_between_pixels_is_bilinear_and_beyond_the_picture_that_of_its_border():
    own = camera()
    ramp = own.pixel_centers()[..., 0] * 0.1 + own.pixel_centers()[..., 1] * 0.01 + 1
    places = torch.tensor([[10.2, 7.9], [0.5, 0.5], [-50.0, 20.5], [300.0, 300.0]], dtype=torch.float64)
    rays = torch.stack([(places[:, 0] - own.cx) / own.fx, (places[:, 1] - own.cy) / own.fy, torch.ones(4)], -1)
    points = 2 * rays @ own.world_from_camera[:3, :3].T + own.position
    distance, valid = sdf_from_depth(points, ramp, own)
    inside = places.clamp(torch.tensor([0.5, 0.5]), torch.tensor([47.5, 39.5]))
    assert torch.allclose(distance, inside @ torch.tensor([0.1, 0.01], dtype=torch.float64) + 1 - 2)
    assert bool(valid.all())


def test_points_behind_the_camera_have_no_estimate_and_no_slope():
    own = camera()
    points = torch.stack([own.position + a * own.forward for a in (-1.0, 0.0, 1e-30, 0.005, 0.5)]).requires_grad_()
    distance, valid = sdf_from_depth(points, depth_of_ground(own), own)
    assert valid.tolist() == [False, False, False, False, True]
    assert distance[:4].tolist() == [0.0] * 4
    distance.sum().backward()
    assert bool((points.grad[:4] == 0).all())
    assert bool(torch.isfinite(points.grad).all() & (points.grad[4] != 0).any())


def test_gradcheck_of_the_distance_from_depth():
    own = camera(8, 6)
    depth = (2.5 + torch.rand(6, 8, dtype=torch.float64)).requires_grad_()
    points = (torch.rand(5, 3, dtype=torch.float64) * 0.2).requires_grad_()
    assert torch.autograd.gradcheck(lambda p, d: sdf_from_depth(p, d, own)[0], (points, depth))


def test_a_depth_map_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"camera 'a' .*9x7 and 48x40"):
        sdf_from_depth(torch.rand(2, 3), torch.rand(7, 9), camera())


def test_gaussians_at_the_surface_that_is_seen_are_found():
    own = camera()
    flat = plane()
    lift = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    for height, expected in [(0.0, True), (1.5 * THIN, True), (5 * THIN, False), (-0.3, False)]:
        upright = flat.scales.clone()
        upright[:, [0, 2]] = THIN  # small balls: their deviation is the same along every ray
        raised = Ellipsoids(means=flat.means + height * lift, scales=upright, quaternions=flat.quaternions,
                            opacities=flat.opacities)  # fmt: skip
        assert bool((near_depth(raised, depth_of_ground(own), own) == expected).all())


def test_errors_are_in_tenths_of_the_extent_and_capped():
    sdf = torch.tensor([0.3, 0.1, 900.0])
    estimate = torch.tensor([-0.1, 0.1, 0.0])
    assert sdf_error(sdf, estimate, 2.0).item() == pytest.approx((0.2 / 0.2 + 0 + 20) / 3)
    assert sdf_error(sdf, estimate, 2.0, torch.tensor([True, True, False])).item() == pytest.approx(0.5)
    assert samples_on_surface_error(-sdf, 2.0).item() == pytest.approx((1.5 + 0.5 + 20) / 3)
    assert sdf_error(sdf[:0], estimate[:0], 2.0).item() == 0
    assert camera_extent([camera()]) == 0
    with pytest.raises(ValueError, match=r"extent.*greater than 0, got 0\.0"):
        samples_on_surface_error(sdf, camera_extent([camera()]))


def test_equal_normals_have_no_better_normal_whatever_their_sign():
    own = plane()
    half = torch.arange(len(own.means)) % 2 == 0
    upside_down = torch.tensor([0.0, 0.0, 1.0, -1.0], dtype=torch.float64)  # the same thin axis with the opposite sign
    own.quaternions[half] = upside_down
    assert own.normals[half][:, 2].mean() * own.normals[~half][:, 2].mean() == pytest.approx(-1.0)
    samples, rows = drawn(own)
    added = contributions(samples.points, rows, own)
    assert better_normal_error(samples, rows, added, own).item() < 1e-12


def test_a_better_normal_turns_the_odd_one_towards_its_neighbors():
    own = plane()
    own.quaternions[70] = torch.tensor([1.0, 0.7, 0.0, 0.0])
    quaternions = own.quaternions.requires_grad_()
    others = torch.arange(144) != 70
    errors = []
    for _ in range(40):
        made = Ellipsoids(means=own.means, scales=own.scales, quaternions=quaternions, opacities=own.opacities)
        samples, rows = drawn(made)
        samples = Samples(points=samples.points.detach(), owners=samples.owners)
        error = better_normal_error(samples, rows, contributions(samples.points, rows, made), made)
        (slope,) = torch.autograd.grad(error, quaternions)
        slope[others] = 0
        quaternions = (quaternions - 20 * slope).detach().requires_grad_()
        errors.append(error.item())
    assert errors[-1] < 0.2 * errors[0]


def test_better_normals_send_gradients_to_quaternions_only():
    leaves = [getattr(plane(), name).requires_grad_() for name in NAMES]
    own = Ellipsoids(**dict(zip(NAMES, leaves, strict=True)))
    with torch.no_grad():
        own.quaternions[::3, 1] += 0.2
    samples, rows = drawn(own)
    better_normal_error(samples, rows, contributions(samples.points, rows, own), own).backward()
    assert [leaf.grad is not None for leaf in leaves] == [False, False, True, False]
    assert float(own.quaternions.grad.abs().max()) > 0


def test_gradcheck_of_better_normals():
    own = plane(side=3)
    generator = torch.Generator().manual_seed(3)
    turned = own.quaternions + 0.2 * torch.randn(own.quaternions.shape, generator=generator, dtype=torch.float64)
    samples, rows = drawn(own, 12, 5)
    added = contributions(samples.points, rows, own)

    def error(quaternions):
        made = Ellipsoids(means=own.means, scales=own.scales, quaternions=quaternions, opacities=own.opacities)
        return better_normal_error(samples, rows, added, made)

    def by_hand(quaternions):
        normals = Ellipsoids(
            means=own.means, scales=own.scales, quaternions=quaternions, opacities=own.opacities
        ).normals
        total = torch.zeros((), dtype=torch.float64)
        for point, owner, row, a in zip(samples.points, samples.owners, rows.long(), added, strict=True):
            n = normals[owner]
            aligned = torch.stack([normals[j] * (1 if normals[j] @ n >= 0 else -1) for j in row])
            heights = ((point - own.means[row]) * aligned).sum(-1).abs()
            w = (a * heights / own.thickness[row] ** 2).detach()
            total = total + (n - (w / w.sum()) @ aligned).square().sum()
        return total / len(samples.points)

    turned.requires_grad_()
    ours = error(turned)
    reference = by_hand(turned)
    assert ours.item() == pytest.approx(reference.item(), rel=1e-9)
    slopes = [torch.autograd.grad(value, turned)[0] for value in (ours, reference)]
    assert torch.allclose(*slopes, rtol=1e-9, atol=1e-12)


def test_gradcheck_of_projected_distance_and_errors():
    own = plane(side=2)
    samples, _ = drawn(own, 4, 2)
    leaves = [t.requires_grad_() for t in (samples.points, own.means, own.quaternions)]

    def distance(points, means, quaternions):
        made = Ellipsoids(means=means, scales=own.scales, quaternions=quaternions, opacities=own.opacities)
        return projected_distance(Samples(points=points, owners=samples.owners), made)

    assert torch.autograd.gradcheck(distance, leaves)
    values = torch.tensor([0.3, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    estimate = torch.tensor([-0.2, 0.5, 0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: sdf_error(a, b, 1.3), (values, estimate))
    assert torch.autograd.gradcheck(lambda b: samples_on_surface_error(b, 1.3), estimate)


@pytest.mark.parametrize("opacity", [0.0, 1.0])
def test_the_whole_chain_has_finite_slopes_at_hostile_gaussians(opacity):
    flat = plane(dtype=torch.float32, opacity=opacity)
    flat.scales[:, 1] = 0
    flat.scales[5] = 0
    flat.quaternions[6] = 0
    flat.means[7] = 1e5
    leaves = [getattr(flat, name).requires_grad_() for name in NAMES]
    own = Ellipsoids(**dict(zip(NAMES, leaves, strict=True)))
    samples, rows = drawn(own)
    added = contributions(samples.points, rows, own)
    thickness = beta(own.thickness[rows.long()])
    distance = projected_distance(samples, own)
    total = density(added)
    loss = density_error(total, ideal_density(distance, thickness)) + better_normal_error(samples, rows, added, own)
    loss = loss + sdf_error(sdf_from_density(total, thickness), distance, 2.0) + samples_on_surface_error(distance, 2.0)
    loss.backward()
    assert bool(torch.isfinite(loss))
    assert [name for name, leaf in zip(NAMES, leaves, strict=True) if not bool(torch.isfinite(leaf.grad).all())] == []
