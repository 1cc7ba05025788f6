"""A diverged run is rolled back, and then equals a run that skips the bad updates from the start."""

import math
import time

import pytest
import torch
from torch import nn

from fieldwatch import Diverged, Guard, Interrupted, Outputs, Rollback, Run, Saving, Shuffled, Terms, read_history
from fieldwatch.checkpoint import RandomState
from fieldwatch.record import read_events
from fieldwatch.run import default_sinks

STEPS = 110
PATIENT = {"patience": 8, "surge": math.inf}


class Toy:
    """A small regression that can be corrupted at chosen steps; its whole state is tracked."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2, fused=True)
        self.order = Shuffled(64, 8, seed=3)
        self.inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(5))
        self.targets = self.inputs.sum(1, keepdim=True) + 1

    def kept(self):
        return {"model": self.model, "optimizer": self.optimizer, "order": self.order}

    def terms(self):
        chosen = next(self.order)
        prediction = self.model(self.inputs[chosen])
        return Terms(fit=(1.0, (prediction - self.targets[chosen]).square().mean()))

    def state(self):
        moments = [v for state in self.optimizer.state.values() for v in state.values()]
        return [tensor.detach().clone() for tensor in (*self.model.parameters(), *moments)]


def train(folder, *, spoil=None, steps=STEPS, toy=None, stop=None, **options):
    """Train; ``spoil(step, toy, terms)`` returns the terms to minimize instead, ``stop`` ends the run early."""
    toy = toy or Toy()
    with Run(
        folder, **{"saving": Saving(every=20), "outputs": Outputs(rules=(), sinks=(), detail_every=10)} | options
    ) as run:
        run.track(**toy.kept(), groups={"model": toy.model})
        run.resume()
        for step in run.steps(steps):
            terms = toy.terms()
            if spoil is not None:
                terms = spoil(step.index, toy, terms)
            toy.optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms, sample=f"view {step.index % 7}")
            step.update(toy.optimizer)
            if step.index == stop:
                raise Interrupted(143)
    return toy


def events_of(folder):
    return [event for event in read_events(folder) if event["kind"] == "rolled_back"]


def assert_same(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one.state(), other.state(), strict=True))


def assert_finite(toy):
    assert all(bool(torch.isfinite(tensor).all()) for tensor in toy.state())


def blow_up(step, toy, terms):
    """Corrupt the updates of three steps so strongly that all later losses are high as well."""
    toy.optimizer.param_groups[0]["lr"] = 50.0 if 65 <= step <= 67 else 1e-2
    return terms


def nan_in(steps):
    return lambda step, _, terms: Terms(fit=(math.nan, terms["fit"].value)) if step in steps else terms


@pytest.fixture(scope="module")
def back(tmp_path_factory):
    """A run that was rolled back once: its folder, and its final state."""
    folder = tmp_path_factory.mktemp("back") / "run"
    toy = train(folder, spoil=blow_up, guard=Guard(rollback=Rollback(**PATIENT)))
    return folder, toy, RandomState().state_dict()["torch"]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Final state of an undisturbed run without rollback."""
    return train(tmp_path_factory.mktemp("healthy") / "run")


def test_a_rolled_back_run_equals_a_run_that_skips_those_batches(back, tmp_path):
    folder, toy, draws = back
    (event,) = events_of(folder)
    assert (event["to"], event["skipped"], event["try"], event["number"]) == (60, [64, 75], 1, 1)
    assert "above 10 times" in event["cause"]
    skipping = train(tmp_path / "skipping", spoil=blow_up, guard=Guard(rollback=Rollback(**PATIENT, skip=((64, 75),))))
    assert events_of(tmp_path / "skipping") == []
    assert_same(toy, skipping)
    assert torch.equal(draws, RandomState().state_dict()["torch"])
    one, other = (read_history(place) for place in (folder, tmp_path / "skipping"))
    for name in ("Loss/total", "Guard/refused", "Guard/skipped", "Gradients/total_norm"):
        assert one[name].values.tolist() == other[name].values.tolist()
        assert one[name].steps.tolist() == other[name].steps.tolist()
    assert one["Guard/skipped"].steps.tolist() == list(range(64, 76))
    assert [event for event in read_events(folder) if event["kind"] == "refusal"] == []
    assert one["Loss/total"].values[-20:].mean() < one["Loss/total"].values[:20].mean()


def test_without_a_rollback_the_same_updates_ruin_the_run(back, tmp_path):
    train(tmp_path / "run", spoil=blow_up)
    lost, kept = (read_history(place)["Loss/total"].values[-20:].mean() for place in (tmp_path / "run", back[0]))
    assert lost > 100 * kept


@pytest.mark.parametrize("stop", [68, 100])
def test_a_run_killed_before_or_after_a_rollback_ends_equal(back, tmp_path, stop):
    folder = tmp_path / "run"
    rollback = Rollback(**PATIENT)
    with pytest.raises(Interrupted):
        train(folder, spoil=blow_up, stop=stop, guard=Guard(rollback=rollback))
    assert_same(back[1], train(folder, spoil=blow_up, toy=Toy(seed=9), guard=Guard(rollback=rollback)))
    (event,) = events_of(folder)
    assert event["skipped"] == [64, 75]


def test_without_the_stored_rollback_state_the_resumed_run_differs(back, tmp_path, monkeypatch):
    """Negative control: the ranges to skip are part of the state."""
    with pytest.raises(Interrupted):
        train(tmp_path / "run", spoil=blow_up, stop=70, guard=Guard(rollback=Rollback(**PATIENT)))
    monkeypatch.setattr("fieldwatch.run.rollback.RollbackState.skipped", lambda *_: False)
    resumed = train(tmp_path / "run", spoil=blow_up, toy=Toy(seed=9))
    assert not all(torch.equal(a, b) for a, b in zip(back[1].state(), resumed.state(), strict=True))


def test_repeated_refusals_skip_longer_ranges_until_they_are_past(tmp_path):
    bad = range(60, 80)
    toy = train(tmp_path / "run", spoil=nan_in(bad), guard=Guard(rollback=Rollback(), max_refusals=4))
    events = events_of(tmp_path / "run")
    assert [event["try"] for event in events] == [1, 2, 3]
    assert [event["skipped"] for event in events] == [[58, 65], [55, 74], [51, 87]]
    assert [event["to"] for event in events] == [40, 40, 40]
    assert_finite(toy)
    history = read_history(tmp_path / "run")
    assert history["Guard/skipped"].steps.tolist() == list(range(51, 88))
    assert [event for event in read_events(tmp_path / "run") if event["kind"] == "refusal"] == []


def test_after_the_last_rollback_the_run_stops_and_lists_its_attempts(tmp_path):
    pattern = (
        r"not finite: group model.*Rolled back 2 times before.*skipping the updates of steps 58 to 65; from .* 55 to 74"
    )
    with pytest.raises(Diverged, match=pattern) as caught:
        train(tmp_path / "run", spoil=nan_in(range(60, 400)), guard=Guard(rollback=Rollback(at_most=2), max_refusals=4))
    assert caught.value.step == 75
    assert len(events_of(tmp_path / "run")) == 2


@pytest.mark.parametrize(("settled", "tries"), [(20, [1, 1]), (100, [1, 2])])
def test_the_count_of_rollbacks_is_reset_after_settled_steps(tmp_path, settled, tries):
    bad = {*range(30, 34), *range(70, 74)}
    train(tmp_path / "run", spoil=nan_in(bad), guard=Guard(rollback=Rollback(settled=settled), max_refusals=4))
    assert [event["try"] for event in events_of(tmp_path / "run")] == tries


def test_without_an_earlier_checkpoint_the_run_stops(tmp_path):
    with pytest.raises(Diverged, match=r"steps \[\]"):
        train(tmp_path / "run", spoil=nan_in(range(2, 60)), saving=Saving(every=None), guard=Guard(rollback=Rollback()))


def test_a_damaged_checkpoint_is_skipped(tmp_path):
    file = tmp_path / "run" / "checkpoints" / "step_0000000060" / "tensors.safetensors"

    def damage(step, _, terms):
        while step == 66 and not file.exists():  # a thread writes it
            time.sleep(0.01)
        if step == 66:
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        return nan_in(range(66, 76))(step, None, terms)

    train(tmp_path / "run", spoil=damage, guard=Guard(rollback=Rollback()))
    (event,) = events_of(tmp_path / "run")
    assert event["to"] == 40


@pytest.mark.parametrize("what", ["parameter", "moment", "buffer"])
def test_a_non_finite_state_is_named_and_rolled_back(tmp_path, healthy, what):
    done = []

    def plant(step, toy, terms):
        if step == 73 and not done:
            done.append(step)
            weight = toy.model[0].weight
            tensors = {"moment": toy.optimizer.state[weight]["exp_avg"], "buffer": toy.model.get_buffer("spare")}
            tensors.get(what, weight.data).view(-1)[1] = math.nan
        return terms

    toy = Toy()
    toy.model.register_buffer("spare", torch.zeros(5))
    train(tmp_path / "run", spoil=plant, toy=toy, guard=Guard(rollback=Rollback()))
    (event,) = events_of(tmp_path / "run")
    assert (event["to"], event["skipped"]) == (60, [])
    assert "at step 69" in event["cause"]
    assert "at step 79" in event["cause"]
    names = {"parameter": "parameter 0.weight of", "moment": "exp_avg of parameter 0 of", "buffer": "buffer spare"}
    assert any(names[what] in name for name in event["not_finite"]), event
    assert_same(toy, healthy)


def test_a_single_gradient_surge_is_rolled_back(tmp_path):
    def surge(step, _, terms):
        return Terms(fit=(1e12 if step == 95 else 1.0, terms["fit"].value))

    train(tmp_path / "run", spoil=surge, guard=Guard(rollback=Rollback()))
    (event,) = events_of(tmp_path / "run")
    assert event["skipped"] == [93, 97]
    assert "at step 95 (sample view 4)" in event["cause"]


def test_divergence_in_the_last_steps_is_rolled_back_before_the_loop_ends(tmp_path):
    toy = train(tmp_path / "run", spoil=nan_in(range(100, 110)), guard=Guard(rollback=Rollback()))
    (event,) = events_of(tmp_path / "run")
    assert event["from"] == STEPS
    assert read_history(tmp_path / "run")["Loss/total"].steps[-1] == STEPS - 1
    assert_finite(toy)


def test_every_sink_shows_one_clean_curve(tmp_path):
    train(
        tmp_path / "run",
        spoil=blow_up,
        guard=Guard(rollback=Rollback(**PATIENT)),
        outputs=Outputs(rules=(), sinks=default_sinks, detail_every=10),
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415  slow to import

    place = str(tmp_path / "run" / "tensorboard")
    shown = EventAccumulator(place, size_guidance={"scalars": 0}).Reload().Scalars("Loss/total")
    assert [event.step for event in shown] == list(range(STEPS))


def test_rollback_does_not_change_a_healthy_run(tmp_path, healthy):
    assert_same(train(tmp_path / "run", guard=Guard(rollback=Rollback())), healthy)
    assert events_of(tmp_path / "run") == []


@pytest.mark.parametrize("options", [{"factor": 1.0}, {"patience": 0}, {"at_most": 0}, {"skip": ((5, 4),)}])
def test_numbers_out_of_bounds_are_refused(options):
    with pytest.raises(ValueError, match=r"Rollback\(.*must"):
        Rollback(**options)
