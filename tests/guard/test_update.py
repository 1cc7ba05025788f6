import math

import pytest
import torch
from torch import nn

from fieldwatch.guard import guarded_step

OPTIMIZERS = {
    "fused adam": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}
POISON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def everything(weights, optimizer):
    state = optimizer.state.get(weights, {})
    found = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    return {"weights": weights.detach().clone(), **found}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[key])), key


def step(weights, optimizer, gradient, *, refused):
    weights.grad = torch.full_like(weights, gradient)
    guarded_step(optimizer, torch.tensor(1.0 if refused else 0.0))


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("healthy_before", [0, 1, 3])
def test_a_refused_step_leaves_weights_moments_and_counters(name, poison, healthy_before):
    weights = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = OPTIMIZERS[name]([weights])
    for _ in range(healthy_before):
        step(weights, optimizer, 0.5, refused=False)
    before = everything(weights, optimizer)
    step(weights, optimizer, POISON[poison], refused=True)
    assert_same(before, everything(weights, optimizer))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_run_goes_on_as_if_the_refused_step_had_not_been(name):
    guarded, plain = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    with_guard, without = OPTIMIZERS[name]([guarded]), OPTIMIZERS[name]([plain])
    for gradient in (0.5, math.nan, -0.25, math.inf, math.nan, 0.125):
        step(guarded, with_guard, gradient, refused=not math.isfinite(gradient))
        if math.isfinite(gradient):
            plain.grad = torch.full_like(plain, gradient)
            without.step()
    assert torch.equal(guarded, plain)


def test_without_the_guard_the_same_gradient_destroys_the_weights():
    weights = nn.Parameter(torch.tensor([1.0]))
    optimizer = OPTIMIZERS["adam"]([weights])
    weights.grad = torch.tensor([math.nan])
    optimizer.step()
    assert torch.isnan(weights).all()


def test_a_replaced_parameter_gets_its_state_anew():
    weights = nn.Parameter(torch.tensor([1.0]))
    optimizer = OPTIMIZERS["adam"]([weights])
    step(weights, optimizer, 0.5, refused=False)
    optimizer.state.pop(weights)
    grown = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer.param_groups[0]["params"][0] = grown
    step(grown, optimizer, math.nan, refused=True)
    assert torch.equal(grown, torch.tensor([1.0, 2.0]))
    step(grown, optimizer, 0.5, refused=False)
    assert float(optimizer.state[grown]["step"]) == 1
