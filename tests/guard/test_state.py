import math

import torch
from torch import nn

from fieldwatch import Outputs, Run, Terms
from fieldwatch.guard import describe_non_finite, moment_norms, rate_tensors, settings_finite, state_norms
from fieldwatch.record import read_events


def trained(**choices):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, **choices)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_norms_are_finite_exactly_if_every_entry_is():
    model, optimizer = trained()
    sizes = state_norms([model], [optimizer])
    assert {name: bool(torch.isfinite(size)) for name, size in sizes.items()} == {
        "Guard/moments": True,
        "Guard/buffers": True,
    }
    optimizer.state[model[0].weight]["exp_avg_sq"][1, 2] = math.inf
    model[1].running_var[0] = math.nan
    assert not any(bool(torch.isfinite(size)) for size in state_norms([model], [optimizer]).values())


def test_norms_of_missing_state_are_absent():
    weight = nn.Parameter(torch.ones(2))
    assert state_norms([{"weight": weight}], [torch.optim.SGD([weight], lr=0.1)]) == {}


def test_moments_of_groups_are_measured_apart():
    model, optimizer = trained()
    frozen = nn.Parameter(torch.ones(2))
    groups = {"linear": list(model[0].parameters()), "norm": list(model[1].parameters()), "frozen": [frozen]}
    found = moment_norms(groups, [optimizer])
    assert list(found) == ["Guard/moments_linear", "Guard/moments_norm"]
    assert max(found.values()) == state_norms([], [optimizer])["Guard/moments"]
    optimizer.state[model[1].bias]["exp_avg"][0] = math.nan
    found = moment_norms(groups, [optimizer])
    assert bool(torch.isfinite(found["Guard/moments_linear"]))
    assert not bool(torch.isfinite(found["Guard/moments_norm"]))


def test_learning_rates_and_other_settings_have_to_be_finite():
    _, optimizer = trained()
    assert settings_finite([optimizer])
    for name, value in (("lr", math.nan), ("weight_decay", math.inf), ("betas", (0.9, math.nan))):
        before = optimizer.param_groups[0][name]
        optimizer.param_groups[0][name] = value
        assert not settings_finite([optimizer]), name
        optimizer.param_groups[0][name] = before


def test_a_tensor_learning_rate_is_not_read():
    rate = torch.tensor(math.nan)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=rate)
    assert settings_finite([optimizer])
    assert rate_tensors([optimizer])[0] is rate


def test_every_non_finite_tensor_is_named_with_its_count():
    model, optimizer = trained()
    assert describe_non_finite({"net": model}, [optimizer]) == []
    with torch.no_grad():
        model[0].weight[0, :2] = math.nan
    optimizer.state[model[0].bias]["exp_avg"][0] = math.inf
    model[1].running_mean[:] = math.nan
    assert describe_non_finite({"net": model}, [optimizer]) == [
        "parameter 0.weight of group 'net' (2 of 6 entries)",
        "exp_avg of parameter 1 of optimizer 0 (1 of 2 entries)",
        "buffer 1.running_mean (2 of 2 entries)",
    ]


def test_an_unwatched_parameter_is_named_by_its_optimizer():
    loose = nn.Parameter(torch.tensor([math.nan]))
    found = describe_non_finite({}, [torch.optim.SGD([loose], lr=0.1)])
    assert found == ["unwatched parameter 0 of optimizer 0 (1 of 1 entries)"]


def test_a_parameter_added_to_an_optimizer_later_is_guarded(tmp_path):
    first = nn.Parameter(torch.ones(2))
    late = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([first], lr=0.1)
    with Run(tmp_path / "run", outputs=Outputs(sinks=(), rules=())) as run:
        for step in run.steps(3):
            if step.index == 1:
                optimizer.add_param_group({"params": [late]})
            optimizer.zero_grad()
            terms = Terms(fit=(1.0, (first + late).square().sum()))
            terms.total.backward()
            if step.index == 1:
                late.grad[0] = math.nan
            step.observe(terms)
            step.update(optimizer)
    assert bool(torch.isfinite(late).all())
    assert [event["step"] for event in read_events(tmp_path / "run") if event["kind"] == "refusal"] == [1]
