"""What a loop does with its batches, modes and random numbers is recorded, without a change of the training."""

import copy
import pickle

import pytest
import torch
from torch import nn

from fieldwatch import Outputs, Run, Saving, Terms, read_history
from fieldwatch.health import examine
from fieldwatch.health.rules import batches, evaluations, precision, rules_in, untrained
from fieldwatch.measure.gradients import precision_statistics

STEPS = 64
RULES = tuple(rule() for module in (batches, evaluations, precision, untrained) for rule in rules_in(module))
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(64, 4, generator=GENERATOR)
TARGETS = INPUTS.sum(1, keepdim=True)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


def drawn(_step):
    return torch.randint(64, (8,))


class Loop:
    """A loop whose model, batches and evaluation a test chooses."""

    def __init__(self, model=None, batch=drawn, evaluate=None, prepare=None, **kept):
        self.model = model or network()
        self.batch = batch
        self.evaluate = evaluate or (lambda _run, _step: None)
        self.prepare = prepare or (lambda inputs: inputs)
        self.kept = kept
        self.after = lambda: None
        self.decay = 0.0

    def train(self, folder):
        trained = torch.optim.SGD(self.model.parameters(), lr=1e-2, weight_decay=self.decay)
        with Run(folder, saving=Saving(every=None), outputs=Outputs(sinks=(), detail_every=16)) as run:
            run.track(model=self.model, optimizer=trained, **self.kept)
            for step in run.steps(STEPS):
                picked = self.batch(step)
                terms = Terms(fit=(1.0, (self.model(self.prepare(INPUTS[picked])) - TARGETS[picked]).square().mean()))
                trained.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(trained)
                self.after()
                if step.every(16):
                    self.evaluate(run, step)
        return self

    def found(self, folder):
        """Train, and return rule and severity of each finding."""
        self.train(folder)
        return [(finding.rule, finding.severity) for finding in examine(folder, RULES)]


def by_hand(model, *, evaluate=True, draw=False, seed=None):
    def evaluation(_run, step):
        if evaluate:
            model.eval()
        if draw:
            torch.rand(3)
        if seed is not None:
            torch.manual_seed(seed)
        with torch.no_grad():
            step.record({"Eval/error": (model(INPUTS) - TARGETS).square().mean()})
        model.train()

    return evaluation


def test_a_usual_loop_with_an_evaluation_by_hand_is_healthy(tmp_path):
    model = network()
    assert Loop(model, evaluate=by_hand(model)).found(tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        # Dropout draws numbers, too, which does no harm.
        ({"evaluate": False}, {("EvaluatedInTrainMode", "warning"), ("EvaluationDraws", "note")}),
        ({"draw": True}, {("EvaluationDraws", "note")}),
        ({"seed": 3}, {("EvaluationDraws", "warning")}),
    ],
)
def test_an_evaluation_that_disturbs_or_runs_in_train_mode_is_named(tmp_path, fault, found):
    model = network()
    assert set(Loop(model, evaluate=by_hand(model, **fault)).found(tmp_path)) == found


def test_an_evaluation_block_may_draw_numbers(tmp_path):
    model = network()

    def evaluation(run, step):
        with run.evaluation("test"):
            by_hand(model, draw=True, seed=1)(run, step)

    assert Loop(model, evaluate=evaluation).found(tmp_path) == []


def test_forwards_without_gradients_at_every_step_belong_to_the_training(tmp_path):
    model = network()

    def loss_of_samples(_step):
        picked = drawn(_step)
        with torch.no_grad():
            model(INPUTS[picked])
        return picked

    assert Loop(model, loss_of_samples, by_hand(model)).found(tmp_path) == []


def test_the_same_batch_at_every_step_is_recognized_by_its_inputs(tmp_path):
    assert Loop(batch=lambda _step: torch.arange(8)).found(tmp_path) == [("SameBatch", "note")]


def test_one_hot_inputs_have_the_same_mean_but_are_other_batches(tmp_path):
    codes = torch.eye(4)
    loop = Loop(prepare=lambda inputs: codes[inputs.argmax(dim=1)])
    assert loop.found(tmp_path) == []


def test_blank_inputs_and_dead_units_are_told_apart(tmp_path):
    assert ("ConstantInput", "warning") in Loop(prepare=torch.zeros_like).found(tmp_path / "blank")
    dead = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        dead[0].bias.fill_(-50)
    assert ("ConstantOutput", "warning") in Loop(dead).found(tmp_path / "dead")


class Halves(nn.Module):
    def __init__(self, *, detach):
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
        self.detach = detach

    def forward(self, inputs):
        hidden = self.encoder(inputs)
        return self.head(hidden.detach() if self.detach else hidden)


@pytest.mark.parametrize("detach", [True, False])
def test_a_part_without_any_gradient_is_named(tmp_path, detach):
    torch.manual_seed(0)
    expected = [("NeverTrained", "warning")] if detach else []
    assert Loop(Halves(detach=detach)).found(tmp_path) == expected


class Spare(Halves):
    """Has a second head, which only an evaluation looks at."""

    def __init__(self):
        super().__init__(detach=False)
        self.second = nn.Linear(8, 8)

    def forward(self, inputs):
        if not self.training:
            self.second(self.encoder(inputs))
        return super().forward(inputs)


def test_a_part_that_only_evaluations_call_is_a_note(tmp_path):
    torch.manual_seed(0)
    model = Spare()
    assert Loop(model, evaluate=by_hand(model)).found(tmp_path) == [("NeverTrained", "note")]


@pytest.mark.parametrize(("part", "expected"), [("head", [("FrozenOutput", "warning")]), ("encoder", [])])
def test_a_frozen_head_is_named_and_a_frozen_backbone_is_not(tmp_path, part, expected):
    torch.manual_seed(0)
    model = Halves(detach=False)
    model.get_submodule(part).requires_grad_(False)
    assert Loop(model).found(tmp_path) == expected


@pytest.mark.parametrize(("decay", "expected"), [(0.999, [("StaleAverage", "warning")]), (0.5, [])])
def test_an_average_that_lags_is_named_if_it_is_evaluated(tmp_path, decay, expected):
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
    average.update_parameters(model)
    loop = Loop(model, evaluate=by_hand(average), average=average)
    loop.after = lambda: average.update_parameters(model)
    assert [found for found in loop.found(tmp_path) if found[0] != "EvaluatedInTrainMode"] == expected


def test_the_hooks_are_gone_after_the_run_and_change_nothing(tmp_path):
    watched = Loop().train(tmp_path).model
    assert not watched._forward_hooks
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        picked = drawn(step)
        optimizer.zero_grad()
        (model(INPUTS[picked]) - TARGETS[picked]).square().mean().backward()
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(watched.parameters(), model.parameters(), strict=True))


def test_a_copy_of_a_watched_module_is_watched_no_more(tmp_path):
    loop = Loop()
    copies = []

    def copied(_run, _step):
        copies.append(copy.deepcopy(loop.model))
        copies.append(pickle.loads(pickle.dumps(loop.model)))  # noqa: S301  our own bytes

    loop.evaluate = copied
    loop.train(tmp_path)
    before = len(read_history(tmp_path)["Forward/model_input_mean"])
    assert all(torch.equal(each.eval()(INPUTS), each(INPUTS)) for each in copies)
    assert len(read_history(tmp_path)["Forward/model_input_mean"]) == before


@pytest.mark.parametrize(("kind", "lost"), [(torch.float16, True), (torch.bfloat16, False), (torch.float32, False)])
def test_only_float16_loses_small_gradients(kind, lost):
    values = 10 ** (-4 - 4 * torch.rand(4096, generator=GENERATOR))
    found = precision_statistics([values.to(kind).float()])
    assert (float(found["Guard/half_gradient"]) > 0.1) == lost
    assert (float(found["Guard/zero_gradient"]) > 0.0) == lost


def test_scaled_gradients_lose_nothing_in_float16():
    values = 10 ** (-4 - 4 * torch.rand(4096, generator=GENERATOR))
    scaled = (65536 * values).half().float() / 65536
    assert float(precision_statistics([scaled])["Guard/half_gradient"]) == 0
