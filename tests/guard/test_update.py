import math

import pytest
import torch
from torch import nn

from fieldwatch.guard import forget_steps, guarded_step, prefer_fused
from fieldwatch.guard.update import skips_by_itself, step_and_restore, step_if_allowed, step_with_found_inf

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
FUSED = [name for name in OPTIMIZERS if name.startswith("fused")]
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
def test_a_refused_step_keeps_weights_moments_and_counters(name, poison, healthy_before):
    weights = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = OPTIMIZERS[name]([weights])
    for _ in range(healthy_before):
        step(weights, optimizer, 0.5, refused=False)
    before = everything(weights, optimizer)
    step(weights, optimizer, POISON[poison], refused=True)
    assert_same(before, everything(weights, optimizer))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_continues_as_if_the_refused_step_had_not_happened(name):
    guarded, plain = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    with_guard = OPTIMIZERS[name]([guarded])
    without = OPTIMIZERS[name]([plain])
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


def test_a_replaced_parameter_gets_new_state():
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


def after_gradients(make, gradients, way):
    """Return weights and state after steps that are refused for non-finite gradients; the first is never refused."""
    weights = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = make([weights])
    for gradient in gradients:
        weights.grad = torch.full_like(weights, gradient)
        way(optimizer, torch.tensor(0.0 if math.isfinite(gradient) else 1.0))
    return everything(weights, optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_method_of_refusing_gives_the_same_values(name):
    """A GPU uses ``found_inf`` or copies, a CPU does not step: the results must not depend on the method."""
    gradients = (0.5, math.nan, -0.25, math.inf, 0.125)
    expected = after_gradients(OPTIMIZERS[name], gradients, step_if_allowed)
    assert_same(expected, after_gradients(OPTIMIZERS[name], gradients, step_and_restore))
    if name in FUSED:
        assert_same(expected, after_gradients(OPTIMIZERS[name], gradients, step_with_found_inf))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_on_a_cpu_nothing_is_copied(name, monkeypatch):
    def refuse(*_):
        raise AssertionError("the parameters were copied, although a CPU reads the flag in a microsecond")

    monkeypatch.setattr("fieldwatch.guard.update.step_and_restore", refuse)
    after_gradients(OPTIMIZERS[name], (0.5, math.nan, 0.5), guarded_step)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_switching_to_fused_keeps_the_state(kind):
    switched, plain = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    mine = kind([switched], lr=0.1)
    other = kind([plain], lr=0.1)
    for number in range(4):
        if number == 2:
            assert prefer_fused(mine)
            assert skips_by_itself(mine)
        for weights, optimizer in ((switched, mine), (plain, other)):
            weights.grad = torch.full_like(weights, 0.5 + number)
            optimizer.step()
    torch.testing.assert_close(switched, plain)
    assert not prefer_fused(mine)  # it is fused already


def test_a_switched_or_restored_optimizer_skips_on_the_device():
    weights = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.Adam([weights], lr=0.1)
    step(weights, optimizer, 0.5, refused=False)
    prefer_fused(optimizer)
    restored = torch.optim.Adam([weights], lr=0.1)
    restored.load_state_dict(optimizer.state_dict())
    assert prefer_fused(restored)  # restored settings say fused, but a new object lacks the flag
    for one in (optimizer, restored):
        before = everything(weights, one)
        weights.grad = torch.full_like(weights, math.nan)
        step_with_found_inf(one, torch.tensor(1.0))
        assert_same(before, everything(weights, one))


@pytest.mark.parametrize(
    "chosen", [{"foreach": True}, {"fused": False}, {"differentiable": True}], ids=lambda chosen: next(iter(chosen))
)
def test_an_explicit_choice_is_not_switched(chosen):
    assert not prefer_fused(torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=0.1, **chosen))


def test_an_optimizer_without_a_fused_implementation_is_not_switched():
    assert not prefer_fused(torch.optim.RMSprop([nn.Parameter(torch.ones(1))], lr=0.1))


def test_an_optimizer_that_needs_a_closure_is_named():
    with pytest.raises(TypeError, match="LBFGS"):
        guarded_step(torch.optim.LBFGS([nn.Parameter(torch.ones(1))]), torch.tensor(0.0))


def test_restored_state_counts_as_new():
    weights = nn.Parameter(torch.tensor([1.0]))
    optimizer = OPTIMIZERS["fused adam"]([weights])
    step(weights, optimizer, 0.5, refused=False)
    forget_steps()
    optimizer.state.clear()
    step(weights, optimizer, math.nan, refused=True)
    assert not optimizer.state
