"""Simple models of a module's targets: fitted once to its first batches, without any effect on the training."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fieldwatch.run.loop_checks.forwards import ForwardCheck
from fieldwatch.run.loop_checks.simple_models import SimpleModels

GENERATOR = torch.Generator().manual_seed(3)
MIX = torch.randn(6, 3, generator=GENERATOR)


def measured(inputs, targets, loss, *, batch=32, outputs=3, before=None):
    """Return the scores after batches of a module that predicts nothing."""
    models = SimpleModels()
    module = nn.Linear(inputs.shape[1], outputs)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    for start in range(0, len(inputs), batch):
        rows = slice(start, start + batch)
        output = module(inputs[rows])
        models.listen(inputs[rows], output)
        loss(output, targets[rows]).backward()
        if before is not None:
            models = before(models)
    return {name.removeprefix("Forward/net_"): value.item() for name, value in models.measure("net").items()}


def normal(count=512):
    return torch.randn(count, 6, generator=GENERATOR)


def test_a_linear_model_finds_linear_targets():
    inputs = normal()
    targets = inputs @ MIX + 0.1 * torch.randn(512, 3, generator=GENERATOR)
    scores = measured(inputs, targets, functional.mse_loss)
    assert scores["linear_explained"] > 0.98
    assert scores["simple_count"] > 100


def test_targets_that_are_columns_of_the_inputs_are_given():
    inputs = normal()
    # In another unit, as after a normalization of its own.
    assert measured(inputs, 3 * inputs[:, 2:5] + 1, functional.mse_loss)["targets_given"] == 1
    assert measured(inputs, inputs[:, 2:5] + 1e-3 * normal()[:, :3], functional.mse_loss)["targets_given"] == 0
    assert measured(inputs, inputs @ MIX, functional.mse_loss)["targets_given"] == 0


def test_what_restores_its_input_is_given_nothing():
    inputs = normal()
    assert "targets_given" not in measured(inputs, inputs, functional.mse_loss, outputs=6)


def test_neighbors_find_targets_that_are_not_linear():
    inputs = torch.rand(512, 2, generator=GENERATOR)
    targets = (9 * inputs).sin().prod(dim=1, keepdim=True)
    scores = measured(inputs, targets, functional.mse_loss, outputs=1)
    assert scores["nearest_explained"] > 0.6
    assert scores["linear_explained"] < 0.3
    assert "linear_hits" not in scores


def test_classes_are_found_from_the_gradient_of_a_cross_entropy():
    inputs = normal()
    scores = measured(inputs, (inputs @ MIX).argmax(dim=1), functional.cross_entropy)
    assert scores["linear_hits"] > 0.75
    assert scores["nearest_hits"] > 0.6


def test_targets_that_do_not_depend_on_the_inputs_are_not_found():
    scores = measured(normal(), torch.randint(3, (512,), generator=GENERATOR), functional.cross_entropy)
    assert max(scores["linear_hits"], scores["nearest_hits"]) < 0.5
    scores = measured(normal(), torch.randn(512, 3, generator=GENERATOR), functional.mse_loss)
    assert max(scores["linear_explained"], scores["nearest_explained"]) < 0.1


def test_the_same_samples_again_are_no_test():
    inputs = normal(64)
    targets = torch.randn(64, 3, generator=GENERATOR)
    order = torch.cat([torch.randperm(64, generator=GENERATOR) for _ in range(16)])
    scores = measured(inputs[order], targets[order], functional.mse_loss)
    assert scores["simple_count"] < 16


def test_too_few_samples_are_not_judged():
    assert measured(normal(256), normal(256) @ MIX, functional.mse_loss) == {}


def test_a_resumed_run_measures_the_same():
    def restored(models):
        other = SimpleModels()
        other.load_state_dict(models.state_dict())
        return other

    inputs = normal()
    whole = measured(inputs, inputs @ MIX, functional.mse_loss)
    assert measured(inputs, inputs @ MIX, functional.mse_loss, before=restored) == whole


@pytest.mark.parametrize("output", [torch.zeros(64, 3), torch.zeros(64, 3, 4), torch.zeros(64, 100)])
def test_outputs_without_targets_are_left_alone(output):
    models = SimpleModels()
    leaf = output.clone().requires_grad_(output.dim() > 2 or output.shape[1] > 3)
    models.listen(normal(64), leaf)
    assert not leaf.requires_grad or leaf._backward_hooks is None


def test_a_module_in_a_loop_is_measured_once_and_trained_to_the_same_bits():
    def trained(*, watched):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(1)
        check = ForwardCheck()
        found = []
        if watched:
            check.open({"net": module})
        for _ in range(30):
            inputs = torch.randn(32, 6, generator=data)
            check.begin(due=True)
            optimizer.zero_grad()
            functional.mse_loss(module(inputs), inputs @ MIX).backward()
            found.append(check.at_update())
            optimizer.step()
        check.close()
        return module, found

    plain, _ = trained(watched=False)
    module, found = trained(watched=True)
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), module.parameters(), strict=True))
    steps = [i for i, values in enumerate(found) if "Forward/net_linear_explained" in values]
    assert steps == [23]
    assert found[23]["Forward/net_linear_explained"] > 0.95
