"""A loop is examined closely from its first update on, also if that comes late."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fieldwatch import Outputs, Run, Saving, Terms, read_history
from fieldwatch.health import examine
from fieldwatch.health.rules import GENERAL
from fieldwatch.record import tags
from fieldwatch.run.loop_checks.forwards import FIRST

FILLS = 70
EVERY = 50


def play(folder, *, rate=1e-2, steps=200, fills=FILLS, until=None, resume=False):
    """Fill a memory, then learn its rewards from it, as value-based agents do."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    saving = Saving(every=25, resume="must" if resume else "auto")
    with Run(folder, saving=saving, outputs=Outputs(sinks=(), detail_every=EVERY)) as run:
        run.track(net=net, optimizer=optimizer)
        run.resume()
        for step in run.steps(steps):
            draw = torch.Generator().manual_seed(step.index)
            seen = torch.randn(16, 4, generator=draw)
            with torch.no_grad():
                chosen = net(seen).argmax(1)
            step.record({"Game/return": float(seen[:, 0].mean()) + step.index / 50})
            if step.index >= fills:
                values = net(seen).gather(1, chosen[:, None])[:, 0]
                terms = Terms(td=(1.0, functional.mse_loss(values, seen.sum(1))))
                optimizer.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(optimizer)
            if step.index == until:
                break
    return read_history(folder)


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    return play(tmp_path_factory.mktemp("late"))


def test_the_first_steps_with_updates_are_measured(late):
    spread = late[tags.INPUT_SPREAD.tag("net")]
    first = spread.steps[spread.steps < FILLS + FIRST]
    assert first.tolist() == list(range(FILLS, FILLS + FIRST))


def test_the_size_of_the_first_update_is_recorded_once(late):
    series = late[tags.FIRST_UPDATE.tag("net")]
    assert series.steps.tolist() == [FILLS]
    assert 0.01 < series.values[0] < 0.2
    # Details of later steps are recorded when they always are.
    assert late[tags.UPDATE_RATIO.tag("net")].steps.tolist() == [99, 149, 199]


def test_the_form_of_a_loss_is_read_when_the_first_one_comes(tmp_path):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(net=net, optimizer=optimizer)
        for step in run.steps(20):
            if step.index < 8:
                continue
            loss = functional.cross_entropy(net(torch.randn(8, 4)).softmax(1), torch.randint(3, (8,)))
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(fit=(1.0, loss)))
            step.update(optimizer)
    history = read_history(tmp_path)
    assert [(event["step"], event["form"]) for event in history.events("loss_form")] == [(8, "activated")]
    assert [(event["step"], event["outcomes"]) for event in history.events("chance_level")] == [(8, 3)]


def test_a_resumed_run_measures_what_the_undisturbed_one_does(late, tmp_path):
    play(tmp_path, until=FILLS + 14)
    history = play(tmp_path, resume=True)
    for name in (tags.INPUT_SPREAD.tag("net"), tags.FIRST_UPDATE.tag("net"), tags.UPDATE_RATIO.tag("net")):
        assert history[name].steps.tolist() == late[name].steps.tolist()
        assert history[name].values.tolist() == late[name].values.tolist()


def named(folder):
    return {finding.rule for finding in examine(folder, GENERAL) if finding.severity != "note"}


def test_a_rate_that_overwrites_the_weights_at_a_late_first_update_is_told(tmp_path):
    play(tmp_path / "broken", rate=10.0)
    assert "RateTooHigh" in named(tmp_path / "broken")
    play(tmp_path / "sound")
    assert named(tmp_path / "sound") == set()


def test_a_loop_that_stops_early_is_judged_by_its_end(tmp_path):
    history = play(tmp_path, steps=400, until=199)
    assert [event["steps"] for event in history.events("ended")] == [200]
