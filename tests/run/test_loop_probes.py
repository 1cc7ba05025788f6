"""Probes of a loop record what evaluations are made of and what the loop keeps, without a change of the training."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from fieldwatch import Outputs, Run, Saving, Terms, read_history
from fieldwatch.run.loop_checks.second_forward import ask_again, inline_dropout
from fieldwatch.run.loop_checks.seen_samples import SeenSamples

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(96, 6, generator=GENERATOR)
OTHERS = torch.randn(96, 6, generator=GENERATOR)
TARGETS = INPUTS.sum(1, keepdim=True)


class Dropped(nn.Module):
    """Drops features by a function."""

    def __init__(self, *, aware):
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.aware = aware
        self.seen = []

    def forward(self, inputs):
        self.seen.append(len(inputs))
        if self.aware:
            return self.linear(functional.dropout(inputs, 0.5, training=self.training))
        return self.linear(functional.dropout(inputs, 0.5))


class Centered(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, inputs):
        return inputs - inputs.mean(dim=0)


class AlongTheBatch(nn.Module):
    """Takes the samples of a batch for the steps of one sequence."""

    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(6, 5)

    def forward(self, inputs):
        return self.memory(inputs[:, None])[0][:, 0]


def loop(folder, model, *, evaluate=None, steps=40, prepare=None, optimizers=None):
    """Train; returns the events by kind, and the history."""
    torch.manual_seed(1)
    trained = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    with Run(folder, saving=Saving(every=None), outputs=Outputs(sinks=(), detail_every=16)) as run:
        run.track(model=model, trained=trained)
        for step in run.steps(steps):
            rows = torch.randint(96, (16,))
            inputs = INPUTS[rows] if prepare is None else prepare(rows)
            terms = Terms(fit=(1.0, (model(inputs) - TARGETS[rows]).square().mean()))
            trained.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(trained)
            if evaluate is not None and step.every(20):
                with run.evaluation("others"):
                    step.record({"val/error": evaluate(model)})
    return read_history(folder)


def error(rows):
    def of(model):
        model.eval()
        return (model(rows) - TARGETS).square().mean()

    return of


def test_dropout_as_a_function_is_found_in_evaluations_and_changes_no_number(tmp_path):
    model = Dropped(aware=False)
    other = copy.deepcopy(model)
    (event, *_) = loop(tmp_path / "a", model, evaluate=error(OTHERS)).events("evaluation_output")
    assert (event["random"], event["inline"]) == (True, "Dropped")
    loop(tmp_path / "b", other)
    assert torch.equal(model.linear.weight, other.linear.weight)
    aware = loop(tmp_path / "c", Dropped(aware=True), evaluate=error(OTHERS))
    assert not aware.events("evaluation_output")


def asked(model, output):
    facts = ask_again(model, (OTHERS,), {}, output)
    assert facts is not None
    return facts


def test_a_second_forward_leaves_a_module_as_it_was():
    model = Dropped(aware=False).eval()
    with torch.no_grad():
        output = model(OTHERS)
    before = torch.get_rng_state()
    assert asked(model, output)["random"]
    assert torch.equal(before, torch.get_rng_state())
    assert model.seen == [96]
    assert inline_dropout(nn.Linear(6, 1)) == ""


def test_samples_that_are_mixed_within_a_batch_are_found():
    mixed, alone = Centered().eval(), nn.Linear(6, 2).eval()
    assert asked(mixed, mixed(OTHERS))["others"]
    with torch.no_grad():
        assert not asked(alone, alone(OTHERS))["others"]
        # The first samples do not depend on later ones.
        recurrent = AlongTheBatch().eval()
        assert asked(recurrent, recurrent(OTHERS))["others"]
    # Hooks of others would see the forward.
    watched = nn.Sequential(nn.Linear(6, 2)).eval()
    watched[0].register_forward_hook(lambda *_: None)
    assert ask_again(watched, (OTHERS,), {}, watched(OTHERS)) is None
    # A tensor that is no buffer may be a cache, into which the forward writes.
    alone.cache = torch.zeros(1)
    assert ask_again(alone, (OTHERS,), {}, alone(OTHERS)) is None


@pytest.mark.parametrize(("rows", "share"), [(INPUTS, 1.0), (OTHERS, 0.0)])
def test_samples_of_the_training_are_known_in_evaluations(tmp_path, rows, share):
    history = loop(tmp_path, nn.Linear(6, 1), evaluate=error(rows))
    assert history["Forward/model_evaluation_seen"].values[-1] == pytest.approx(share, abs=0.05)


def test_a_sparse_graph_before_the_features_of_its_nodes_is_not_read(tmp_path):
    graph = torch.eye(len(INPUTS)).to_sparse()

    class OfNodes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 1)

        def forward(self, edges, nodes):
            return torch.sparse.mm(edges, self.linear(nodes))

    model = OfNodes()
    sgd = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(sinks=(), detail_every=16)) as run:
        run.track(model=model, sgd=sgd)
        for step in run.steps(24):
            terms = Terms(fit=(1.0, (model(graph, INPUTS) - TARGETS).square().mean()))
            sgd.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(sgd)
            if step.every(8):
                with run.evaluation("nodes"), torch.no_grad():
                    step.record({"val/error": (model(graph, OTHERS) - TARGETS).square().mean()})
    assert "Forward/model_evaluation_input_std" in read_history(tmp_path)
    assert "Forward/model_evaluation_seen" not in read_history(tmp_path)


@pytest.mark.parametrize(("known", "share"), [(True, 1.0), (False, 0.0)])
def test_short_sequences_that_agree_in_some_columns_are_not_the_same(known, share):
    """Most of a padded table is 0: of one column in four, many sequences have the same."""
    generator = torch.Generator().manual_seed(4)
    tokens = torch.nn.functional.one_hot(torch.randint(6, (160, 8), generator=generator), 6).float()
    padded = torch.cat([tokens, torch.zeros(160, 40, 6)], dim=1)
    samples = SeenSamples()
    for batch in padded[:96].split(32):
        samples.note(batch)
    seen = samples.share(padded[:32] if known else padded[128:])
    assert seen is not None
    assert float(seen) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize(("kind", "share"), [(torch.bfloat16, 1.0), (torch.float32, 0.0)])
def test_rounded_inputs_are_measured(tmp_path, kind, share):
    history = loop(tmp_path, nn.Linear(6, 1), prepare=lambda rows: INPUTS[rows].to(kind).float())
    assert history["Forward/model_input_rounded"].values.mean() == pytest.approx(share, abs=0.01)


class Kinds(nn.Module):
    def __init__(self, padding):
        super().__init__()
        self.kinds = nn.Embedding(5, 4, padding_idx=padding)
        self.out = nn.Linear(4, 1)

    def forward(self, ids):
        return self.out(self.kinds(ids))


def test_rows_for_padding_and_rows_without_training_are_counted(tmp_path):
    def unknown(model):
        return model(torch.tensor([4, 4, 1, 2])).mean()

    history = loop(tmp_path, Kinds(0), prepare=lambda rows: rows % 4, evaluate=unknown)
    (padding,) = history.events("padding_rows")
    assert (padding["name"], padding["index"]) == ("model.kinds", 0)
    assert padding["share"] == pytest.approx(0.25, abs=0.05)
    untrained = history.events("untrained_rows")[-1]
    assert (untrained["share"], untrained["rows"]) == (0.5, [4])
    sound = loop(tmp_path / "sound", Kinds(None), prepare=lambda rows: rows % 5, evaluate=unknown)
    assert not sound.events("padding_rows")
    assert not sound.events("untrained_rows")


def test_norms_of_a_frozen_body_that_see_other_data_drift(tmp_path):
    def model(*, training):
        body = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).requires_grad_(requires_grad=False)
        return nn.Sequential(body.train(training), nn.Linear(4, 1))

    (event,) = loop(tmp_path / "a", model(training=True), prepare=lambda rows: INPUTS[rows] + 9).events("frozen_norms")
    assert event["names"] == ["model.0.1"]
    assert event["drift"] > 1
    assert not loop(tmp_path / "b", model(training=False)).events("frozen_norms")


@pytest.mark.parametrize("copied", [False, True])
def test_weights_that_a_variable_keeps_are_told_from_the_current_ones(tmp_path, copied):
    model = nn.Linear(6, 1)
    best = copy.deepcopy(model.state_dict()) if copied else model.state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(3):
            loss = model(INPUTS).square().mean()
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(fit=(1.0, loss)))
            step.update(optimizer)
    assert best.keys() == {"weight", "bias"}
    (event,) = read_history(tmp_path).events("kept_weights")
    assert (event["name"], event["shared"]) == ("best", not copied)


@pytest.mark.parametrize("when", ["before", "after"])
def test_gradients_that_another_loss_leaves_are_found(tmp_path, when):
    maker, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    of_maker, of_critic = (torch.optim.SGD(each.parameters(), lr=1e-3) for each in (maker, critic))
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(maker=maker, critic=critic, of_maker=of_maker, of_critic=of_critic)
        for step in run.steps(12):
            made = maker(torch.randn(8, 2))
            for optimizer in (of_critic, of_maker):
                loss = critic(made.detach()).mean() if optimizer is of_critic else -critic(made).mean()
                if when == "before":
                    optimizer.zero_grad()
                loss.backward()
                step.observe(Terms(game=(1.0, loss.detach())))
                step.update(optimizer)
                if when == "after":
                    optimizer.zero_grad()
    assert len(read_history(tmp_path).events("foreign_gradient")) == (when == "after")


@pytest.mark.filterwarnings("ignore:`parameters` is an empty generator")
def test_a_generator_of_parameters_that_is_clipped_again_and_again_is_used_up(tmp_path):
    model = nn.Linear(6, 1)
    parameters = model.parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(2):
            loss = model(INPUTS).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            step.observe(Terms(fit=(1.0, loss)))
            step.update(optimizer)
    (event,) = read_history(tmp_path).events("loop_source")
    assert len(event["order"]) == 1
