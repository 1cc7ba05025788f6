"""Adam on visible rows: Adam for those, nothing for the others."""

import copy
import math

import pytest
import torch

from fieldwatch.guard import guarded_step
from fieldwatch.recon.render import VisibleAdam

SHAPES = [(50, 3), (50, 15, 3), (50,), (50, 1, 3)]
BETAS = (0.85, 0.99)


def parameters(dtype=torch.float32):
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def groups(tensors):
    return [{"params": [tensor], "lr": 10.0 ** -(k + 1)} for k, tensor in enumerate(tensors)]


def pulled(tensors, gradients):
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.grad = gradient.clone().to(tensor.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_all_rows_it_is_adam(dtype):
    ours = parameters(dtype)
    theirs = copy.deepcopy(ours)
    mine = VisibleAdam(groups(ours), betas=BETAS, eps=1e-15)
    reference = torch.optim.Adam(groups(theirs), betas=BETAS, eps=1e-15)
    for _ in range(20):
        gradients = [torch.randn(shape) for shape in SHAPES]
        pulled(ours, gradients)
        pulled(theirs, gradients)
        mine.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        for name in ("exp_avg", "exp_avg_sq", "step"):
            torch.testing.assert_close(
                mine.state[a][name], reference.state[b][name].float().to(mine.state[a][name]), rtol=1e-6, atol=1e-7
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_seen_in_every_step_move_as_by_adam_and_the_others_stay(dtype):
    ours = parameters(dtype)
    theirs = copy.deepcopy(ours)
    before = copy.deepcopy(ours)
    mine = VisibleAdam(groups(ours), eps=1e-15)
    reference = torch.optim.Adam(groups(theirs), eps=1e-15)
    seen = torch.tensor([0, 3, 4, 49])
    mine.visible = seen
    hidden = torch.ones(50, dtype=torch.bool)
    hidden[seen] = False
    for _ in range(5):
        gradients = [torch.randn(shape) for shape in SHAPES]
        pulled(ours, gradients)
        pulled(theirs, gradients)
        mine.step()
        reference.step()
    for a, b, old in zip(ours, theirs, before, strict=True):
        torch.testing.assert_close(a[seen], b[seen], rtol=1e-6, atol=1e-6)
        assert torch.equal(a[hidden], old[hidden])
        assert not mine.state[a]["exp_avg"][hidden].any()


def test_every_other_row_of_those_visible_may_be_a_view_of_their_numbers():
    parameter = torch.nn.Parameter(torch.ones(6, 3))
    parameter.grad = torch.ones(6, 3)
    optimizer = VisibleAdam([parameter], lr=0.5)
    optimizer.visible = torch.arange(6)[::2]
    optimizer.step()
    assert (parameter[:, 0] < 1).tolist() == [True, False] * 3


def test_nothing_visible_moves_nothing():
    (tensor,) = parameters()[:1]
    before = tensor.detach().clone()
    optimizer = VisibleAdam([tensor])
    optimizer.visible = torch.empty(0, dtype=torch.int64)
    tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    assert torch.equal(tensor, before)


def test_a_refused_step_changes_nothing_and_the_next_one_does():
    (tensor,) = parameters()[:1]
    optimizer = VisibleAdam([tensor], lr=0.1)
    for refused in (0.0, 1.0, 0.0):
        before = tensor.detach().clone()
        state = copy.deepcopy(optimizer.state_dict())
        tensor.grad = torch.ones_like(tensor)
        guarded_step(optimizer, torch.tensor(refused))
        assert torch.equal(tensor, before) == bool(refused)
        if refused:
            assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], state["state"][0]["exp_avg"])
            assert optimizer.state_dict()["state"][0]["step"] == state["state"][0]["step"]


def test_it_goes_on_from_its_state():
    tensors = parameters()
    optimizer = VisibleAdam(groups(tensors))
    pulled(tensors, [torch.randn(shape) for shape in SHAPES])
    optimizer.step()
    again = copy.deepcopy(tensors)
    resumed = VisibleAdam(groups(again))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    gradients = [torch.randn(shape) for shape in SHAPES]
    for some, one in ((tensors, optimizer), (again, resumed)):
        pulled(some, gradients)
        one.step()
    assert all(torch.equal(a, b) for a, b in zip(tensors, again, strict=True))


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"eps": -1e-8}, {"betas": (0.9, 1.0)}, {"lr": math.nan}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"Adam needs lr >= 0, eps >= 0 and betas in \[0, 1\)"):
        VisibleAdam(parameters(), **wrong)


def test_a_closure_is_evaluated():
    (tensor,) = parameters()[:1]
    optimizer = VisibleAdam([tensor])

    def closure():
        optimizer.zero_grad()
        loss = tensor.square().sum()
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first
