"""Several updates in a step, closures, and gradient scalers: the trained numbers are those of the plain loop."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from fieldwatch import Diverged, InputError, Outputs, Run, Saving, Terms, read_history

NO_SINKS = Outputs(rules=(), sinks=())
POINTS = torch.rand(32, 2, generator=torch.Generator().manual_seed(0))
PRODUCTS = POINTS.prod(dim=1, keepdim=True)


def started(folder, **items):
    run = Run(folder, saving=Saving(every=None), outputs=NO_SINKS)
    return run, items


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 1))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def with_scaler(scale, folder=None, *, spoil=None, steps=12):
    """Train with a scaler: as torch's documentation says, or in a folder."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=4)

    def loss(index):
        return mse_loss(model(POINTS), PRODUCTS) * (math.nan if index == spoil else 1000.0)

    if folder is None:
        for index in range(steps):
            optimizer.zero_grad()
            scaler.scale(loss(index)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            scaler.step(optimizer)
            scaler.update()
        return model
    with Run(folder, saving=Saving(every=None)) as run:
        run.track(model=model, optimizer=optimizer, scaler=scaler)
        for step in run.steps(steps):
            terms = Terms(fit=(1.0, loss(step.index)))
            optimizer.zero_grad()
            scaler.scale(terms.total).backward()
            step.observe(terms)
            step.update(optimizer, scaler=scaler, clip=1e-3)
    return model, run


def test_a_scaler_trains_as_in_the_plain_loop_and_its_skips_are_no_faults(tmp_path):
    model, run = with_scaler(2.0**127, tmp_path)
    history = read_history(tmp_path)
    skipped = history["Guard/scaler_skipped"].values
    assert 0 < skipped.sum() < 12
    assert history["Guard/loss_scale"].values[:2].tolist() == [2.0**127, 2.0**126]
    assert history["Guard/refused"].values.sum() == 0
    assert not history.events("refusal")
    assert run.findings == []
    plain = with_scaler(2.0**127)
    # Clipping differs in the last bit: torch adds 1e-6 to the norm.
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_not_finite_is_refused_with_a_scaler_too(tmp_path):
    _, run = with_scaler(4.0, tmp_path, spoil=7)
    history = read_history(tmp_path)
    assert [event["step"] for event in history.events("refusal")] == [7]
    assert history["Guard/scaler_skipped"].values.sum() == 0
    assert [finding.rule for finding in run.findings] == ["NonFinite"]


def test_a_factor_of_one_explains_nothing(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model[0].weight.register_hook(lambda gradient: gradient * math.nan)  # the loss stays finite
    run, items = started(tmp_path, model=model, optimizer=optimizer, scaler=scaler)
    with pytest.raises(Diverged), run:
        run.track(**items)
        for step in run.steps(20):
            optimizer.zero_grad()
            terms = Terms(fit=(1.0, mse_loss(model(POINTS), PRODUCTS)))
            scaler.scale(terms.total).backward()
            step.observe(terms)
            step.update(optimizer, scaler=scaler)
            run.flush()
    history = read_history(tmp_path)
    assert history["Guard/scaler_skipped"].values[:3].tolist() == [1.0, 1.0, 0.0]  # factors 4, 2, 1
    assert history["Guard/refused"].values[:3].tolist() == [0.0, 0.0, 1.0]


def test_a_loop_that_unscales_itself_is_told(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(InputError, match="clip="), Run(tmp_path, saving=Saving(every=None), outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer, scaler=scaler)
        for step in run.steps(1):
            scaler.scale(mse_loss(model(POINTS), PRODUCTS)).backward()
            scaler.unscale_(optimizer)
            step.update(optimizer, scaler=scaler)


def test_a_scaler_that_is_not_tracked_is_told(tmp_path, capsys):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with Run(tmp_path, saving=Saving(every=None), outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(2):
            scaler.scale(mse_loss(model(POINTS), PRODUCTS)).backward()
            step.update(optimizer, scaler=scaler)
    assert [event["subject"] for event in read_history(tmp_path).events("not_kept")] == ["GradScaler"]
    assert "GradScaler" in capsys.readouterr().err


def gan(folder=None, *, spoil=None):
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)

    def of_the_critic():
        return Terms(real=(0.5, critic(POINTS).mean()), fake=(0.5, -critic(generator(POINTS).detach()).mean()))

    def of_the_generator(index):
        return Terms(fooled=(1.0, critic(generator(POINTS)).mean() * (math.nan if index == spoil else 1.0)))

    if folder is None:
        for index in range(6):
            of_critic.zero_grad()
            of_the_critic().total.backward()
            of_critic.step()
            of_generator.zero_grad()
            of_the_generator(index).total.backward()
            of_generator.step()
        return generator, critic
    with Run(folder, saving=Saving(every=None), outputs=NO_SINKS) as run:
        run.track(generator=generator, critic=critic, of_generator=of_generator, of_critic=of_critic)
        for step in run.steps(6):
            of_critic.zero_grad()
            terms = of_the_critic()
            terms.total.backward()
            step.observe(terms)
            step.update(of_critic)
            of_generator.zero_grad()
            terms = of_the_generator(step.index)
            terms.total.backward()
            step.observe(terms)
            step.update(of_generator)
    return generator, critic


def test_optimizers_that_take_turns_train_as_in_the_plain_loop(tmp_path):
    ours, plain = gan(tmp_path), gan()
    assert all(map(same, ours, plain))
    history = read_history(tmp_path)
    columns = {name: history[name].values for name in history.names()}
    weighted = columns["Loss/weighted_real"] + columns["Loss/weighted_fake"] + columns["Loss/weighted_fooled"]
    assert columns["Loss/total"] == pytest.approx(weighted)
    both = (columns["Gradients/generator_norm"] ** 2 + columns["Gradients/critic_norm"] ** 2) ** 0.5
    assert columns["Gradients/total_norm"] == pytest.approx(both)
    assert {"LearningRate/0", "LearningRate/1"} <= columns.keys()


def test_a_refused_update_leaves_the_turns_of_the_others_alone(tmp_path):
    """The generator's gradients are NaN at step 2, and still there when the critic's turn comes."""
    gan(tmp_path, spoil=2)
    history = read_history(tmp_path)
    assert history["Guard/refused"].values.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    # The generator's backward pass reaches the critic too, and is cleared before the critic's next loss.
    assert [event["groups"] for event in history.events("refusal")] == [["generator"]]


def by_closure(folder=None, *, spoil=None, steps=4):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, history_size=3)
    calls = []

    def loss():
        calls.append(len(calls))
        return mse_loss(model(POINTS), PRODUCTS) * (math.nan if spoil is not None and calls[-1] == spoil else 1.0)

    def closure():
        optimizer.zero_grad()
        terms = Terms(fit=(1.0, loss()))
        terms.total.backward()
        return terms

    if folder is None:
        for _ in range(steps):
            optimizer.step(lambda: closure().total)
        return model
    before = []
    with Run(folder, saving=Saving(every=None), outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(steps):
            before.append([p.detach().clone() for p in model.parameters()])
            step.update(optimizer, closure=closure)
    before.append([p.detach().clone() for p in model.parameters()])
    return model, before


def test_an_optimizer_with_a_closure_trains_as_in_the_plain_loop(tmp_path):
    model, _ = by_closure(tmp_path)
    assert same(model, by_closure())
    history = read_history(tmp_path)
    assert np_all_finite(history["Loss/component_fit"].values)
    assert len(history["Gradients/model_norm"].values) == 4


@pytest.mark.parametrize("spoil", [3, 4])  # the first loss of the second update, and one within its line search
def test_an_update_whose_closure_returns_nan_is_undone(tmp_path, spoil):
    _, before = by_closure(tmp_path, spoil=spoil)
    refused = read_history(tmp_path)["Guard/refused"].values.tolist()
    assert refused[:2] == [0.0, 1.0]
    assert all(torch.equal(a, b) for a, b in zip(before[1], before[2], strict=True))
    assert all(bool(torch.isfinite(p).all()) for p in before[-1])
    assert sum(refused) == 1


def test_a_closure_cannot_be_combined_with_clipping(tmp_path):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match="closure="), Run(tmp_path, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(1):
            step.update(optimizer, closure=lambda: torch.zeros(()), clip=1.0)


def np_all_finite(values):
    return all(map(math.isfinite, values))


def test_an_update_by_other_code_is_measured_and_may_be_refused(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    flags = []
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(rules=(), sinks=(), detail_every=1)) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(3):
            optimizer.zero_grad()
            (mse_loss(model(POINTS), PRODUCTS) * (math.nan if step.index == 1 else 1.0)).backward()
            flags.append(bool(step.check_update(optimizer)))
            if not flags[-1]:
                optimizer.step()
            step.after_update(optimizer)
    history = read_history(tmp_path)
    assert flags == [False, True, False]
    assert history["Guard/refused"].values.tolist() == [0.0, 1.0, 0.0]
    ratios = history["Gradients/update_ratio_model"].values
    assert ratios[0] > ratios[1] == 0.0


def test_an_update_without_any_gradient_names_the_parameters_and_what_may_keep_it_away(tmp_path):
    maker, judge = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    of_maker = torch.optim.SGD(maker.parameters(), lr=0.1)
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)

    def play() -> None:
        with Run(tmp_path, outputs=NO_SINKS) as run:
            run.track(maker=maker, judge=judge, of_maker=of_maker, of_judge=of_judge)
            run.resume()
            for step in run.steps(1):
                for optimizer in (of_judge, of_maker):
                    loss = judge(maker(torch.ones(3, 2)).detach()).mean()
                    loss.backward()
                    step.observe(Terms(judged=(1.0, loss)))
                    step.update(optimizer)

    with pytest.raises(ValueError, match=r"'maker'.* detach"):
        play()


def test_the_moments_of_many_groups_are_spread_over_the_steps_of_an_interval(tmp_path):
    owners = {f"g{k}": [nn.Parameter(torch.ones(1))] for k in range(260)}
    parameters = [each for owner in owners.values() for each in owner]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    for parameter in parameters:
        parameter.grad = torch.ones(1)
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(rules=(), sinks=(), detail_every=8)) as run:
        run.track(groups=owners)
        for step in run.steps(15):
            step.update(optimizer)
    history = read_history(tmp_path)
    assert "Guard/moments" not in history
    measured = [history[f"Guard/moments_{name}"].steps.tolist() for name in owners]
    assert all(len(steps) == 1 for steps in measured)
    # The largest gradient, float16, averages and buffers come first, one step each.
    assert sorted({step for steps in measured for step in steps}) == [11, 12, 13, 14]
