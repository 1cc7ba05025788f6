"""Faults of a user's own loop are recorded and reported, and healthy loops of the same kind are silent."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from fieldwatch import Diverged, Outputs, Run, Saving, Terms, read_history
from fieldwatch.health import examine
from fieldwatch.health.rules import loop, rules_in

STEPS = 72
RULES = tuple(rule() for rule in rules_in(loop))
INPUTS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS.sum(1, keepdim=True)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def fit(model):
    return Terms(fit=(1.0, (model(INPUTS) - TARGETS).square().mean()))


class Loop:
    """A loop with places where a test changes it: before the forward pass, before the update, after the update."""

    terms: Callable[..., Terms]
    clear: Callable[..., Any]
    before: Callable[..., Any]
    after: Callable[..., Any]

    def __init__(self, model=None, **kept):
        self.model = network() if model is None else model
        self.kept = kept
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.terms = lambda _step: fit(self.model)
        self.before = lambda _run, _step: None
        self.clear = lambda _step: self.optimizer.zero_grad()
        self.after = lambda _run, _step: None

    def train(self, folder, steps=STEPS):
        options = {"saving": Saving(every=None), "outputs": Outputs(sinks=(), detail_every=64)}
        with Run(folder, **options) as run:
            run.track(model=self.model, optimizer=self.optimizer, **self.kept)
            for step in run.steps(steps):
                self.before(run, step)
                terms = self.terms(step)
                self.clear(step)
                terms.total.backward()
                step.observe(terms)
                step.update(self.optimizer)
                self.after(run, step)
        return self

    def found(self, folder, steps=STEPS):
        """Train, and return rule and severity of each finding about the loop."""
        self.train(folder, steps)
        return [(finding.rule, finding.severity) for finding in examine(folder, RULES)]


def at(number, action):
    """Call an action at one step."""
    return lambda run, step: action(run, step) if step.index == number else None


# Modes


def evaluate_and_leave(model):
    def evaluate(_run, step):
        model.eval()
        with torch.no_grad():
            step.record({"Eval/error": (model(INPUTS) - TARGETS).square().mean()})

    return evaluate


def test_an_evaluation_that_leaves_eval_mode_is_named_with_its_metric(tmp_path):
    toy = Loop()
    toy.after = at(20, evaluate_and_leave(toy.model))
    assert toy.found(tmp_path) == [("ModeChanged", "warning")]
    (finding,) = examine(tmp_path, RULES)
    assert finding.step == 28
    for fact in ("'model.1', 'model.3'", "20 and 21", "'Eval/error'"):
        assert fact in finding.message


def test_an_evaluation_before_the_first_update_that_leaves_eval_mode_is_named(tmp_path):
    toy = Loop()
    toy.before = at(0, evaluate_and_leave(toy.model))
    assert toy.found(tmp_path) == [("ModeChanged", "warning")]
    (finding,) = examine(tmp_path, RULES)
    for fact in ("'model.1', 'model.3'", "before the first update", "'Eval/error'"):
        assert fact in finding.message


def set_train(model):
    return lambda _run, _step: model.train()


def test_an_evaluation_that_returns_to_train_mode_is_healthy(tmp_path):
    toy = Loop()
    toy.before = set_train(toy.model)
    toy.after = evaluate_and_leave(toy.model)
    assert toy.found(tmp_path) == []


def test_an_evaluation_block_restores_the_mode(tmp_path):
    toy = Loop()

    def evaluate(run, step):
        with run.evaluation("test"):
            evaluate_and_leave(toy.model)(run, step)

    toy.after = at(20, evaluate)
    assert toy.found(tmp_path) == []


def frozen_norms(model):
    model.train()
    model[1].eval()
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)


def test_norms_in_eval_mode_from_the_start_or_from_some_epoch_on_are_a_choice(tmp_path):
    from_start = Loop()
    from_start.before = lambda _run, _step: frozen_norms(from_start.model)
    assert from_start.found(tmp_path / "start") == []
    later = Loop()
    later.after = at(20, lambda _run, _step: later.model[1].eval())
    assert later.found(tmp_path / "later") == []


def test_eval_mode_from_the_start_is_a_choice(tmp_path):
    toy = Loop()
    toy.model.eval()
    assert toy.found(tmp_path / "outside") == []
    inside = Loop()
    inside.before = at(0, lambda _run, _step: inside.model.eval())
    assert inside.found(tmp_path / "inside") == []


def test_frozen_norms_that_an_evaluation_switched_to_train_mode_are_named(tmp_path):
    toy = Loop()
    frozen_norms(toy.model)
    toy.after = at(20, set_train(toy.model))
    assert toy.found(tmp_path) == [("ModeChanged", "warning")]
    (event,) = [event for event in read_history(tmp_path).events("mode") if event["updates"] == 8]
    assert (event["modules"], event["to"], event["since"], event["first"]) == (["model.1"], "train", 20, 21)


def test_a_phase_excuses_a_change(tmp_path):
    toy = Loop()

    def finish(run, step):
        evaluate_and_leave(toy.model)(run, step)
        run.event("phase", name="without dropout")

    toy.before = at(20, finish)
    assert toy.found(tmp_path) == []


def test_an_average_of_weights_may_change_its_mode(tmp_path):
    toy = Loop()
    average = deepcopy(toy.model)
    toy.kept = {"average": average}

    def follow(_run, step):
        with torch.no_grad():
            for mean, new in zip(average.parameters(), toy.model.parameters(), strict=True):
                mean.lerp_(new, 0.1)
        average.train(step.index < 20)

    toy.after = follow
    assert toy.found(tmp_path) == []


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_gan_that_switches_modes_is_healthy(tmp_path, rounds):
    """The critic is trained several times for each step of the generator, each in its own mode."""
    torch.manual_seed(0)
    generator, critic = network(), nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    first = torch.optim.Adam(generator.parameters(), lr=1e-3)
    second = torch.optim.Adam(critic.parameters(), lr=1e-3)
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(generator=generator, critic=critic, first=first, second=second)
        for step in run.steps(STEPS):
            trains_critic = step.index % (rounds + 1) > 0
            critic.train(trains_critic)
            generator.train(not trains_critic)
            critic.requires_grad_(trains_critic)
            optimizer = second if trains_critic else first
            optimizer.zero_grad()
            fake = generator(INPUTS)
            loss = critic(fake.detach()).mean() - critic(TARGETS).mean() if trains_critic else -critic(fake).mean()
            terms = Terms(adversarial=(1.0, loss))
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
    assert examine(tmp_path, RULES) == []


# Frozen parameters


def freeze(model):
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)


def frozen_by_evaluation(toy):
    def evaluate(_run, step):
        freeze(toy.model)
        step.record({"Eval/error": torch.zeros(())})

    return evaluate


@pytest.mark.parametrize(("metric", "severity"), [(True, "warning"), (False, "note")])
def test_parameters_frozen_during_the_training_are_named(tmp_path, metric, severity):
    toy = Loop()
    toy.after = at(20, frozen_by_evaluation(toy) if metric else lambda _run, _step: freeze(toy.model))
    assert toy.found(tmp_path) == [("FrozenDuringTraining", severity)]
    event = read_history(tmp_path).events("requires_grad")[0]
    assert (event["frozen"], event["frozen_count"]) == (["model.0.weight", "model.0.bias"], 2)
    assert (event["frozen_in_optimizers"], event["since"], event["first"]) == (2, 16, 32)


def test_frozen_layers_that_are_unfrozen_halfway_are_healthy(tmp_path):
    toy = Loop()
    freeze(toy.model)
    toy.after = at(30, lambda _run, _step: toy.model.requires_grad_(True))
    assert toy.found(tmp_path) == []
    assert read_history(tmp_path).events("requires_grad")[0]["unfrozen_count"] == 2


def test_a_phase_excuses_frozen_parameters(tmp_path):
    toy = Loop()

    def finish(run, step):
        frozen_by_evaluation(toy)(run, step)
        run.event("phase", name="only the head")

    toy.before = at(20, finish)
    assert toy.found(tmp_path) == []


# Optimizers


def test_a_layer_replaced_after_the_optimizer_was_created_is_named(tmp_path):
    toy = Loop()
    toy.model[4] = nn.Linear(8, 1)
    assert toy.found(tmp_path) == [("NotInOptimizer", "warning")]
    (event,) = read_history(tmp_path).events("not_in_optimizer")
    assert (event["names"], event["replaced"], event["step"]) == (["model.4.weight", "model.4.bias"], 2, 32)


def test_a_layer_replaced_during_the_training_is_named(tmp_path):
    toy = Loop()

    def replace(_run, _step):
        toy.model[4] = nn.Linear(8, 1)

    toy.after = at(20, replace)
    assert toy.found(tmp_path, 96) == [("NotInOptimizer", "warning")]
    assert read_history(tmp_path).events("not_in_optimizer")[0]["replaced"] == 2


def test_a_layer_unfrozen_without_an_optimizer_is_named(tmp_path):
    toy = Loop()
    freeze(toy.model)
    toy.optimizer = torch.optim.SGD([p for p in toy.model.parameters() if p.requires_grad], lr=1e-3)
    toy.after = at(20, lambda _run, _step: toy.model.requires_grad_(True))
    assert toy.found(tmp_path, 128) == [("NotInOptimizer", "warning")]


def test_a_layer_that_joins_the_optimizer_is_healthy(tmp_path):
    toy = Loop()

    def replace(_run, _step):
        toy.model[4] = nn.Linear(8, 1)
        toy.optimizer.add_param_group({"params": list(toy.model[4].parameters())})

    toy.after = at(20, replace)
    assert toy.found(tmp_path, 96) == []


@pytest.mark.parametrize("tracked", [False, True])
def test_a_second_optimizer_is_found_even_if_the_run_does_not_know_it(tmp_path, tracked):
    toy = Loop()
    toy.optimizer = torch.optim.SGD(list(toy.model[:4].parameters()), lr=1e-3)
    second = torch.optim.SGD(toy.model[4].parameters(), lr=1e-3)
    if tracked:
        toy.kept = {"others": {"second": second}}

    def update(_run, _step):
        second.step()
        second.zero_grad()

    toy.after = update
    assert toy.found(tmp_path, 80) == []


# Gradients


def keep(_step):
    """Forget zero_grad()."""


def test_gradients_that_are_never_cleared_are_named(tmp_path):
    toy = Loop()
    toy.clear = keep
    assert toy.found(tmp_path) == [("UnclearedGradient", "warning")]


@pytest.mark.parametrize("set_to_none", [False, True])
def test_gradients_that_are_cleared_are_healthy(tmp_path, set_to_none):
    toy = Loop()
    toy.clear = lambda _step: toy.optimizer.zero_grad(set_to_none=set_to_none)
    assert toy.found(tmp_path) == []
    history = read_history(tmp_path)
    assert ("Guard/uncleared_gradient" in history) is not set_to_none
    if not set_to_none:
        assert not history["Guard/uncleared_gradient"].values.any()


@pytest.mark.parametrize("set_to_none", [False, True])
def test_deliberate_accumulation_is_healthy(tmp_path, set_to_none):
    """Four backward passes for each update."""
    toy = Loop()

    def accumulated(_step):
        toy.optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(3):
            fit(toy.model).total.backward()

    toy.clear = accumulated
    assert toy.found(tmp_path) == []


def test_an_update_every_fourth_step_is_healthy(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(4 * STEPS):
            terms = fit(model)
            terms.total.backward()
            step.observe(terms)
            if step.every(4):
                step.update(optimizer)
                optimizer.zero_grad(set_to_none=False)
    assert examine(tmp_path, RULES) == []


def test_the_checks_do_not_change_the_training(tmp_path):
    """The hook that measures old gradients reads them only."""
    seen = Loop()
    seen.clear = lambda _step: seen.optimizer.zero_grad(set_to_none=False)
    torch.manual_seed(3)
    seen.train(tmp_path)
    random_state = torch.get_rng_state()
    alone = Loop()
    torch.manual_seed(3)
    for _ in range(STEPS):
        loss = fit(alone.model).total
        alone.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        alone.optimizer.step()
    assert torch.equal(torch.get_rng_state(), random_state)
    for first, second in zip(seen.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(first, second)


# Terms


def with_second(toy, value, weight=0.1):
    return lambda step: Terms(fit=(1.0, fit(toy.model).total), second=(weight, value(step)))


@pytest.mark.parametrize("value", ["detached", "other"])
def test_a_term_without_gradient_is_named(tmp_path, value):
    toy = Loop()
    size = next(toy.model.parameters())
    other = torch.ones(3, requires_grad=True)
    values = {"detached": lambda _step: size.detach().square().sum(), "other": lambda _step: other.square().sum()}
    toy.terms = with_second(toy, values[value])
    assert toy.found(tmp_path) == [("TermWithoutGradient", "warning")]
    (finding,) = examine(tmp_path, RULES)
    assert (finding.subject, finding.step) == ("second", 31)
    assert read_history(tmp_path).events("term_without_gradient")[0]["detached"] is (value == "detached")


def test_a_detached_term_of_an_objective_is_named(tmp_path):
    toy = Loop()
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(model=toy.model, optimizer=toy.optimizer)
        for step in run.steps(STEPS):
            step.backward(lambda inputs: fit(toy.model) | Terms(second=(1.0, inputs.square().mean())), INPUTS)
            step.update(toy.optimizer)
    assert [(finding.rule, finding.subject) for finding in examine(tmp_path, RULES)] == [
        ("TermWithoutGradient", "second")
    ]


def test_terms_that_are_empty_or_only_recorded_or_connected_are_healthy(tmp_path):
    toy = Loop()
    size = next(toy.model.parameters())
    steps = {
        "empty": (lambda _step: torch.zeros(()), 0.1),
        "recorded": (lambda _step: size.detach().square().sum(), 0.0),
        "sometimes": (lambda step: (size if step.index % 5 == 0 else size.detach()).square().sum(), 0.1),
    }
    for name, (value, weight) in steps.items():
        toy.terms = with_second(toy, value, weight)
        assert toy.found(tmp_path / name) == []


def test_a_term_of_frozen_layers_is_a_note(tmp_path):
    toy = Loop()
    freeze(toy.model)
    toy.terms = with_second(toy, lambda _step: next(toy.model.parameters()).square().sum())
    assert toy.found(tmp_path) == [("TermWithoutGradient", "note")]


# Learning rates


def set_rate(toy, rate):
    def change(_run, _step):
        for group in toy.optimizer.param_groups:
            group["lr"] = rate

    return change


def test_a_rate_that_jumps_without_harm_is_a_note(tmp_path):
    toy = Loop()
    toy.after = at(30, set_rate(toy, 0.02))
    assert toy.found(tmp_path) == [("RateJump", "note")]


def test_a_rate_that_jumps_and_ends_the_run_is_named(tmp_path):
    toy = Loop()
    toy.after = at(30, set_rate(toy, 5.0))
    with pytest.raises(Diverged):
        toy.train(tmp_path)
    assert [(finding.rule, finding.severity) for finding in examine(tmp_path, RULES)] == [("RateJump", "warning")]


def test_a_rate_that_falls_and_restarts_is_healthy(tmp_path):
    toy = Loop()

    def restart(run, step):
        set_rate(toy, 1e-3 if step.index % 20 == 0 else 1e-6)(run, step)

    toy.after = restart
    assert toy.found(tmp_path) == []
