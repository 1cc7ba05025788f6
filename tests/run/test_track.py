"""run.track registers objects, run.resume restores them, and a loop can do without an iterator."""

import pytest
import torch
from torch import nn

from fieldwatch import Checkpoints, InputError, MicroBatches, Outputs, Run, Saving, Terms, read_history
from fieldwatch.checkpoint import CheckpointError, NoWayBackError
from fieldwatch.record import read_events


def quiet(folder, every=2, **saving):
    return Run(folder, saving=Saving(every=every, **saving), outputs=Outputs(sinks=()))


class Toy:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)

    def objective(self, inputs):
        return Terms(fit=(1.0, self.model(inputs).square().mean()))

    def learn(self, step):
        step.backward(self.objective, torch.ones(4, 2))
        step.update(self.optimizer)

    def train(self, folder, steps, **saving):
        with quiet(folder, **saving) as run:
            run.track(model=self.model, optimizer=self.optimizer)
            started = run.resume()
            for step in run.steps(steps):
                self.learn(step)
        return started


def test_resume_returns_the_step_where_the_run_continues(tmp_path):
    assert Toy().train(tmp_path, 4) is None
    again = Toy()
    assert again.train(tmp_path, 6) == 4
    whole = Toy()
    whole.train(tmp_path / "whole", 6)
    assert torch.equal(again.model.weight, whole.model.weight)


def test_track_restores_nothing(tmp_path):
    Toy().train(tmp_path, 4)
    toy = Toy()
    before = toy.model.weight.detach().clone()
    with quiet(tmp_path) as run:
        run.track(model=toy.model)
        run.track(optimizer=toy.optimizer)
        assert torch.equal(toy.model.weight, before)
        assert run.resume() == 4
        assert not torch.equal(toy.model.weight, before)


@pytest.mark.parametrize("each", [lambda run: next(run.steps(6)), lambda run: run.begin_step()])
def test_a_loop_without_resume_is_refused_if_checkpoints_exist(tmp_path, each):
    Toy().train(tmp_path, 4)
    toy = Toy()
    with pytest.raises(NoWayBackError, match=r"run\.resume\(\)"), quiet(tmp_path) as run:
        run.track(model=toy.model, optimizer=toy.optimizer)
        each(run)
    assert Checkpoints(tmp_path / "checkpoints").steps()[-1] == 4


def test_a_loop_without_resume_is_refused_if_the_mirror_has_checkpoints(tmp_path):
    url = f"file://{tmp_path}/far"
    Toy().train(tmp_path / "run", 4, mirror=url)
    toy = Toy()
    with pytest.raises(CheckpointError, match=r"run\.resume\(\)"), quiet(tmp_path / "other", mirror=url) as run:
        run.track(model=toy.model, optimizer=toy.optimizer)
        next(run.steps(6))


def test_a_module_is_watched_under_its_name_unless_a_group_has_its_parameters(tmp_path):
    toy = Toy()
    head = nn.Linear(2, 1)
    frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD([*toy.model.parameters(), *head.parameters()], lr=0.1)

    def objective(inputs):
        return Terms(fit=(1.0, (toy.model(inputs) + head(frozen(inputs))).square().mean()))

    with quiet(tmp_path) as run:
        run.track(model=toy.model, head=head, frozen=frozen, optimizer=optimizer, groups={"weight": [head.weight]})
        for step in run.steps(2):
            step.backward(
                lambda x: Terms(fit=(1.0, (toy.model(x) + head(frozen(x))).square().mean())), torch.ones(4, 2)
            )
            step.update(optimizer)
    names = {name for name in read_history(tmp_path).names() if name.startswith("Gradients/") and "norm" in name}
    assert names == {"Gradients/total_norm", "Gradients/model_norm", "Gradients/weight_norm", "Gradients/other_norm"}
    assert set(Checkpoints(tmp_path / "checkpoints").read("last")) == {
        *("model", "head", "frozen", "optimizer", "random_state", "loop_checks", "micro_batches")
    }


def test_a_frozen_module_may_be_a_group(tmp_path):
    toy = Toy()
    frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    with quiet(tmp_path) as run:
        run.track(model=toy.model, decoder=frozen, groups={"decoder": frozen})
        for step in run.steps(2):
            step.backward(lambda x: Terms(fit=(1.0, toy.model(frozen(x)).square().mean())), torch.ones(4, 2))
            step.update(toy.optimizer)
    names = set(read_history(tmp_path).names())
    assert "Gradients/model_norm" in names
    assert "Gradients/decoder_norm" not in names


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda run, _: run.track(groups={"activation": nn.ReLU()}), "activation"),
        (lambda run, toy: run.track(groups={"a": toy.model, "b": [toy.model.weight]}), "shape"),
        (lambda run, toy: run.track(model=toy.model), "model"),
        (lambda run, toy: run.track(random_state=toy.optimizer), "random_state"),
    ],
)
def test_a_used_name_and_an_empty_or_shared_group_are_refused(tmp_path, call, named):
    toy = Toy()
    with quiet(tmp_path) as run:
        run.track(model=toy.model)
        with pytest.raises(InputError, match=named):
            call(run, toy)


def test_items_after_resume_are_refused_but_data_are_allowed(tmp_path):
    toy = Toy()
    with quiet(tmp_path) as run:
        run.track(model=toy.model)
        run.resume()
        with pytest.raises(InputError, match=r"run\.resume\(\)"):
            run.track(optimizer=toy.optimizer)
        with pytest.raises(InputError, match="called twice"):
            run.resume()
        run.track(data={"images": torch.zeros(3)})


def test_a_checkpoint_with_other_names_and_without_micro_batches_is_resumed(tmp_path):
    """Like checkpoints of versions in which a run had no micro-batches."""
    toy = Toy()
    pieces = MicroBatches(count=2)
    with quiet(tmp_path) as run:
        run.track(model=toy.model, optimizer=toy.optimizer, parts=pieces)
        for step in run.steps(3):
            step.backward(toy.objective, torch.ones(4, 2), micro_batches=pieces)
            step.update(toy.optimizer)
    saved = Checkpoints(tmp_path / "checkpoints")
    items = {name: tree for name, tree in saved.read("last").items() if name != "micro_batches"}
    older = Checkpoints(tmp_path / "older")
    older.save(3, {name: Stored(tree) for name, tree in items.items()})
    again = Toy()
    pieces = MicroBatches()
    targets = {"model": again.model, "optimizer": again.optimizer, "pieces": pieces, "micro_batches": MicroBatches()}
    targets |= {"random_state": Stored(None), "loop_checks": Stored(None)}
    older.restore(targets, renamed={"parts": "pieces"}, optional=("micro_batches",))
    assert pieces.count == 2
    assert torch.equal(again.model.weight, toy.model.weight)


class Stored:
    """An item whose state is its argument."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_a_loop_without_an_iterator_gives_the_same_run(tmp_path):
    toy = Toy()
    other = Toy()
    toy.train(tmp_path / "steps", 5)
    run = quiet(tmp_path / "calls").start()
    run.track(model=other.model, optimizer=other.optimizer)
    assert run.resume() is None
    for _ in range(5):
        other.learn(run.begin_step(total=5))
        run.end_step()
    run.finish()
    assert torch.equal(toy.model.weight, other.model.weight)
    ours, theirs = (read_history(tmp_path / name) for name in ("calls", "steps"))
    assert ours["Loss/total"].values.tolist() == theirs["Loss/total"].values.tolist()
    assert (
        Checkpoints(tmp_path / "calls" / "checkpoints").steps() == Checkpoints(tmp_path / "steps/checkpoints").steps()
    )


def test_steps_that_do_not_alternate_are_refused(tmp_path):
    with quiet(tmp_path) as run:
        with pytest.raises(RuntimeError, match="begin_step"):
            run.end_step()
        run.begin_step()
        with pytest.raises(RuntimeError, match="end_step"):
            run.begin_step()
        run.end_step()


def test_a_run_that_was_not_entered_raises(tmp_path):
    with pytest.raises(RuntimeError, match=r"run\.start\(\)"):
        quiet(tmp_path).track()


def test_evaluate_returns_the_result_or_none_and_retries_in_micro_batches(tmp_path):
    toy = Toy()
    pieces = MicroBatches("evaluation")

    def short():
        if pieces.count < 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")
        assert not torch.is_grad_enabled()
        return pieces.count

    def fails():
        raise ValueError("no photos")

    with quiet(tmp_path) as run:
        run.track(model=toy.model, optimizer=toy.optimizer)
        for step in run.steps(1):
            toy.learn(step)
            assert run.evaluate("test", short, micro_batches=pieces) == 4
            assert run.evaluate("test", fails) is None
    kinds = [event["kind"] for event in read_events(tmp_path)]
    assert (kinds.count("out_of_memory"), kinds.count("validation_failed")) == (2, 1)


def test_a_refused_call_leaves_nothing_behind(tmp_path):
    toy = Toy()
    both = {"weight": [toy.model.weight], "all": list(toy.model.parameters())}
    with quiet(tmp_path / "run") as run:
        with pytest.raises(InputError, match="share a parameter"):
            run.track(model=toy.model, optimizer=toy.optimizer, groups=both)
        run.track(model=toy.model, optimizer=toy.optimizer)
        run.resume()
        for step in run.steps(3):
            toy.learn(step)
    names = read_history(tmp_path / "run").names()
    assert [name for name in names if name.endswith("_norm") and "total" not in name] == ["Gradients/model_norm"]


@pytest.mark.parametrize("nested", [lambda scripted: scripted, nn.Sequential], ids=["alone", "inside"])
def test_a_module_of_torchscript_is_trained_like_any_other(nested, tmp_path):
    torch.manual_seed(0)
    with pytest.warns(DeprecationWarning, match="jit.script"):
        scripted = torch.jit.script(nn.Linear(2, 1))
    model = nested(scripted)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with quiet(tmp_path) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(40):
            step.backward(lambda inputs: Terms(fit=(1.0, model(inputs).square().mean())), torch.ones(4, 2))
            step.update(optimizer)
    assert not [event for event in read_events(tmp_path) if event["kind"] == "loose_parameters"]
    assert read_history(tmp_path)["Loss/total"].values[-1] < 0.1


def test_parameters_without_a_shape_are_refused_before_the_first_step(tmp_path):
    with quiet(tmp_path) as run:
        run.track(model=nn.LazyLinear(1))
        with pytest.raises(InputError, match=r"'model'.*LazyLinear"):
            run.begin_step()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_may_be_inputs(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    rows = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)])
    with quiet(tmp_path) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(3):
            loss = model(rows).to_padded_tensor(0.0).square().mean()
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(fit=(1.0, loss)))
            step.update(optimizer)
    assert len(read_history(tmp_path)["Loss/total"]) == 3
