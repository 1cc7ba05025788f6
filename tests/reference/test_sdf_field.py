"""The fused kernel of the neural SDF against the composition in plain torch, in double precision."""

import copy

import pytest
import torch

from fieldwatch.recon.render import HashEncoding, HashSdf, native_available

SETTINGS = {
    "as trained": {"levels": 8, "base_resolution": 4, "finest_resolution": 64, "table_bits": 12},
    "fading in": {"levels": 6, "finest_resolution": 80, "table_bits": 10, "active": 3.4},
    "no level": {"levels": 2, "finest_resolution": 30, "table_bits": 10, "active": 0},
    "four features, odd units": {"levels": 3, "finest_resolution": 30, "features_per_level": 4, "hidden": 37},
    "one dense level": {"levels": 1, "base_resolution": 5, "finest_resolution": 5, "hidden": 8},
    "many collisions": {"levels": 8, "finest_resolution": 512, "table_bits": 5},
    "the largest": {"levels": 32, "finest_resolution": 100, "table_bits": 8, "hidden": 256},
    "sharp": {"levels": 4, "finest_resolution": 40, "table_bits": 10, "sharpness": 100.0},
    "no weight norm": {"levels": 4, "finest_resolution": 40, "table_bits": 10, "weight_norm": False},
}
COUNTS = [1, 7, 31, 32, 33, 700]
PULLS = {"both": (1, 1), "values": (1, 0), "gradients": (0, 1)}


@pytest.fixture(autouse=True)
def kernels():
    there, reason = native_available()
    if not there:
        pytest.skip(reason)


def field(active=None, hidden=64, sharpness=10.0, weight_norm=True, **encoding):
    chance = torch.Generator().manual_seed(0)
    made = HashSdf(
        encoding=HashEncoding(**({"base_resolution": 4} | encoding), generator=chance),
        hidden=hidden,
        sharpness=sharpness,
        weight_norm=weight_norm,
        generator=chance,
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=chance) * 0.3)
    if active is not None:
        made.activate(active)
    return made


def outcome(made, count, pull):
    """Values, gradients, and what flows back to points and parameters."""
    chance = torch.Generator().manual_seed(count)
    kind = made.last.bias.dtype
    points = (torch.rand(count, 3, generator=chance) * 2 - 1).to(kind).requires_grad_()
    factors = [torch.randn(count, generator=chance), torch.randn(count, 3, generator=chance)]
    parts = made.with_gradient(points)
    loss = sum(
        (part * factor.to(kind)).sum() for part, factor, wanted in zip(parts, factors, pull, strict=True) if wanted
    )
    loss.backward()
    found = {"value": parts[0].detach(), "gradient": parts[1].detach(), "points": points.grad}
    return found | {name: part.grad for name, part in made.named_parameters()}


def assert_close(ours, wanted, tolerance=1e-5):
    """To a share of the largest entry: of the layer's weights, where length and direction of them are apart."""
    scales = {}
    for name, right in wanted.items():
        layer = name.split(".parametrizations")[0]
        scales[layer] = max(scales.get(layer, 0.0), 0.0 if right is None else right.abs().max().item())
    for name, right in wanted.items():
        found = ours[name]
        layer = name.split(".parametrizations")[0]
        assert found.dtype == torch.float32
        assert (found - (0 if right is None else right)).abs().max() <= tolerance * scales[layer], name


@pytest.mark.parametrize("pull", PULLS.values(), ids=PULLS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_values_gradients_and_all_that_flows_back(settings, pull):
    made = field(**settings)
    assert_close(outcome(made, 300, pull), outcome(copy.deepcopy(made).double(), 300, pull))


@pytest.mark.parametrize("count", COUNTS)
def test_any_number_of_points(count):
    made = field(**SETTINGS["as trained"])
    assert_close(outcome(made, count, (1, 1)), outcome(copy.deepcopy(made).double(), count, (1, 1)))


def test_values_alone():
    made = field(**SETTINGS["as trained"])
    exact = copy.deepcopy(made).double()
    results = []
    for each in (made, exact):
        points = (torch.rand(500, 3, generator=torch.Generator().manual_seed(1)) * 2 - 1).to(each.last.bias.dtype)
        points.requires_grad_()
        value = each(points)
        value.square().sum().backward()
        named = {name: part.grad for name, part in each.named_parameters()}
        results.append({"value": value.detach(), "points": points.grad} | named)
    assert_close(*results)


def test_the_double_backward_of_autograd_gives_the_same():
    """The oracle's gradient is written out; here it is autograd's own, differentiated again."""
    made = field(**SETTINGS["as trained"]).double()
    results = []
    for written in (True, False):
        made.zero_grad()
        points = torch.rand(200, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 1.9 - 0.95
        points.requires_grad_()
        value, gradient = made.with_gradient(points)
        if not written:
            value = made(points)
            (gradient,) = torch.autograd.grad(value.sum(), points, create_graph=True)
        (value.square().sum() + (gradient.norm(dim=-1) - 1).square().sum()).backward()
        results.append([points.grad, *(part.grad for part in made.parameters())])
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found, right)
