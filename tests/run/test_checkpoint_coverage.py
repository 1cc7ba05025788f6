"""Untracked state is reported at the start of a run and as a finding; a run that tracks everything is silent."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from fieldwatch import Outputs, ResumableLoader, Run, Saving, Shuffled, Terms, examine, read_history
from fieldwatch.health import GENERAL
from fieldwatch.health.rules.not_kept import NotKept

DATA = TensorDataset(torch.randn(12, 3))


class Toy:
    def __init__(self):
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.order = Shuffled(12, 4)


def learn(step, toy, batch=None):
    inputs = torch.ones(2, 3) if batch is None else batch
    terms = Terms(fit=(1.0, toy.model(inputs).square().mean()))
    toy.optimizer.zero_grad()
    terms.total.backward()
    step.observe(terms)
    step.update(toy.optimizer)


def trained(folder, toy, kept, *, batches=None, steps=3, watch=True):
    """Train some steps with the caller's folder and tracked objects."""
    with Run(folder, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        if watch:
            run.track(groups={"model": toy.model})
        if kept is not None:
            run.track(**kept)
            run.resume()
        source = itertools.repeat(None) if batches is None else run.batches(batches)
        for step, batch in zip(run.steps(steps), source, strict=False):
            learn(step, toy, None if batch is None else DATA.tensors[0][:4])
    return {event["subject"]: event for event in read_history(folder).events("not_kept")}


def full(toy):
    return {"model": toy.model, "optimizer": toy.optimizer}


def test_untracked_state_is_printed_recorded_and_reported(tmp_path, capsys):
    toy = Toy()
    warned = trained(tmp_path / "run", toy, {"model": toy.model})
    assert list(warned) == ["Adam"]
    assert warned["Adam"]["step"] == 0
    err = capsys.readouterr().err
    assert "Adam" in err
    assert err.count("\n") == 1
    (finding,) = examine(tmp_path / "run", (NotKept(),))
    # The run has ended and was never resumed, so that nothing was lost.
    assert (finding.subject, finding.severity, finding.step) == ("Adam", "note", 0)
    assert any(isinstance(rule, NotKept) for rule in GENERAL)


def test_a_run_that_tracks_everything_gives_no_warning(tmp_path, capsys):
    toy = Toy()
    assert trained(tmp_path / "run", toy, {**full(toy), "order": toy.order}) == {}
    assert capsys.readouterr().err == ""


def test_tracking_nothing_is_reported_before_the_first_step(tmp_path, capsys):
    toy = Toy()
    with Run(tmp_path / "run", outputs=Outputs(sinks=())) as run:
        next(run.steps(3))
        assert "run.track" in capsys.readouterr().err
    assert list(trained(tmp_path / "other", toy, None)) == ["nothing"]


def test_an_untracked_watched_model_is_reported_before_the_first_step(tmp_path, capsys):
    toy = Toy()
    with Run(tmp_path / "run", outputs=Outputs(sinks=())) as run:
        run.track(optimizer=toy.optimizer, groups={"model": toy.model})
        run.resume()
        next(run.steps(3))
        assert "'model'" in capsys.readouterr().err


def test_stepped_parameters_that_are_neither_watched_nor_tracked_are_reported(tmp_path):
    toy = Toy()
    assert list(trained(tmp_path / "run", toy, {"optimizer": toy.optimizer}, watch=False)) == ["parameters of Adam"]


def test_an_optimizer_that_steps_later_is_reported_then(tmp_path):
    toy = Toy()
    late = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    with Run(tmp_path / "run", outputs=Outputs(sinks=())) as run:
        run.track(**full(toy))
        run.resume()
        for step in run.steps(4):
            toy.optimizer.zero_grad()
            terms = Terms(fit=(1.0, toy.model(torch.ones(2, 3)).square().mean()))
            terms.total.backward()
            late.param_groups[0]["params"][0].grad = torch.ones(2)
            step.update(toy.optimizer, *([late] if step.index >= 2 else []))
    events = read_history(tmp_path / "run").events("not_kept")
    assert [(event["subject"], event["step"]) for event in events] == [("SGD", 2), ("parameters of SGD", 2)]


SCHEDULERS = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
    "plateau": lr_scheduler.ReduceLROnPlateau,
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(optimizer, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.StepLR(optimizer, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("looked_at", [False, True])
def test_an_untracked_scheduler_of_a_tracked_optimizer_is_reported(tmp_path, kind, looked_at):
    toy = Toy()
    toy.schedule = SCHEDULERS[kind](toy.optimizer)
    if looked_at:
        toy.schedule.state_dict()  # from now on, its attributes are in a dictionary
    assert list(trained(tmp_path / "run", toy, full(toy))) == ["LRScheduler"]
    assert trained(tmp_path / "kept", toy, {**full(toy), "schedule": toy.schedule}) == {}


def test_an_untracked_order_is_reported_in_the_first_step(tmp_path):
    def subjects(folder, order, other, **kept):
        toy = Toy()
        with Run(folder, outputs=Outputs(sinks=())) as run:
            run.track(**full(toy), **kept)
            run.resume()
            for step in run.steps(2):
                next(order)
                next(other)
                learn(step, toy)
        return [event["subject"] for event in read_history(folder).events("not_kept")]

    first = Shuffled(12, 4)
    second = Shuffled(12, 4)
    before = Shuffled(12, 4)
    next(before)
    assert subjects(tmp_path / "run", first, first) == ["Shuffled"]
    assert subjects(tmp_path / "kept", first, first, kept=first) == []
    assert subjects(tmp_path / "read ahead", first, second, kept=first) == []


def test_a_loader_unknown_to_the_run_is_reported_in_the_first_step(tmp_path):
    toy = Toy()
    loader = ResumableLoader(DATA, 4)
    with Run(tmp_path / "run", outputs=Outputs(sinks=())) as run:
        run.track(**full(toy))
        run.resume()
        for step, _ in zip(run.steps(2), loader, strict=False):
            learn(step, toy)
    assert [event["subject"] for event in read_history(tmp_path / "run").events("not_kept")] == ["ResumableLoader"]


def test_an_enabled_scaler_in_a_tracked_module_is_reported(tmp_path):
    toy = Toy()
    toy.model.scaler = torch.amp.GradScaler("cpu")
    toy.model.switched_off = torch.amp.GradScaler("cpu", enabled=False)
    assert list(trained(tmp_path / "run", toy, full(toy))) == ["scaler"]
    assert trained(tmp_path / "kept", toy, {**full(toy), "scaler": toy.model.scaler}) == {}


def test_other_attributes_of_a_tracked_module_are_reported(tmp_path):
    toy = Toy()
    toy.model.order = toy.order
    assert list(trained(tmp_path / "run", toy, full(toy))) == ["order"]
    assert trained(tmp_path / "kept", toy, {**full(toy), "order": toy.order}) == {}


class Trainer:
    """An object with a custom state that contains everything."""

    def __init__(self, toy):
        self.toy_model = toy.model
        self.toy_optimizer = toy.optimizer
        self.schedule = lr_scheduler.StepLR(toy.optimizer, 2)

    def state_dict(self):
        return {"model": self.toy_model.state_dict(), "optimizer": self.toy_optimizer.state_dict()}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    "kept",
    [
        lambda toy: {"everything": Trainer(toy)},
        lambda toy: {"parts": {"model": toy.model, "optimizer": toy.optimizer}},
        lambda toy: {"weights": {"w": toy.model.weight.data, "b": toy.model.bias}, "optimizer": toy.optimizer},
        lambda toy: {"model": nn.Sequential(toy.model), "optimizer": toy.optimizer},
    ],
    ids=["an object with a state", "a mapping", "tensors", "a wrapping module"],
)
def test_state_tracked_in_another_form_is_not_reported(tmp_path, kept):
    toy = Toy()
    assert trained(tmp_path / "run", toy, kept(toy)) == {}


class Places:
    """Batches with a position."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        yield from range(9)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def generator_over(order):
    yield from order


def sampled(sampler):
    return DataLoader(DATA, batch_size=4, sampler=sampler, generator=torch.Generator())


@pytest.mark.parametrize(
    ("make", "subject"),
    [
        (lambda: DataLoader(DATA, batch_size=4), "DataLoader"),
        (lambda: DataLoader(DATA, batch_size=4, shuffle=True, generator=torch.Generator()), "DataLoader"),
        (lambda: iter(DataLoader(DATA, batch_size=4)), "DataLoader"),
        (lambda: ResumableLoader(DATA, 4), "ResumableLoader"),
        (Places, "Places"),
        (lambda: [1, 2, 3], "list"),
        (lambda: generator_over(range(9)), "generator"),
    ],
)
def test_an_untracked_source_of_batches_is_reported_before_the_first_step(tmp_path, capsys, make, subject):
    toy = Toy()
    with Run(tmp_path / "run", saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(**full(toy))
        run.resume()
        batches = run.batches(make())
        next(zip(run.steps(3), batches, strict=False))
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert [event["subject"] for event in read_history(tmp_path / "run").events("not_kept")] == [subject]


class Remembering(SequentialSampler):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_tracked_source_of_batches_is_not_reported(tmp_path):
    toy = Toy()
    order = Shuffled(12, 4)
    places = Places()
    sampler = Remembering(DATA)
    loader = ResumableLoader(DATA, 4)
    for number, (source, item) in enumerate(
        [
            (order, order),
            (places, places),
            (sampled(sampler), sampler),
            (loader, loader),
            (generator_over(order), order),
            ([1], toy.optimizer),
        ]
    ):
        assert trained(tmp_path / str(number), toy, {**full(toy), "order": item}, batches=source) == {}


def test_a_tracked_sampler_does_not_suffice_if_workers_prefetch(tmp_path):
    toy = Toy()
    sampler = Remembering(DATA)
    ahead = DataLoader(DATA, batch_size=4, sampler=sampler, generator=torch.Generator(), num_workers=1)
    with Run(tmp_path / "run", saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(**full(toy), sampler=sampler)
        run.resume()
        run.batches(ahead)
        next(run.steps(3))
    assert [event["subject"] for event in read_history(tmp_path / "run").events("not_kept")] == ["DataLoader"]


def test_a_batch_drawn_before_its_step_is_reported(tmp_path):
    toy = Toy()
    loader = ResumableLoader(DATA, 4)
    with Run(tmp_path / "run", saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(**full(toy), loader=loader)
        run.resume()
        for _, step in zip(run.batches(loader), run.steps(3), strict=False):
            learn(step, toy)
    events = read_history(tmp_path / "run").events("not_kept")
    assert [event["subject"] for event in events] == ["position of ResumableLoader"]


def test_each_object_is_reported_once(tmp_path, capsys):
    toy = Toy()
    trained(tmp_path / "run", toy, {"model": toy.model}, steps=70)
    assert len(capsys.readouterr().err.splitlines()) == 1
