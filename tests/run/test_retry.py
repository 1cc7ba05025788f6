"""Out of memory does not end a run: the step is retried in more micro-batches, with the same random numbers."""

import gc
import random
import subprocess
import sys
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fieldwatch import Checkpoints, MicroBatches, Outputs, Run, Saving, Terms
from fieldwatch.checkpoint import RandomState
from fieldwatch.record import read_events, read_history
from fieldwatch.run import shortage_of

STEPS = 12
BATCH = 8
TORN = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 8.00 GiB")


def runs_out():
    """Raise different out-of-memory errors in turn."""
    raise torch.OutOfMemoryError(str(TORN))


class Toy:
    """A loop whose attempts draw random numbers of every kind."""

    def __init__(self):
        torch.manual_seed(0)
        random.seed(1)
        np.random.seed(2)  # noqa: NPY002  the global generator is what is tested
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.own = torch.Generator().manual_seed(3)
        self.drawn = []
        self.losses = []

    def state_dict(self):
        return {"own": self.own.get_state()}

    def load_state_dict(self, state):
        self.own.set_state(state["own"])

    def loss(self, inputs):
        shift = random.random() + np.random.random() + torch.rand((), generator=self.own)  # noqa: NPY002
        return (self.model(inputs + shift) - inputs.sum(1, keepdim=True)).square().mean()

    def train(self, folder, *, fails=lambda _step, _count: False, parts=None, more=None, **options):
        """Train; ``fails(step, count)`` says whether memory runs out in the last micro-batch."""
        parts = parts or MicroBatches("batch", most=BATCH)
        with Run(folder, **{"saving": Saving(every=None), "outputs": Outputs(sinks=())} | options) as run:
            run.track(model=self.model, optimizer=self.optimizer, toy=self, parts=parts)
            run.resume()
            for step in run.steps(STEPS):
                if more is not None and step.index == more[0]:
                    parts.count = more[1]
                work = partial(self.gradients, step, torch.randn(BATCH, 3), parts, fails)
                total = run.retry(work, parts, undo=(self, RandomState()))
                step.observe(Terms(fit=(1.0, total)))
                step.update(self.optimizer)
                self.losses.append(float(total))
        return self

    def gradients(self, step, batch, parts, fails):
        self.optimizer.zero_grad()
        total = torch.zeros(())
        slices = parts.slices(BATCH)
        for part in slices:
            loss = self.loss(batch[part]) * (part.stop - part.start) / BATCH
            loss.backward()
            total = total + loss.detach()
            step.record({"Toy/parts": len(slices)})
            if part is slices[-1] and fails(step.index, parts.count):
                step.record({"Toy/of_a_failed_attempt": 1.0})
                runs_out()
        return total

    def weights(self):
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


def events_of(folder, kind="out_of_memory"):
    return [event for event in read_events(folder) if event["kind"] == kind]


def test_a_step_without_a_shortage_is_unchanged(tmp_path):
    toy = Toy().train(tmp_path / "run")
    assert events_of(tmp_path / "run") == []
    assert read_history(tmp_path / "run")["Toy/parts"].values.tolist() == [1.0] * STEPS
    assert len(toy.losses) == STEPS


def test_a_retried_run_equals_a_run_with_micro_batches_from_that_step_bit_for_bit(tmp_path):
    failed = Toy().train(tmp_path / "failed", fails=lambda step, count: step == 5 and count < 4)
    chunked = Toy().train(tmp_path / "chunked", more=(5, 4))
    assert failed.losses == chunked.losses
    assert torch.equal(failed.weights(), chunked.weights())
    assert [(event["step"], event["before"], event["after"]) for event in events_of(tmp_path / "failed")] == [
        (5, 1, 2),
        (5, 2, 4),
    ]
    history = read_history(tmp_path / "failed")
    assert history["Toy/parts"].values.tolist() == [1.0] * 5 + [4.0] * (STEPS - 5)
    assert "Toy/of_a_failed_attempt" not in history  # values recorded by a failed attempt are discarded


def test_the_finding_names_the_batch_and_the_reason(tmp_path):
    Toy().train(tmp_path / "run", fails=lambda step, count: step == 5 and count < 2)
    (event,) = events_of(tmp_path / "run")
    assert (event["what"], event["requested"]) == ("batch", 3 * 2**30)
    (finding,) = (one for one in events_of(tmp_path / "run", "finding") if one["rule"] == "MemoryRanOut")
    assert (finding["step"], finding["severity"]) == (5, "warning")
    assert "'batch' is done in 2 parts instead of 1" in finding["message"]


def test_at_the_limit_the_last_error_propagates_with_advice(tmp_path):
    with pytest.raises(torch.OutOfMemoryError) as caught:
        Toy().train(tmp_path / "run", fails=lambda step, _count: step == 5)
    assert any("'batch' divided into 8 micro-batches" in note for note in caught.value.__notes__)
    assert [event["after"] for event in events_of(tmp_path / "run")] == [2, 4, 8]


def test_a_resumed_run_keeps_the_number_of_micro_batches(tmp_path):
    whole = Toy().train(tmp_path / "whole", fails=lambda step, count: step == 2 and count < 2)

    def stops(step, count):
        if step == 7:
            raise KeyboardInterrupt
        return step == 2 and count < 2

    with pytest.raises(KeyboardInterrupt):
        Toy().train(tmp_path / "run", fails=stops, saving=Saving(every=5))
    parts = MicroBatches("batch", most=BATCH)
    resumed = Toy().train(tmp_path / "run", parts=parts, saving=Saving(every=5))
    assert parts.count == 2
    assert torch.equal(resumed.weights(), whole.weights())


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (TORN, True),
        (MemoryError("Unable to allocate 1.00 GiB for an array with shape (1, 2) and data type float64"), True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."),
            True,
        ),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory."), False),
        (ValueError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
    ],
)
def test_shortages_are_told_apart_from_other_errors(error, is_one):
    assert (shortage_of(error) is not None) is is_one


def test_other_errors_propagate(tmp_path):
    def breaks(step, _count):
        if step == 3:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return False

    with pytest.raises(RuntimeError, match="illegal memory access"):
        Toy().train(tmp_path / "run", fails=breaks)
    assert events_of(tmp_path / "run") == []


def test_an_update_inside_of_an_attempt_is_never_repeated(tmp_path):
    toy = Toy()
    parts = MicroBatches()
    with pytest.raises(torch.OutOfMemoryError) as caught, Run(tmp_path / "run", outputs=Outputs(sinks=())) as run:
        run.track(groups={"model": toy.model})
        for step in run.steps(2):

            def work(step=step):
                toy.optimizer.zero_grad()
                toy.loss(torch.ones(2, 3)).backward()
                step.update(toy.optimizer)
                runs_out()

            run.retry(work, parts)
    assert any("the retried work" in note for note in caught.value.__notes__)
    assert events_of(tmp_path / "run") == []


class Held:
    """A large object in the frames of a failed attempt."""


def test_a_failed_attempt_holds_no_memory_when_the_next_one_begins(tmp_path):
    """Neither the error, its frames and causes nor a reference cycle keeps it alive."""
    alive = []
    seen = []

    def work():
        seen.append([one() is not None for one in alive])
        held = Held()
        alive.append(weakref.ref(held))
        cycle: list[object] = [held]
        cycle.append(cycle)
        if len(alive) < 3:
            try:
                runs_out()
            except torch.OutOfMemoryError as error:
                raise MemoryError("while drawing") from error
        return len(cycle)

    gc.disable()
    try:
        with Run(tmp_path / "run", outputs=Outputs(sinks=())) as run:
            assert run.retry(work, MicroBatches("drawing")) == 2
    finally:
        gc.enable()
    assert seen == [[], [False], [False, False]]
    assert [event["what"] for event in events_of(tmp_path / "run")] == ["drawing", "drawing"]


LIMITED = """
import resource, sys, psutil, torch
from torch import nn
from fieldwatch import Checkpoints, MicroBatches, Outputs, Run, Terms
torch.set_num_threads(1)
model, parts = nn.Linear(64, 1), MicroBatches("batch", most=16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def gradients(step):
    optimizer.zero_grad()
    for part in parts.slices(2**20):
        (model(torch.ones(part.stop - part.start, 64)).square().sum() / 2**20).backward()
    return Terms(fit=(1.0, model(torch.ones(1, 64)).square().mean()))
with Run(sys.argv[1], outputs=Outputs(sinks=())) as run:
    run.track(groups={"model": model})
    for step in run.steps(3):
        if step.index == 1:
            room = psutil.Process().memory_info().vms + 180 * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (room, room))
        step.observe(run.retry(lambda: gradients(step), parts))
        step.update(optimizer)
print(parts.count)
"""


@pytest.mark.machine
def test_a_run_survives_a_real_out_of_memory_error(tmp_path):
    """A batch needs 256 MiB, but only 180 MiB are free."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) in {2, 4, 8}
    events = events_of(tmp_path / "run")
    assert {event["step"] for event in events} == {1}
    assert events[0]["requested"] == 2**28
    assert "256.00 MiB were requested" in events[0]["why"]


def test_checks_of_the_loop_forget_the_failed_attempt(tmp_path):
    failed = Toy().train(
        tmp_path / "failed", saving=Saving(every=STEPS), fails=lambda step, count: (step, count) == (2, 1)
    )
    divided = Toy().train(tmp_path / "divided", saving=Saving(every=STEPS), more=(2, 2))
    assert failed.losses == divided.losses
    checks = [
        Checkpoints(tmp_path / name / "checkpoints").read("last")["loop_checks"] for name in ("failed", "divided")
    ]
    columns = [one["forwards"]["model"]["columns"] for one in checks]
    assert columns[0] is not None
    torch.testing.assert_close(columns[0], columns[1], rtol=0, atol=0)
    history = [read_history(tmp_path / name) for name in ("failed", "divided")]
    for name in (name for name in history[0].names() if name.startswith("Forward/")):
        assert history[0][name].values.tolist() == history[1][name].values.tolist()
