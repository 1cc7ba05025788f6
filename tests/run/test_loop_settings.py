"""Settings and states that are rarely meant: odd optimizers and layers, frozen bodies, equal units, new optimizers."""

import pytest
import torch
from torch import nn

from fieldwatch.run.loop_checks.averages import unit_spread
from fieldwatch.run.loop_checks.optimizers import OptimizerCheck
from fieldwatch.run.loop_checks.trainable import ModuleParameters
from fieldwatch.run.loop_checks.untrained import frozen_share, odd_settings

OPTIM = torch.optim


def odd(optimizer, *layers):
    model = nn.Sequential(nn.Linear(2, 2), *layers)
    return [
        (event["where"], event["setting"], event["value"])
        for event in odd_settings([optimizer(model.parameters())], {"net": model})
    ]


@pytest.mark.parametrize(
    ("optimizer", "setting", "value"),
    [
        (lambda p: OPTIM.Adam(p, maximize=True), "maximize", 1.0),
        (lambda p: OPTIM.Adam(p, eps=1.0), "eps", 1.0),
        (lambda p: OPTIM.Adam(p, betas=(0.999, 0.9)), "betas[0]", 0.999),
        (lambda p: OPTIM.Adam(p, betas=(0.9, 0.99999)), "betas[1]", 0.99999),
        (lambda p: OPTIM.SGD(p, 0.1, momentum=0.999), "momentum", 0.999),
    ],
)
def test_settings_of_optimizers(optimizer, setting, value):
    assert [each[1:] for each in odd(optimizer)] == [(setting, value)]


@pytest.mark.parametrize(
    "optimizer",
    [
        OPTIM.Adam,
        OPTIM.AdamW,
        OPTIM.RMSprop,
        OPTIM.Adadelta,
        OPTIM.LBFGS,
        lambda p: OPTIM.SGD(p, 0.1, momentum=0.9, nesterov=True),
        # A critic of a GAN.
        lambda p: OPTIM.Adam(p, betas=(0.0, 0.9)),
        lambda p: OPTIM.Adam(p, betas=(0.5, 0.999)),
    ],
)
def test_usual_optimizers_are_silent(optimizer):
    assert odd(optimizer, nn.Dropout(0.5), nn.BatchNorm1d(2), nn.BatchNorm1d(2, momentum=None)) == []


def test_settings_of_layers():
    found = odd(OPTIM.Adam, nn.Dropout(0.9), nn.BatchNorm1d(2, momentum=0.001), nn.BatchNorm1d(2, momentum=1.0))
    assert found == [("net.1", "dropout", 0.9), ("net.2", "momentum", 0.001), ("net.3", "momentum", 1.0)]


def test_the_share_of_a_module_that_is_frozen():
    model = nn.Sequential(nn.Linear(9, 9, bias=False), nn.Linear(9, 1, bias=False))
    parameters = ModuleParameters()
    parameters.scan({"net": model, "teacher": nn.Linear(9, 9).requires_grad_(requires_grad=False)})
    held = {id(each) for each in model.parameters()}
    assert frozen_share(parameters, held) is None
    model[0].requires_grad_(requires_grad=False)
    facts = frozen_share(parameters, held)
    assert facts == {"names": ["net.0.weight"], "count": 1, "share": 0.9, "in_optimizer": True, "random": 0.0}


def frozen_randomness(weight):
    """Return which fraction of a frozen layer with this weight looks random."""
    model = nn.Sequential(nn.Linear(weight.shape[1], weight.shape[0], bias=False), nn.Linear(weight.shape[0], 1))
    with torch.no_grad():
        model[0].weight.copy_(weight)
    model[0].requires_grad_(requires_grad=False)
    parameters = ModuleParameters()
    parameters.scan({"net": model})
    return frozen_share(parameters, {id(each) for each in model.parameters()})["random"]


@pytest.mark.parametrize("size", [(32, 32), (64, 200), (600, 48)])
@pytest.mark.parametrize("init", [nn.init.normal_, nn.init.kaiming_uniform_, nn.init.xavier_normal_])
def test_fresh_weights_are_random(size, init):
    torch.manual_seed(1)
    assert frozen_randomness(init(torch.empty(size))) == 1.0


def test_weights_with_a_few_learned_directions_are_not_random():
    torch.manual_seed(1)
    fresh = nn.init.kaiming_uniform_(torch.empty(64, 64))
    learned = fresh + 0.06 * torch.randn(64, 1) @ torch.randn(1, 64)
    assert frozen_randomness(learned) == 0.0
    # A matrix that is too small to tell is not judged.
    assert frozen_randomness(fresh[:8, :8]) == 0.0


def test_units_that_start_equal_are_seen_and_zeros_are_not():
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    assert unit_spread(model) > 0.1
    nn.init.zeros_(model[1].weight)
    assert unit_spread(model) > 0.1
    nn.init.constant_(model[1].weight, 0.2)
    assert unit_spread(model) == 0
    # An output of a single unit has nothing to compare.
    assert unit_spread(model[2:]) is None


def test_an_optimizer_that_is_made_anew_at_each_step():
    model = nn.Linear(2, 2)
    check = OptimizerCheck()
    events = []
    for update in range(33):
        optimizers = [OPTIM.Adam(model.parameters())]
        events.append(check.renewed(optimizers, update))
        check.add(optimizers)
    found = [event for event in events if event]
    assert [event["renewals"] for event in found] == [1, 2, 4, 8, 16, 32]
    assert found[-1] == {"renewals": 32, "updates": 32, "optimizer": "Adam"}


def test_a_second_player_is_no_renewal():
    players = [nn.Linear(2, 2), nn.Linear(2, 2)]
    check = OptimizerCheck()
    optimizers = [OPTIM.Adam(player.parameters()) for player in players]
    for update in range(4):
        acting = [optimizers[update % 2]]
        assert check.renewed(acting, update) is None
        check.add(acting)
