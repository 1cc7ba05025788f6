"""Parameters behind a loss that no module lists and no optimizer holds."""

import pytest
import torch
from torch import nn

from fieldwatch import Terms
from fieldwatch.run.loop_checks.leaves import LeafCheck, leaves_of

INPUTS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


class Stack(nn.Module):
    """Two layers whose second one a test keeps where it likes."""

    def __init__(self, keep):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.parts = keep(nn.Linear(4, 1))

    def forward(self, inputs):
        parts = self.parts
        second = next(iter(parts.values() if isinstance(parts, dict | nn.ModuleDict) else parts))
        return second(self.first(inputs))


def checked(model, *, others=(), update=None, updates=64):
    """Train a model by an optimizer of its listed parameters, and return the events of the check."""
    check = LeafCheck()
    listed = {id(each) for each in model.parameters()}
    found = []
    for step in range(updates):
        value = model(INPUTS).square().mean()
        for other in others:
            value = value + other(INPUTS).square().mean()
        check.walk(Terms(fit=(1.0, value)))
        value.backward()
        if update:
            update()
        if step % 16 == 0 and check.pending:
            found.append(check.check(step, listed, listed, {"net": model}))
    return [each for each in found if each is not None]


@pytest.mark.parametrize(("keep", "path"), [(lambda part: [part], "net.parts.0"), (lambda p: {"a": p}, "net.parts.a")])
def test_a_layer_in_a_plain_list_or_mapping_is_named(keep, path):
    (event,) = checked(Stack(keep))
    assert event["names"] == [f"{path}.weight", f"{path}.bias"]
    assert (event["count"], event["inside"]) == (2, 2)
    assert event["share"] == pytest.approx(5 / 25)


@pytest.mark.parametrize("keep", [lambda part: nn.ModuleList([part]), lambda part: nn.ModuleDict({"a": part})])
def test_a_layer_that_is_listed_is_not(keep):
    assert checked(Stack(keep)) == []


def test_a_network_outside_of_all_modules_is_not_inside():
    (event,) = checked(nn.Linear(4, 1), others=[nn.Linear(4, 4)])
    assert (event["count"], event["inside"]) == (2, 0)
    assert "(4, 4)" in event["names"][0]


def test_a_layer_that_another_optimizer_updates_counts_as_trained():
    model = Stack(lambda part: [part])
    other = torch.optim.SGD(model.parts[0].parameters(), lr=0.1)
    assert checked(model, update=other.step) == []


def test_a_layer_that_is_frozen_on_purpose_counts_as_meant():
    assert checked(Stack(lambda part: [part.requires_grad_(requires_grad=False)])) == []


def test_an_input_with_a_gradient_is_no_parameter():
    inputs = INPUTS.clone().requires_grad_()
    layer = nn.Linear(4, 1)
    found = list(leaves_of(layer(inputs).square().mean()))
    assert {id(each) for each in found} == {id(each) for each in layer.parameters()}


def test_parameters_that_are_gone_are_not_kept_alive():
    model = Stack(lambda part: [part])
    check = LeafCheck()
    check.walk(Terms(fit=(1.0, model(INPUTS).mean())))
    model.parts = [nn.Linear(4, 1)]
    assert check.check(0, set(), {id(each) for each in model.parameters()}, {"net": model}) is None
    assert not check.pending
