import gc

import pytest
import torch
from torch import nn
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from fieldwatch.measure import ParameterGroups
from fieldwatch.measure.census import SavedTensors, take_census

CPU = torch.device("cpu")


@pytest.fixture
def saved():
    return SavedTensors(CPU)


@pytest.fixture
def no_collector():
    """Disable the garbage collector, so that a reference cycle would show up as memory that is not freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 1))


def owned_by(module):
    return frozenset(p.untyped_storage().data_ptr() for p in module.parameters())


def test_what_is_alive_is_what_the_graph_keeps(saved, no_collector):
    x = torch.ones(100, requires_grad=True)
    saved.push({x.data_ptr()})
    hidden = x.exp()  # saves its result, 400 bytes
    loss = (hidden * hidden).sum()  # saves the same storage twice
    saved.pop()
    assert (saved.alive, saved.peak) == (400, 400)
    del hidden
    assert saved.alive == 400
    loss.backward()
    assert (saved.alive, saved.peak) == (0, 400)


def test_a_graph_that_is_dropped_lets_go_without_backward(saved, no_collector):
    with saved:
        y = torch.ones(50, requires_grad=True).exp().exp()
    assert saved.alive == 400
    del y
    assert saved.alive == 0


def test_views_and_owned_storages_are_not_counted_again(saved):
    weight = torch.ones(4, 4, requires_grad=True)
    saved.push({weight.untyped_storage().data_ptr()})
    x = torch.ones(10, 4)
    y = (x @ weight) + (x.view(10, 4)[:5].repeat(2, 1) @ weight.t())
    saved.pop()
    assert y.requires_grad
    assert saved.alive == 2 * 160  # x once, its repetition once, the weight never


def test_the_peak_is_split_by_span():
    saved = SavedTensors(CPU)
    x = torch.ones(100, requires_grad=True)
    saved.push({x.data_ptr()})
    saved.label = "render"
    hidden = x.exp()
    wide = hidden.expand(2, 100).exp()
    saved.label = "loss"
    loss = wide.square().sin().sum()
    saved.label = "backward"
    loss.backward()
    assert saved.peak_by_label() == {"render": 400 + 800, "loss": 800}
    assert sum(saved.peak_by_label().values()) == saved.peak == 2000
    saved.pop()


def test_a_new_step_begins_a_new_peak(saved):
    x = torch.ones(100, requires_grad=True)
    saved.push({x.data_ptr()})
    x.exp().exp().sum().backward()
    saved.pop()
    saved.push({x.data_ptr()})
    assert saved.peak == 0
    x.exp().sum().backward()
    saved.pop()
    assert saved.peak == 400


def gradients(module, x, watcher, *, double):
    if watcher is not None:
        watcher.push(owned_by(module))
    y = module(x)
    if double:
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        y = y + slope.square().sum(1, keepdim=True)
    y.sum().backward()
    if watcher is not None:
        watcher.pop()
    return [p.grad.clone() for p in module.parameters()] + [x.grad.clone()]


@pytest.mark.parametrize("double", [False, True])
def test_gradients_keep_their_bits_and_nothing_stays(saved, no_collector, double):
    found = []
    for watcher in (None, saved):
        torch.manual_seed(1)
        module = net()
        x = torch.randn(32, 8, requires_grad=True)
        found.append(gradients(module, x, watcher, double=double))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert saved.peak > 0
    assert saved.alive == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_works_and_hides_what_it_recomputes(saved, no_collector, reentrant):
    torch.manual_seed(1)
    module = net()
    x = torch.randn(32, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(module(x).sum(), x)
    with saved:
        y = checkpoint(module, x, use_reentrant=reentrant)
        during = saved.alive
        y.sum().backward()
    assert torch.equal(x.grad, expected)
    assert during < 32 * 16 * 4
    del y
    assert saved.alive == 0


def test_hooks_entered_inside_keep_working(saved):
    x = torch.ones(100, requires_grad=True)
    seen = []
    with saved:
        with saved_tensors_hooks(lambda t: seen.append(1) or t.detach(), lambda t: t):
            hidden = x.exp()
        y = hidden.exp()
    assert (len(seen), saved.alive) == (1, 400)
    y.sum().backward()
    assert torch.allclose(x.grad, (x.exp() + x).exp())


def test_hooks_around_the_loop_are_left_in_charge(saved):
    x = torch.ones(100, requires_grad=True)
    with save_on_cpu():
        saved.push()
        assert saved.hidden
        x.exp().sum().backward()
        saved.pop()
        assert saved.peak == 0
        x.grad = None
        x.exp().sum().backward()  # their hooks can still be popped
    with disable_saved_tensors_hooks("not here"):
        saved.push()
        assert saved.hidden
        saved.pop()


def test_hooks_the_loop_has_not_left_are_not_popped(saved):
    x = torch.ones(100, requires_grad=True)
    saved.push({x.data_ptr()})
    theirs = save_on_cpu()
    theirs.__enter__()
    saved.pop()
    theirs.__exit__()
    y = x.exp()
    assert saved.alive == 0  # our hooks are still installed, but idle
    y.sum().backward()
    saved.push({x.data_ptr()})
    y = x.exp()
    assert saved.alive == 400
    saved.pop()
    with disable_saved_tensors_hooks("forbidden only where none are active"):
        pass


def test_a_tensor_changed_in_place_raises_as_without(saved):
    messages = []
    for watcher in (None, saved):
        x = torch.ones(3, requires_grad=True)
        if watcher is not None:
            watcher.push()
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match=r"inplace operation.*version") as error:
            y.sum().backward()
        messages.append(str(error.value).split(":")[0])
        if watcher is not None:
            watcher.pop()
    assert messages[0] == messages[1]


def test_a_harmless_change_in_place_is_allowed(saved):
    x = torch.ones(3, requires_grad=True)
    with saved:
        y = (x * 2).tanh_()
        y.add_(0) if False else y.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_a_second_backward_needs_the_graph_kept(saved):
    x = torch.ones(100, requires_grad=True)
    saved.push({x.data_ptr()})
    y = x.exp().sum()
    saved.pop()
    y.backward(retain_graph=True)
    assert saved.alive == 400
    y.backward()
    assert saved.alive == 0
    with pytest.raises(RuntimeError, match=r"backward.* second time"):
        y.backward()


def test_custom_functions_and_sparse_inputs_are_counted(saved):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x.square())
            return x**3

        @staticmethod
        def backward(ctx, slope):
            x, squared = ctx.saved_tensors
            return 3 * squared * slope + 0 * x

    x = torch.full((10,), 2.0, requires_grad=True)
    matrix = torch.eye(10).to_sparse()
    saved.push({x.data_ptr()})
    y = torch.sparse.mm(matrix, Cube.apply(x)[:, None])
    saved.pop()
    assert saved.alive >= 40 + 2 * 10 * 8 + 40  # x squared; indices and values
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((10,), 12.0))


def test_a_census_tells_saved_from_owned():
    x = torch.ones(64, 8)
    module = net()
    watched = ParameterGroups()
    watched.add(net=module)
    saved = SavedTensors(CPU)
    before = take_census(watched, optimizers=(), data={"x": x}, device=CPU)
    saved.push(before.addresses())
    saved.label = "render"
    y = module(x)
    saved.label = "loss"
    loss = y.square().mean()
    taken = take_census(watched, optimizers=(), data={"x": x}, device=CPU, saved=saved, before=before)
    saved.pop()
    assert taken.saved == {"render": 2 * 64 * 16 * 4, "loss": 64 * 4}
    assert taken.saved_peak == sum(taken.saved.values()) == saved.alive
    assert taken.by_kind()["data"] == 64 * 8 * 4
    assert taken.owned == before.owned
    loss.backward()
    after = take_census(watched, optimizers=(), data={"x": x}, device=CPU, saved=saved)
    assert after.saved == {}
    assert after.saved_peak == taken.saved_peak
