"""step.backward gives the gradients of plain torch, for a whole batch and for micro-batches."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fieldwatch import MicroBatches, Outputs, Run, Saving, StepOutput, Terms, read_history
from fieldwatch.record import read_events

STEPS = 6
BATCH = 8


class Toy:
    """A regression with two loss terms."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.batches = torch.randn(STEPS, BATCH, 3)

    def errors(self, inputs):
        return (self.model(inputs).squeeze(1) - inputs.sum(1)).square()

    def objective(self, inputs):
        return Terms(fit=(1.0, self.errors(inputs).mean()), small=(0.1, self.model(inputs).abs().mean()))

    def weights(self):
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])


def quiet(folder, every=None):
    return Run(folder, saving=Saving(every=every), outputs=Outputs(sinks=()))


def train(folder, toy, each, steps=STEPS, every=None):
    """Train; ``each(run, step, inputs)`` computes the gradients."""
    with quiet(folder, every) as run:
        run.track(model=toy.model, optimizer=toy.optimizer)
        run.resume()
        for step in run.steps(steps):
            each(run, step, toy.batches[step.index])
            step.update(toy.optimizer)
    return toy


def backward(toy, **how):
    return lambda _run, step, inputs: step.backward(toy.objective, inputs, **how)


def test_backward_equals_plain_torch_bit_for_bit(tmp_path):
    def plainly(_run, step, inputs):
        plain.optimizer.zero_grad()
        terms = plain.objective(inputs)
        terms.total.backward()
        step.observe(terms)

    plain = Toy()
    short = Toy()
    train(tmp_path / "plain", plain, plainly)
    train(tmp_path / "short", short, backward(short))
    assert torch.equal(plain.weights(), short.weights())
    ours, theirs = (read_history(tmp_path / name) for name in ("short", "plain"))
    for tag in ("Loss/total", "Loss/component_fit", "Loss/weighted_small", "Gradients/total_norm"):
        assert ours[tag].values.tolist() == theirs[tag].values.tolist()
    assert {"Time/forward", "Time/backward"} <= set(ours.names())


def test_micro_batches_give_the_gradients_and_terms_of_the_whole_batch(tmp_path):
    whole = Toy()
    cut = Toy()
    train(tmp_path / "whole", whole, backward(whole))
    train(tmp_path / "cut", cut, backward(cut, micro_batches=MicroBatches(count=3)))
    torch.testing.assert_close(whole.weights(), cut.weights())
    assert not torch.equal(whole.weights(), cut.weights())  # a different summation order: the batch was cut
    ours, theirs = (read_history(tmp_path / name) for name in ("cut", "whole"))
    assert ours["Loss/total"].values == pytest.approx(theirs["Loss/total"].values, rel=1e-5)
    assert ours["Loss/weight_small"].values == pytest.approx(theirs["Loss/weight_small"].values)


def test_earlier_gradients_are_cleared(tmp_path):
    clean = Toy()
    soiled = Toy()

    def soil(_run, step, inputs):
        for parameter in soiled.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        step.backward(soiled.objective, inputs)

    train(tmp_path / "clean", clean, backward(clean))
    train(tmp_path / "soiled", soiled, soil)
    assert torch.equal(clean.weights(), soiled.weights())


def test_backward_returns_detached_terms_of_the_batch(tmp_path):
    toy = Toy()

    def each(_run, step, inputs):
        terms = step.backward(toy.objective, inputs, micro_batches=MicroBatches(count=2))
        assert list(terms) == ["fit", "small"]
        assert not terms.total.requires_grad
        torch.testing.assert_close(terms.total, toy.objective(inputs).total.detach())

    train(tmp_path, toy, each)


@dataclass(frozen=True, kw_only=True)
class Shown(StepOutput):
    """Output of a forward pass."""

    mean: Tensor


def test_outputs_are_returned_per_micro_batch_and_sample_losses_concatenated(tmp_path):
    toy = Toy()
    names = [f"view {i}" for i in range(BATCH)]

    def objective(inputs):
        errors = toy.errors(inputs)
        return Shown(terms=Terms(fit=(1.0, errors.mean())), sample_loss=errors.detach(), mean=inputs.mean())

    def each(_run, step, inputs):
        expected = toy.errors(inputs).detach()
        outputs = step.backward(objective, inputs, micro_batches=MicroBatches(count=2), samples=names)
        assert [float(output.mean) for output in outputs] == [float(half.mean()) for half in inputs.chunk(2)]
        assert not any(output.terms.total.requires_grad for output in outputs)
        torch.testing.assert_close(step.sample_loss, expected)
        assert step.samples == tuple(names)

    train(tmp_path, toy, each)


class Exhausted:
    """An objective that runs out of memory for more samples than fit."""

    def __init__(self, toy, fits):
        self.toy = toy
        self.fits = fits
        self.noise = []

    def __call__(self, inputs):
        self.noise.append(torch.rand(()).item())
        if len(inputs) > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")
        return self.toy.objective(inputs)


def test_out_of_memory_doubles_micro_batches_and_a_resumed_run_keeps_the_count(tmp_path):
    toy = Toy()
    train(tmp_path, toy, backward_of(Exhausted(toy, fits=4)), steps=3, every=1)
    events = [event for event in read_events(tmp_path) if event["kind"] == "out_of_memory"]
    assert [(event["step"], event["before"], event["after"]) for event in events] == [(0, 1, 2)]
    again = Toy()
    counts = []

    def each(run, step, inputs):
        counts.append(run.micro_batches.count)
        step.backward(again.objective, inputs)

    train(tmp_path, again, each)
    assert counts == [2, 2, 2]


def backward_of(objective):
    return lambda _run, step, inputs: step.backward(objective, inputs)


def test_a_retried_step_draws_the_same_random_numbers(tmp_path):
    toy = Toy()
    objective = Exhausted(toy, fits=4)
    train(tmp_path, toy, backward_of(objective), steps=1)
    assert objective.noise[0] == objective.noise[1]


def test_a_batch_is_not_cut_into_more_pieces_than_it_has_samples(tmp_path):
    toy = Toy()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        train(tmp_path, toy, backward_of(Exhausted(toy, fits=0)))
    assert any("8 micro-batches" in note for note in caught.value.__notes__)


def test_a_lazy_split_keeps_only_one_piece_alive(tmp_path):
    toy = Toy()
    order = []

    def load(names, count):
        for name in names:
            order.append(f"load {name}")
            yield toy.batches[name], 1 / len(names)
            order.append(f"done {name}")

    def objective(inputs):
        order.append("objective")
        return toy.objective(inputs)

    train(tmp_path, toy, lambda _run, step, _: step.backward(objective, [0, 1], split=load), steps=1)
    assert order == ["load 0", "objective", "done 0", "load 1", "objective", "done 1"]
