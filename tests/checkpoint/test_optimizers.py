"""Resuming with another kind of optimizer: either the same step, or a clear error."""

import pytest
import torch

from fieldwatch.checkpoint import CheckpointError
from fieldwatch.checkpoint.items import put_back
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.pipelines.splats.rates import Rates, make_optimizer
from fieldwatch.recon.render import VisibleAdam

BETAS = {"betas": (0.9, 0.999), "eps": 1e-15}


def stepped(make, steps=3):
    """Return a parameter after some steps, and its optimizer."""
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(4, 3))
    optimizer = make([{"params": [parameter], "name": "means", "lr": 0.01}])
    return continued(parameter, optimizer, steps)


def continued(parameter, optimizer, steps=2):
    for _ in range(steps):
        parameter.grad = parameter.detach() * 2 + 1
        optimizer.step()
    return parameter, optimizer


def visible(groups):
    return VisibleAdam(groups, **BETAS)


def adam(groups):
    return torch.optim.Adam(groups, **BETAS)


def fused(groups):
    return torch.optim.Adam(groups, fused=True, **BETAS)


@pytest.mark.parametrize(("before", "after"), [(visible, adam), (visible, fused), (adam, visible), (fused, visible)])
def test_what_was_stepped_by_one_adam_goes_on_with_the_other(before, after):
    parameter, optimizer = stepped(before)
    expected, _ = continued(*stepped(before), 2)
    twin = torch.nn.Parameter(parameter.detach().clone())
    other = after([{"params": [twin], "name": "means", "lr": 0.5}])
    put_back({"optimizer": other}, {"optimizer": optimizer.state_dict()})
    assert other.param_groups[0]["lr"] == 0.01
    continued(twin, other, 2)
    assert torch.allclose(twin, expected, atol=1e-6)
    assert not torch.allclose(twin, parameter.detach(), atol=1e-6)


def test_the_splats_run_that_began_on_a_cpu_has_a_state_for_a_gpu():
    """`make_optimizer` takes VisibleAdam on a CPU and Adam elsewhere."""
    gaussians = Gaussians.from_points(torch.randn(5, 3), torch.rand(5, 3), degree=1)
    here = make_optimizer(gaussians, Rates(), 1.0)
    there = make_optimizer(gaussians, Rates(), 1.0, visible_only=False)
    assert (type(here).__name__, type(there).__name__) == ("VisibleAdam", "Adam")
    gaussians.means.grad = torch.ones_like(gaussians.means)
    here.step()
    put_back({"optimizer": there}, {"optimizer": here.state_dict()})
    there.step()
    assert {int(state["step"]) for state in there.state.values()} == {2}


@pytest.mark.parametrize("setting", ["fused", "foreach", "capturable"])
def test_how_a_step_is_computed_is_what_the_code_of_this_run_says(setting):
    def make(value):
        return lambda groups: torch.optim.Adam(groups, **{setting: value})

    _, optimizer = stepped(make(None if setting != "capturable" else False), 1)
    parameter = torch.nn.Parameter(torch.zeros(4, 3))
    other = make(True)([{"params": [parameter], "name": "means", "lr": 0.1}])
    put_back({"optimizer": other}, {"optimizer": optimizer.state_dict()})
    assert other.param_groups[0][setting] is True


def test_a_choice_that_the_code_leaves_to_torch_stays_as_stored():
    _, optimizer = stepped(fused)
    parameter = torch.nn.Parameter(torch.zeros(4, 3))
    other = adam([{"params": [parameter], "name": "means", "lr": 0.1}])
    put_back({"optimizer": other}, {"optimizer": optimizer.state_dict()})
    assert other.param_groups[0]["fused"] is True


def test_a_weight_decay_that_would_be_lost_is_refused():
    _, optimizer = stepped(lambda groups: torch.optim.Adam(groups, weight_decay=0.1))
    other = visible([torch.nn.Parameter(torch.zeros(4, 3))])
    with pytest.raises(CheckpointError, match=r"weight_decay=0\.1.*VisibleAdam"):
        put_back({"optimizer": other}, {"optimizer": optimizer.state_dict()})
    assert not other.state


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda groups: torch.optim.SGD(groups, momentum=0.9), adam),
        (adam, lambda groups: torch.optim.SGD(groups, lr=0.1)),
        (torch.optim.Adagrad, adam),
        (visible, lambda groups: torch.optim.AdamW(groups, weight_decay=0.1)),
    ],
)
def test_another_optimizer_is_refused(before, after):
    _, optimizer = stepped(before)
    other = after([torch.nn.Parameter(torch.zeros(4, 3))])
    with pytest.raises(CheckpointError, match="another optimizer"):
        put_back({"optimizer": other}, {"optimizer": optimizer.state_dict()})


def test_labels_of_groups_and_schedulers_are_no_reason_to_refuse():
    _, optimizer = stepped(adam)
    optimizer.param_groups[0] |= {"initial_lr": 0.3, "my_note": "x"}
    del optimizer.param_groups[0]["decoupled_weight_decay"]  # an older torch did not store it
    parameter = torch.nn.Parameter(torch.zeros(4, 3))
    other = torch.optim.AdamW([{"params": [parameter], "name": "means"}], weight_decay=0.0)
    put_back({"optimizer": other}, {"optimizer": optimizer.state_dict()})
    assert other.param_groups[0]["my_note"] == "x"
    assert other.param_groups[0]["decoupled_weight_decay"] is True
    continued(parameter, other, 1)


def test_a_learning_rate_that_is_a_tensor_goes_to_the_device_of_the_own_one():
    parameter = torch.nn.Parameter(torch.zeros(2))
    stored = torch.optim.Adam([parameter], lr=torch.tensor(0.3), capturable=True).state_dict()
    own = torch.optim.Adam([parameter], lr=torch.tensor(0.1), capturable=True)
    own.param_groups[0]["lr"] = torch.tensor(0.1, device="meta")
    put_back({"optimizer": own}, {"optimizer": stored})
    assert own.param_groups[0]["lr"].device.type == "meta"
