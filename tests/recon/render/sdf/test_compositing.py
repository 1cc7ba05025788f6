"""Blending of packed samples: a dense reference, analytic scenes, and the edges of alpha."""

import pytest
import torch

from fieldwatch.recon.render import composite, section_alpha, transmittance

COUNTS = [3, 0, 1, 5, 0, 7, 2, 0]
RAYS = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
SAMPLES = len(RAYS)


def dense(alpha, ray_index, n_rays):
    """Weights ray by ray, by products as they are written; differentiable, for alpha = 1 as well."""
    weights = []
    clear = []
    for ray in range(n_rays):
        left = torch.ones((), dtype=alpha.dtype)
        for a in alpha[ray_index == ray]:
            weights.append(left * a)
            left = left * (1 - a)
        clear.append(left)
    return torch.stack(weights), 1 - torch.stack(clear)


def random_alpha():
    return 0.05 + 0.9 * torch.rand(SAMPLES, dtype=torch.float64)


def solid_alpha(places):
    alpha = random_alpha()
    alpha[places] = 1
    return alpha


CASES = {
    "open": [],
    "one solid": [5],
    "two in a ray": [5, 7],
    "last": [8],
    "all": list(range(SAMPLES)),
    "next": [9, 10],
}


@pytest.mark.parametrize("places", CASES.values(), ids=CASES.keys())
def test_packed_equals_dense_forward_and_backward(places):
    alpha = solid_alpha(places)
    values = torch.randn(SAMPLES, 3, dtype=torch.float64)
    distances = torch.rand(SAMPLES, dtype=torch.float64)
    slopes = [
        torch.randn(SAMPLES).double(),
        torch.randn(8).double(),
        torch.randn(8).double(),
        torch.randn(8, 3).double(),
    ]

    packed = alpha.clone().requires_grad_()
    out = composite(packed, RAYS, 8, distances, values)
    total = sum((a * b).sum() for a, b in zip(slopes, (out.weights, out.opacity, out.depth, *out.values), strict=True))
    total.backward()

    single = alpha.clone().requires_grad_()
    weights, opacity = dense(single, RAYS, 8)
    depth = torch.zeros(8).double().index_add(0, RAYS, weights * distances)
    blended = torch.zeros(8, 3).double().index_add(0, RAYS, weights[:, None] * values)
    expected = sum((a * b).sum() for a, b in zip(slopes, (weights, opacity, depth, blended), strict=True))
    expected.backward()

    assert torch.allclose(out.weights, weights, atol=1e-14)
    assert torch.allclose(out.values[0], blended, atol=1e-13)
    assert total.item() == pytest.approx(expected.item(), abs=1e-12)
    assert torch.allclose(packed.grad, single.grad, atol=1e-12)


def test_gradcheck():
    alpha = random_alpha().requires_grad_()
    distances = torch.rand(SAMPLES, dtype=torch.float64).requires_grad_()
    values = torch.randn(SAMPLES, 2, dtype=torch.float64).requires_grad_()

    def blend(*inputs):
        out = composite(inputs[0], RAYS, 8, *inputs[1:])
        return out.weights, out.opacity, out.depth, *out.values

    assert torch.autograd.gradcheck(blend, (alpha, distances, values))


def test_weights_add_up_to_an_opacity_of_at_most_one():
    counts = torch.randint(0, 200, (300,))
    rays = torch.arange(300).repeat_interleave(counts)
    out = composite(torch.rand(len(rays)) ** 4, rays, 300, torch.zeros(len(rays)))
    assert torch.allclose(torch.zeros(300).index_add(0, rays, out.weights), out.opacity, atol=1e-6)
    assert float(out.opacity.max()) <= 1
    assert float(out.opacity.min()) >= 0
    assert bool((out.opacity[counts == 0] == 0).all())


def test_many_opaque_rays_in_front_cost_a_ray_no_precision():
    """The running sum reaches a million: in single precision the last ray would be lost in it."""
    alpha = torch.full((64_000,), 1 - 6e-8)
    last = torch.tensor([1e-3, 0.25, 0.5])
    rays = torch.cat([torch.arange(64_000), torch.full((3,), 64_000)])
    out = composite(torch.cat([alpha, last]), rays, 64_001, torch.zeros(64_003))
    assert torch.allclose(out.weights[-3:], dense(last.double(), torch.zeros(3), 1)[0].float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("n_rays", [0, 5])
def test_no_samples_see_nothing(n_rays):
    alpha = torch.zeros(0, requires_grad=True)
    out = composite(alpha, torch.zeros(0, dtype=torch.int64), n_rays, torch.zeros(0), torch.zeros(0, 3))
    assert out.opacity.tolist() == out.depth.tolist() == [0.0] * n_rays
    assert out.values[0].shape == (n_rays, 3)
    out.opacity.sum().backward()
    assert alpha.grad.shape == (0,)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_one_sample_weighs_its_alpha(value):
    alpha = torch.tensor([value], requires_grad=True)
    out = composite(alpha, torch.tensor([1]), 3, torch.tensor([2.0]), torch.tensor([[4.0]]))
    out.opacity.sum().backward()
    assert (out.opacity[1].item(), out.depth[1].item()) == (pytest.approx(value), pytest.approx(2 * value))
    assert alpha.grad.tolist() == [1.0]


def test_transmittance_is_what_reaches_a_sample():
    alpha = solid_alpha([5])
    weights, _ = dense(alpha, RAYS, 8)
    reaching = transmittance(alpha, RAYS, 8)
    assert torch.allclose(reaching * alpha, weights)
    assert reaching[6:9].tolist() == [0.0, 0.0, 0.0]
    assert not reaching.requires_grad


def test_samples_that_do_not_fit_are_refused():
    two = torch.tensor([0.5, 0.5])
    places = torch.zeros(2)
    with pytest.raises(ValueError, match="sort them by ray_index"):
        composite(two, torch.tensor([1, 0]), 2, places)
    with pytest.raises(ValueError, match="outside 0 to 1"):
        composite(two, torch.tensor([0, 2]), 2, places)
    with pytest.raises(ValueError, match=r"alpha .*\[0, 1\].* got 0\.5 to 1\.5"):
        composite(torch.tensor([0.5, 1.5]), torch.tensor([0, 1]), 2, places)


def test_what_is_not_a_number_shows():
    out = composite(torch.tensor([0.5, torch.nan]), torch.tensor([0, 1]), 2, torch.zeros(2))
    assert bool(out.opacity[1].isnan())


def sections(start, step, count):
    ends = start + step * torch.arange(count + 1, dtype=torch.float64)
    return ends[:-1], ends[1:]


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.77])
def test_a_plane_is_seen_at_its_distance_whatever_the_phase_of_the_samples(phase):
    """Weights are differences of the sigmoid: the depth is its mean by the trapezoid rule, exact to 1e-6."""
    begin, end = sections(0.5 + 0.004 * phase, 0.004, 250)
    sdf = [1.0 - 0.8 * t for t in (begin, end)]  # a ray at 0.8 to the normal, plane at t = 1.25
    out = composite(section_alpha(*sdf, 300.0), torch.zeros(250, dtype=torch.int64), 1, 0.5 * (begin + end))
    assert out.opacity.item() == pytest.approx(1, abs=1e-9)
    assert out.depth.item() == pytest.approx(1.25, abs=1e-5)


def test_a_sphere_is_seen_at_its_distance_with_its_normal():
    angle = torch.linspace(0, 0.5, 9, dtype=torch.float64)
    directions = torch.stack([angle.sin(), torch.zeros(9).double(), -angle.cos()], -1)
    origin = torch.tensor([0.0, 0.0, 1.2], dtype=torch.float64)
    begin, end = sections(0.4, 5e-4, 1200)
    ray = torch.arange(9).repeat_interleave(1200)
    place = [origin + t.repeat(9)[:, None] * directions[ray] for t in (begin, end)]
    radius = [p.norm(dim=-1) for p in place]
    alpha = section_alpha(radius[0] - 0.6, radius[1] - 0.6, 2000.0)
    out = composite(alpha, ray, 9, (0.5 * (begin + end)).repeat(9), place[0] / radius[0][:, None])
    middle = -(origin * directions).sum(-1)
    chord = 0.36 - (1.44 - middle**2)
    hit = chord > 1e-3
    distance = middle - chord.clamp_min(0).sqrt()
    assert int(hit.sum()) == 9
    assert torch.allclose(out.depth, distance, atol=2e-3)
    assert float((out.depth - distance)[:6].abs().max()) < 2e-5
    normal = (origin + distance[:, None] * directions) / 0.6
    assert float((out.values[0] - normal)[:6].norm(dim=-1).max()) < 1e-3


def test_the_gradient_of_opacity_by_the_field_matches_finite_differences():
    rays = torch.tensor([0, 0, 0, 0, 2, 2, 2])
    sdf = (0.1 * torch.randn(9, dtype=torch.float64)).sort(descending=True).values.requires_grad_()
    start = torch.tensor([0, 1, 2, 3, 5, 6, 7])
    end = torch.tensor([1, 2, 3, 4, 6, 7, 8])

    def opacity(field):
        return composite(section_alpha(field[start], field[end], 20.0), rays, 3, torch.zeros(7).double()).opacity

    assert torch.autograd.gradcheck(opacity, sdf)
