import math

import pytest
import torch
from torch import nn

from fieldwatch.measure import ParameterGroups, UpdateSizes, gradient_norms, parameter_statistics
from fieldwatch.measure.gradients import largest_gradient


def model():
    return nn.ModuleDict({"sdf": nn.Linear(3, 4), "pose": nn.Linear(2, 2)})


def test_norms_per_group_and_total_equal_torchs_own():
    net = model()
    watched = ParameterGroups()
    watched.add(sdf=net["sdf"], pose=net["pose"])
    (net["sdf"](torch.ones(5, 3)).square().sum() + net["pose"](torch.ones(5, 2)).sum()).backward()
    norms = gradient_norms(watched)
    for name in ("sdf", "pose"):
        expected = torch.nn.utils.get_total_norm([p.grad for p in net[name].parameters()])
        torch.testing.assert_close(norms.groups[name], expected)
    torch.testing.assert_close(norms.total, torch.nn.utils.get_total_norm([p.grad for p in net.parameters()]))


def test_a_nan_stays_in_the_group_that_made_it():
    net = model()
    watched = ParameterGroups()
    watched.add(sdf=net["sdf"], pose=net["pose"])
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    net["pose"].bias.grad[0] = float("nan")
    norms = gradient_norms(watched)
    assert torch.isfinite(norms.groups["sdf"])
    assert torch.isnan(norms.groups["pose"])
    assert torch.isnan(norms.total)


def test_groups_of_one_gradient_each_beside_one_of_several():
    watched = ParameterGroups()
    parts = {"a": [(3.0, 4.0)], "b": [(5.0, 12.0), (0.0, 84.0)], "c": [(8.0, 15.0)]}
    for name, entries in parts.items():
        parameters = [nn.Parameter(torch.zeros(2)) for _ in entries]
        for parameter, values in zip(parameters, entries, strict=True):
            parameter.grad = torch.tensor(values)
        watched.add(**{name: parameters})
    norms = gradient_norms(watched)
    assert [float(norm) for norm in norms.groups.values()] == [5.0, 85.0, 17.0]
    assert float(norms.total) == pytest.approx(math.hypot(5.0, 85.0, 17.0))
    watched.read("b")[1].grad = None
    assert [float(norm) for norm in gradient_norms(watched).groups.values()] == [5.0, 13.0, 17.0]


@pytest.mark.parametrize(
    ("entries", "largest"),
    [([[1.0, -7.0], [3.0]], 7.0), ([[2.0], [0.5, 6.0]], 6.0), ([[1.0, -math.inf], [3.0]], math.inf)],
    ids=str,
)
def test_the_largest_gradient_counts_without_its_sign(entries, largest):
    assert float(largest_gradient([torch.tensor(values) for values in entries])) == largest


@pytest.mark.parametrize("place", [0, 1])
def test_one_nan_makes_the_largest_gradient_nan(place):
    gradients = [torch.ones(5000), -torch.ones(7, 3)]
    gradients[place].view(-1)[3] = math.nan
    assert math.isnan(float(largest_gradient(gradients)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_the_largest_gradient_of_other_dtypes(dtype):
    assert float(largest_gradient([torch.tensor([1.0, -8.0], dtype=dtype)])) == 8.0


def test_a_group_without_gradients_is_absent():
    net = model()
    watched = ParameterGroups()
    watched.add(sdf=net["sdf"], pose=net["pose"])
    net["sdf"](torch.ones(1, 3)).sum().backward()
    assert list(gradient_norms(watched).groups) == ["sdf"]


def test_a_replaced_parameter_is_seen_at_once():
    """Densification replaces parameters inside their owner."""
    gaussians = {"means": nn.Parameter(torch.zeros(4, 3))}
    watched = ParameterGroups()
    watched.add(gaussians=gaussians)
    gaussians["means"] = nn.Parameter(torch.zeros(9, 3))
    gaussians["means"].grad = torch.full((9, 3), 2.0)
    torch.testing.assert_close(gradient_norms(watched).total, torch.tensor(2.0 * 27**0.5))


def test_a_removed_parameter_does_not_stop_the_run():
    gaussians = {"means": nn.Parameter(torch.ones(2)), "extra": nn.Parameter(torch.ones(2))}
    watched = ParameterGroups()
    watched.add(gaussians=gaussians)
    del gaussians["extra"]
    gaussians["means"].grad = torch.ones(2)
    assert float(gradient_norms(watched).total) == pytest.approx(2**0.5)


def test_parameters_nobody_watches_are_counted_as_other():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watched = ParameterGroups()
    watched.add(sdf=net["sdf"])
    watched.stepped_by((optimizer,))
    assert watched.names() == ("sdf", "other")
    assert sum(p.numel() for p in watched.read("other")) == 6


@pytest.mark.parametrize("kind", ["module", "mapping", "list"])
def test_a_group_that_is_held_still_and_let_go_again_is_the_same_group(kind):
    net = model()
    held = {"module": net["pose"], "mapping": dict(net["pose"].named_parameters()), "list": [*net["pose"].parameters()]}
    watched = ParameterGroups()
    watched.add(sdf=net["sdf"], pose=held[kind])
    net["pose"].requires_grad_(False)
    watched.stepped_by((torch.optim.SGD(net["sdf"].parameters(), lr=0.1),))  # triggers a rescan of all owners
    net["sdf"](torch.ones(5, 3)).sum().backward()
    assert len(watched.read("pose")) == 2
    assert set(parameter_statistics(watched)) >= {"Parameters/pose_mean", "Parameters/pose_std"}
    assert set(UpdateSizes(watched).ratios()) == {"Gradients/update_ratio_sdf", "Gradients/update_ratio_pose"}
    assert "pose" not in gradient_norms(watched).groups
    net["pose"].requires_grad_(True)
    net["pose"](torch.ones(5, 2)).sum().backward()
    assert "pose" in gradient_norms(watched).groups


def test_what_never_required_a_gradient_is_not_in_its_group():
    net = model()
    net["pose"].bias.requires_grad_(False)
    watched = ParameterGroups()
    watched.add(pose=net["pose"])
    assert [entry.shape for entry in watched.read("pose")] == [net["pose"].weight.shape]


def test_overlap_is_refused_by_name_and_shape():
    net = model()
    watched = ParameterGroups()
    with pytest.raises(ValueError, match=r"groups 'all' and 'sdf' share.*shape \(4, 3\)"):
        watched.add(all=net, sdf=net["sdf"])


def test_a_frozen_group_is_measured_once_it_is_unfrozen():
    net = model()
    net["pose"].requires_grad_(False)
    watched = ParameterGroups()
    watched.add(sdf=net["sdf"], pose=net["pose"])
    assert (watched.names(), watched.read("pose")) == (("sdf",), [])
    assert set(parameter_statistics(watched)) == {"Parameters/sdf_mean", "Parameters/sdf_std"}
    net["pose"].requires_grad_(True)
    watched.rescan()
    assert watched.names() == ("sdf", "pose")


def added(net, _):
    net["pose"].extra = torch.nn.Parameter(torch.ones(3))


def with_a_module(net, _):
    net["pose"].add_module("inner", torch.nn.Linear(3, 1, bias=False))


def unfrozen(net, _):
    net["pose"].bias.requires_grad_(True)


def of_the_optimizer(_, optimizer):
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})


@pytest.mark.parametrize("change", [added, with_a_module, unfrozen, of_the_optimizer])
def test_a_refresh_finds_what_a_scan_finds(change):
    net = model()
    net["pose"].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(net["sdf"].parameters(), lr=0.1)
    watched = ParameterGroups()
    watched.add(**net)
    watched.stepped_by((optimizer,))
    before = watched._slots
    watched.refresh()
    assert watched._slots is before, "scanned although nothing has changed"
    change(net, optimizer)
    watched.refresh()
    counts = {name: len(watched.read(name)) for name in watched.names()}
    watched.rescan()
    assert counts == {name: len(watched.read(name)) for name in watched.names()}
    assert sum(counts.values()) == sum(map(len, before.values())) + 1


@pytest.mark.parametrize("shapes", [[(16, 16)], [(3, 5), (7,), (2, 2, 2), (50, 50), (1,)]], ids=["one", "several"])
def test_norms_of_many_small_gradients_are_torchs_to_the_bit(shapes):
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(shapes[k % len(shapes)], generator=generator) * 10.0 ** (k % 9 - 4) for k in range(50 * len(shapes))
    ] + [torch.randn(16, 16, generator=generator) for _ in range(50)]
    groups = ParameterGroups()
    groups.add(**{f"g{k}": [each.requires_grad_()] for k, each in enumerate(tensors)})
    for k, each in enumerate(tensors):
        square = each.dim() == 2 and each.shape[0] == each.shape[1]
        # Some have another order in memory, in which the entries are added up.
        each.grad = each.detach().t() if square and k % 5 == 0 and len(shapes) > 1 else each.detach()
    expected = torch._foreach_norm([each.grad for each in tensors], 2.0)
    found = gradient_norms(groups)
    assert torch.equal(torch.stack([*found.groups.values()]), torch.stack([*expected]))
    assert torch.equal(found.total, torch.linalg.vector_norm(torch.stack([*expected])))


def test_frozen_parameters_of_an_optimizer_are_in_the_group_of_their_owner():
    """Else they would be a group of their own between the unfreezing and the next scan, and dead after it."""
    body = torch.nn.Linear(2, 2).requires_grad_(requires_grad=False)
    net = torch.nn.Sequential(body, torch.nn.Linear(2, 1))
    groups = ParameterGroups()
    groups.add(net=net)
    groups.stepped_by((torch.optim.SGD(net.parameters(), lr=0.1),))
    assert groups.names() == ("net",)
    body.requires_grad_(requires_grad=True)
    net(torch.ones(1, 2)).sum().backward()
    assert groups.gradients()[0] == ["net"]
    assert groups.gradients()[1] == [4]


def test_an_empty_group_and_a_taken_name_are_refused():
    watched = ParameterGroups()
    with pytest.raises(ValueError, match="group 'nothing' has no parameters"):
        watched.add(nothing=nn.ReLU())
    other = ParameterGroups()
    other.add(sdf=nn.Linear(1, 1))
    with pytest.raises(ValueError, match="group 'sdf' is already watched"):
        other.add(sdf=nn.Linear(1, 1))
