"""The neural SDF: its start is a sphere, its gradient is that of its values, and it trains."""

import copy

import pytest
import torch

from fieldwatch.recon.render import HashEncoding, HashSdf, native_available

TINY = {"levels": 3, "base_resolution": 4, "finest_resolution": 20, "table_bits": 9}


@pytest.fixture(autouse=True)
def kernels():
    there, reason = native_available()
    if not there:
        pytest.skip(reason)


def field(seed=0, **settings):
    chance = torch.Generator().manual_seed(seed)
    return HashSdf(encoding=HashEncoding(**TINY, generator=chance), generator=chance, **settings)


def shaken(seed=0, **settings):
    """A field with random numbers of some size everywhere."""
    made = field(seed, **settings)
    chance = torch.Generator().manual_seed(seed + 100)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=chance) * 0.3)
    return made


def scattered(count, seed=0):
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def directions(count=2000):
    return torch.nn.functional.normalize(torch.randn(count, 3, generator=torch.Generator().manual_seed(3)), dim=-1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("radius", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_start_is_a_sphere(seed, radius, layers):
    made = field(seed, radius=radius, layers=layers)
    out = directions()
    with torch.no_grad():
        inside = made((radius - 0.02) * out)
        outside = made((radius + 0.02) * out)
        _, gradient = made.with_gradient(radius * out)
    assert inside.max() < 0 < outside.min()
    assert (gradient.norm(dim=-1) - 1).abs().max() < 0.02
    assert (gradient * out).sum(dim=-1).min() > 0.98


@pytest.mark.parametrize("weight_norm", [True, False])
def test_the_start_is_turned_at_random_and_repeats(weight_norm):
    one, same, other = (field(seed, weight_norm=weight_norm) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.allclose(one.hidden[0].weight, other.hidden[0].weight)
    assert not one.hidden[0].weight[:, 3:].any()
    assert one.hidden[0].weight[:, :3].sum(dim=0).abs().max() < 1e-5


@pytest.mark.parametrize("layers", [1, 2])
def test_the_gradient_is_that_of_the_values(layers):
    made = shaken(layers=layers, sharpness=5.0).double()
    points = (scattered(200).double() * 0.99).requires_grad_()
    value, gradient = made.with_gradient(points)
    (by_autograd,) = torch.autograd.grad(value.sum(), points)
    torch.testing.assert_close(gradient, by_autograd)
    torch.testing.assert_close(value, made(points))


def test_single_and_double_precision_agree():
    made = shaken(sharpness=20.0)
    points = scattered(100)
    value, gradient = made.with_gradient(points)
    right, slope = copy.deepcopy(made).double().with_gradient(points.double())
    torch.testing.assert_close(value.double(), right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient.double(), slope, atol=1e-4, rtol=1e-5)
    with torch.no_grad():
        assert torch.equal(made(points), value)


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(threads):
    def outcome(count):
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            made = shaken()
            points = scattered(3000).requires_grad_()
            value, gradient = made.with_gradient(points)
            (value.square().sum() + gradient.pow(4).sum()).backward()
        finally:
            torch.set_num_threads(before)
        return [value, gradient, points.grad, *(part.grad for part in made.parameters())]

    assert all(torch.equal(a, b) for a, b in zip(outcome(1), outcome(threads), strict=True))


def test_a_point_that_is_nan_gives_nan_and_leaves_the_others_alone():
    made = shaken()
    points = scattered(50)
    broken = points.clone()
    broken[7, 1] = torch.nan
    others = torch.arange(50) != 7
    for run in (lambda p: (made(p),), made.with_gradient):
        for right, found in zip(run(points), run(broken), strict=True):
            assert found[7].isnan().all()
            assert torch.equal(found[others], right[others])


def test_no_points_give_no_values_and_zero_gradients():
    made = shaken()
    value, gradient = made.with_gradient(torch.zeros(0, 3))
    assert value.shape == (0,)
    assert gradient.shape == (0, 3)
    (value.sum() + gradient.sum()).backward()
    assert all(not part.grad.any() for part in made.parameters())


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("run", [HashSdf.forward, HashSdf.with_gradient])
def test_points_outside_the_box_are_refused(layers, run):
    points = torch.tensor([[1.0, -1.0, 1.0], [0.0, 1.001, 0.0], [-2.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"2 of 3 points.*box \[-1, 1\].*from -2.0 to 1.001"):
        run(field(layers=layers), points)
    run(field(layers=layers), points[:1])


def test_another_precision_is_refused():
    with pytest.raises(ValueError, match=r"points are torch\.float64"):
        field().with_gradient(scattered(3).double())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 5}, "layers of a neural SDF must be between 1 and 4, got 5"),
        ({"hidden": 4}, "hidden of a neural SDF must be between 8 and 1024 units, got 4"),
        ({"radius": 0.0}, "at most 1, got 0.0"),
        ({"sharpness": -1.0}, "sharpness of Softplus must be greater than 0, got -1.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        field(**settings)


@pytest.mark.parametrize("run", [HashSdf.forward, lambda made, points: made.with_gradient(points)[0]])
def test_differentiating_twice_is_refused_by_the_kernel(run):
    points = scattered(5).requires_grad_()
    value = run(shaken(), points)
    with pytest.raises(RuntimeError, match="with_gradient"):
        torch.autograd.grad(value.sum(), points, create_graph=True)


def test_a_level_that_is_not_active_counts_nothing_and_gets_no_gradient():
    made = shaken()
    points = scattered(40)
    made.activate(1)
    start = made.encoding.lattices[1].start
    value, gradient = made.with_gradient(points)
    (value.sum() + gradient.square().sum()).backward()
    assert made.encoding.table.grad[:start].any()
    assert not made.encoding.table.grad[start:].any()
    with torch.no_grad():
        made.encoding.table[start:] += 1
        assert torch.equal(made(points), value)


def test_the_state_holds_all():
    made = shaken(1)
    fresh = field(2)
    points = scattered(20)
    made.activate(1.5)
    fresh.load_state_dict(made.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(fresh.with_gradient(points), made.with_gradient(points), strict=True))
    assert {"last.bias", "hidden.0.parametrizations.weight.original0", "encoding.active_levels"} <= set(
        made.state_dict()
    )


@pytest.mark.parametrize("layers", [1, 2])
def test_it_learns_another_surface(layers):
    """An ellipsoid: values and unit gradients are fitted."""
    made = field(layers=layers, sharpness=30.0)
    points = scattered(500)
    scale = torch.tensor([1.0, 1.4, 0.8])
    target = (points * scale).norm(dim=-1) - 0.5
    wanted = points * scale**2 / (points * scale).norm(dim=-1, keepdim=True)
    optimizer = torch.optim.Adam(made.parameters(), lr=5e-3)
    losses = []
    for _ in range(30):
        value, gradient = made.with_gradient(points)
        loss = (value - target).abs().mean() + (gradient - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.25 * losses[0]
