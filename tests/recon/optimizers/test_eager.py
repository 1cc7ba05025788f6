import subprocess
import sys

import pytest
import torch
from torch import nn

from fieldwatch.recon.optimizers import Adam

NO_COMPILER = """
import sys
import torch
from fieldwatch.recon.optimizers import Adam
from fieldwatch.recon.render import VisibleAdam
for kind in (Adam, VisibleAdam):
    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = kind([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""


def trained(kind, **options):
    """Train a small model for five steps, with a group that is added and a state that is stored in between."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    inputs = torch.randn(16, 4)
    optimizer = kind(model[0].parameters(), lr=1e-2, **options)
    for step in range(5):
        if step == 1:
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 1e-3})
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    return model, optimizer


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False, "weight_decay": 0.1}])
def test_it_trains_the_numbers_of_torch(options):
    model, optimizer = trained(Adam, **options)
    expected, expected_optimizer = trained(torch.optim.Adam, **options)
    for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, other)
    state = optimizer.state_dict()
    expected_state = expected_optimizer.state_dict()
    assert state["param_groups"] == expected_state["param_groups"]
    for index, values in expected_state["state"].items():
        assert all(torch.equal(state["state"][index][name], value) for name, value in values.items())


def test_a_closure_computes_gradients():
    weight = nn.Parameter(torch.ones(2))
    optimizer = Adam([weight], lr=0.1)

    def loss():
        optimizer.zero_grad()
        value = weight.square().sum()
        value.backward()
        return value

    assert optimizer.step(loss).item() == 2.0
    assert torch.allclose(weight, torch.full((2,), 0.9))


def test_hooks_of_torch_are_called():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = Adam([weight], lr=0.1)
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.step()
    assert called == ["after"]


def test_the_compiler_is_not_loaded():
    done = subprocess.run([sys.executable, "-c", NO_COMPILER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
