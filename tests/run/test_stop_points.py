"""Signals during an evaluation, a wait for data, before the first step and after the last one."""

import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

from fieldwatch import Interrupted, Outputs, Run, Saving, Shuffled, Terms, read_history
from fieldwatch.record import read_events, read_manifest


class Toy:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2, fused=True)
        self.order = Shuffled(16, 4, seed=3)
        self.inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(5))

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "order": self.order}

    def weights(self):
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])

    def learn(self, step):
        terms = Terms(fit=(1.0, self.model(self.inputs[next(self.order)]).square().mean()))
        self.optimizer.zero_grad()
        terms.total.backward()
        step.observe(terms)
        step.update(self.optimizer)


def train(folder, *, patience=0.2, evaluation=None, products=None, before=None, wait=None):
    """Run twenty steps, with a checkpoint after every fifth and an evaluation in the twelfth."""
    toy = Toy()
    with Run(folder, saving=Saving(every=5), outputs=Outputs(sinks=(), rules=())) as run:
        run.stop_point.patience = patience
        run.track(**toy.parts())
        run.resume()
        batches = run.batches(wait() if wait else [1])
        if before is not None:
            before(run)
        for step in run.steps(20):
            next(batches)
            toy.learn(step)
            if evaluation is not None and step.index == 11:
                evaluation(run)
        if products is not None:
            products(run)
    return toy


def term():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)


def parts_of(length):
    """Long work with stop points, during which a signal arrives at once."""

    def work(run):
        term()
        for _ in range(round(length / 0.02)):
            run.stop_point("an evaluation")
            time.sleep(0.02)

    return work


def interrupted(folder):
    (event,) = [event for event in read_events(folder) if event["kind"] == "interrupted"]
    return event


def stopped(folder, **how):
    with pytest.raises(Interrupted) as caught:
        train(folder, **how)
    assert caught.value.code == 143
    assert read_manifest(folder).state == "interrupted"
    assert not (folder / "crash").exists()
    return interrupted(folder)


def goes_on(folder, tmp_path):
    again = train(folder)
    whole = train(tmp_path / "whole")
    assert torch.equal(again.weights(), whole.weights())
    losses = [read_history(one)["Loss/total"].values.tolist() for one in (folder, tmp_path / "whole")]
    assert losses[0] == losses[1]


def test_without_a_signal_a_stop_point_does_nothing(tmp_path):
    train(tmp_path / "run", evaluation=lambda run: run.stop_point())
    assert [event for event in read_events(tmp_path / "run") if event["kind"] == "interrupted"] == []


def test_a_short_evaluation_ends_and_its_step_is_saved_exactly(tmp_path):
    event = stopped(tmp_path / "run", patience=30, evaluation=parts_of(0.1))
    assert (event["signal"], event["resumes_from"]) == ("SIGTERM", 12)
    assert "abandoned" not in event
    goes_on(tmp_path / "run", tmp_path)


@pytest.mark.machine
def test_a_long_evaluation_is_abandoned_and_the_last_checkpoint_kept(tmp_path):
    began = time.monotonic()
    event = stopped(tmp_path / "run", evaluation=parts_of(60))
    assert time.monotonic() - began < 20
    assert (event["abandoned"], event["resumes_from"]) == ("an evaluation", 10)
    assert event["waited"] >= 0.2
    goes_on(tmp_path / "run", tmp_path)


def test_a_wait_for_an_unresponsive_loader_is_abandoned(tmp_path):
    def wait():
        for batch in range(13):
            if batch == 12:
                threading.Timer(0.05, term).start()
                threading.Event().wait(60)
            yield batch

    event = stopped(tmp_path / "run", wait=wait)
    assert (event["abandoned"], event["resumes_from"]) == ("the wait for data", 10)
    goes_on(tmp_path / "run", tmp_path)


def test_before_the_first_step_there_is_nothing_to_save(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(folder, before=lambda _: term())
    assert interrupted(folder)["resumes_from"] == 0
    assert "Loss/total" not in read_history(folder).names()
    goes_on(folder, tmp_path)


def test_the_final_state_is_saved_before_products(tmp_path):
    event = stopped(tmp_path / "run", products=parts_of(60))
    assert (event["abandoned"], event["resumes_from"]) == ("an evaluation", 20)
    seen = []
    train(tmp_path / "run", products=lambda run: seen.append(run.step_index))
    assert seen == [19]
    assert len(read_history(tmp_path / "run")["Loss/total"]) == 20


def test_products_made_in_time_are_finished(tmp_path):
    train(tmp_path / "run", patience=30, products=parts_of(0.1))
    assert read_manifest(tmp_path / "run").state == "finished"


@pytest.mark.parametrize("signaled", [True, False])
def test_a_loader_killed_by_the_signal_ends_the_run_in_order(tmp_path, signaled):
    """A signal to the process group kills the workers of a loader, which then raises."""

    def dying():
        yield 1
        if signaled:
            os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Terminated.")

    with pytest.raises(Interrupted if signaled else RuntimeError) as ended:
        train(tmp_path / "run", patience=60, wait=dying)
    if signaled:
        assert ended.value.code == 143
        assert "worker" in str(ended.value.__cause__)
        assert read_history(tmp_path / "run").events("interrupted")[0]["signal"] == "SIGTERM"


@pytest.mark.parametrize(("planned", "told"), [(None, 1), (8, 0)])
def test_batches_that_begin_again_in_a_loop_without_an_end_say_so_once(planned, told, tmp_path, capsys):
    with Run(tmp_path, outputs=Outputs(rules=(), sinks=())) as run:
        for _ in zip(range(8), run.batches([1, 2]), strict=False):
            run.begin_step(planned)
            run.end_step()
    assert capsys.readouterr().err.count("zip(run.steps(n), run.batches(loader))") == told
