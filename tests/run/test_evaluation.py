"""An evaluation cannot disturb the training, whether it succeeds or fails."""

import math
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from fieldwatch import Outputs, Run, Saving, Terms, read_history
from fieldwatch.record import WriterFailed, read_events
from fieldwatch.run import EvaluationBlock

STEPS = 9


class Toy:
    """A training with all state that an evaluation could disturb: random numbers, modes, buffers, gradients, Adam."""

    def __init__(self):
        torch.manual_seed(0)
        random.seed(1)
        np.random.seed(2)  # noqa: NPY002  the global generator is what is tested
        self.model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.states = []
        self.failed = []

    def train(self, folder, look=None, **how):
        with Run(folder, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
            run.track(model=self.model, optimizer=self.optimizer)
            run.resume()
            for step in run.steps(STEPS):
                inputs = torch.randn(8, 3) + random.random() + np.random.random()  # noqa: NPY002
                self.optimizer.zero_grad(set_to_none=False)
                error = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
                error.backward()
                if look is not None and step.every(3):
                    with run.evaluation("evaluation", **how) as aside:
                        look(self, run)
                    self.failed.append(aside.failed)
                step.observe(Terms(fit=(1.0, error.detach())))
                step.update(self.optimizer)
                parts = [*self.model.state_dict().values(), *(p.grad for p in self.model.parameters())]
                self.states.append(torch.cat([part.reshape(-1).float() for part in parts]).clone())
                assert self.model.training
        return self


def disturb(toy, _run):
    """Change everything that an evaluation should not change."""
    assert not torch.is_grad_enabled()
    toy.model.eval()
    random.random()
    np.random.random()  # noqa: NPY002
    torch.rand(3)
    for buffer in toy.model.buffers():
        buffer.fill_(7)
    with torch.enable_grad():
        toy.model(torch.ones(4, 3)).sum().backward()
    toy.model[2].train()


def raising(error):
    def look(toy, run):
        disturb(toy, run)
        raise error

    return look


def not_a_number(toy, run):
    """Return a value that is not finite."""
    disturb(toy, run)
    run.record({"Eval/psnr": math.nan})
    run.histogram("Eval/errors", np.full(5, math.nan), 0)
    run.save_after_step({"psnr": math.nan})


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Toy().train(tmp_path_factory.mktemp("plain"))


def same(one, other):
    return all(torch.equal(*pair) for pair in zip(one.states, other.states, strict=True))


def failures(folder):
    return [event for event in read_events(folder) if event["kind"] == "validation_failed"]


def test_an_evaluation_does_not_change_the_training(tmp_path, plain):
    toy = Toy().train(tmp_path, disturb)
    assert same(toy, plain)
    assert toy.failed == [False] * 3
    assert failures(tmp_path) == []


def test_non_finite_values_do_not_change_the_training(tmp_path, plain):
    toy = Toy().train(tmp_path, not_a_number)
    assert same(toy, plain)
    assert np.isnan(read_history(tmp_path)["Eval/psnr"].values).all()


@pytest.mark.parametrize(
    "error",
    [
        OSError("disk full"),
        ValueError("a view without pixels"),
        ZeroDivisionError("no view"),
        MemoryError("no room"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_evaluation_is_recorded_and_training_continues_unchanged(tmp_path, plain, error):
    toy = Toy().train(tmp_path, raising(error))
    assert same(toy, plain)
    assert toy.failed == [True] * 3
    events = failures(tmp_path)
    assert [(event["step"], event["done"], event["what"]) for event in events] == [
        (2, 3, "evaluation"),
        (5, 6, "evaluation"),
        (8, 9, "evaluation"),
    ]
    assert events[0]["reason"] == f"{type(error).__name__}: {error}"
    text = (tmp_path / events[0]["file"]).read_text()
    assert "evaluation after 3 steps" in text
    assert "in look" in text  # the name of the function that failed
    (found,) = {event["rule"] for event in read_events(tmp_path) if event["kind"] == "finding"} & {"ValidationFailed"}
    assert found


@pytest.mark.parametrize("error", [KeyError("a bug"), KeyboardInterrupt(), RuntimeError("CUDA error: illegal access")])
def test_bugs_signals_and_lost_devices_propagate_after_the_state_is_restored(tmp_path, plain, error):
    toy = Toy()
    with pytest.raises(type(error)):
        toy.train(tmp_path, raising(error))
    assert toy.model.training
    assert torch.is_grad_enabled()
    assert torch.equal(toy.states[-1], plain.states[1])
    assert failures(tmp_path) == []


def test_the_survivable_failures_can_be_chosen(tmp_path, plain):
    assert same(Toy().train(tmp_path / "one", raising(KeyError("k")), failures=(KeyError,)), plain)
    with pytest.raises(ValueError, match="not named"):
        Toy().train(tmp_path / "other", raising(ValueError("not named")), failures=(KeyError,))
    with pytest.raises(WriterFailed):
        Toy().train(tmp_path / "writer", raising(WriterFailed("the record")), failures=(Exception,))


def test_an_evaluation_that_swaps_weights_restores_them_with_undo(tmp_path, plain):
    def swaps(toy, _run):
        for parameter in toy.model.parameters():
            parameter.data.zero_()
        raise ValueError("while swapped")

    toy = Toy()
    assert same(toy.train(tmp_path, swaps, undo=(toy.model,)), plain)


def test_a_failure_report_that_cannot_be_written_does_not_end_the_run(tmp_path, plain):
    tmp_path.joinpath("run").mkdir()
    (tmp_path / "run" / "validation_failures").write_text("in the way")
    toy = Toy().train(tmp_path / "run", raising(ValueError("x")))
    assert same(toy, plain)
    assert "not be written" in failures(tmp_path / "run")[0]["file"]


class Held:
    """A large object in a frame of the failed evaluation."""


def test_a_failed_evaluation_holds_no_memory_when_it_is_reported(tmp_path, monkeypatch):
    alive = []
    seen = []
    report = EvaluationBlock._report

    def spy(self, *arguments):
        seen.append([one() for one in alive])
        return report(self, *arguments)

    def look(_toy, _run):
        held = Held()
        alive.append(weakref.ref(held))
        raise ValueError(f"while {type(held).__name__} is there") from MemoryError("before")

    monkeypatch.setattr(EvaluationBlock, "_report", spy)
    Toy().train(tmp_path, look)
    assert seen == [[None], [None] * 2, [None] * 3]
