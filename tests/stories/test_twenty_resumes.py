"""However often a run dies and is resumed, its logs have every step once, in order."""

import importlib
import json
import random
import signal
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from fieldwatch import Run, Shuffled, Terms, read_history
from fieldwatch.record.sinks import TensorBoard

RESUMES, STEPS, EVERY = 20, 170, 20


def train(folder, kill_at, tell=lambda _: None):
    """A small training that dies at a step, by signal 9 or by ctrl-C."""
    torch.manual_seed(0)
    model, order = nn.Linear(2, 1), Shuffled(8, 2, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Run(folder, rules=(), checkpoint_every=EVERY, sinks=lambda place: [TensorBoard(place / "tensorboard")]) as run:
        run.keep(model=model, optimizer=optimizer, order=order)
        for step in run.steps(STEPS):
            terms = Terms(fit=(1.0, (model(next(order)[:, None].float().expand(-1, 2)) - 1).square().mean() / 100))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if kill_at is not None and step.index == kill_at[0]:
                tell(b"!")
                signal.raise_signal(kill_at[1])


@pytest.fixture
def forked(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("torture.forked").forked


def test_after_twenty_resumes_no_step_is_missing_or_there_twice(tmp_path, forked):
    chance, at = random.Random(20), 0
    for _ in range(RESUMES):
        at, number = at + chance.randint(3, 9), chance.choice([signal.SIGKILL, signal.SIGTERM])
        child = forked(lambda tell, place=(at, number): train(tmp_path / "run", place, tell))
        assert child.listen(1)
        assert child.end() == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    assert forked(lambda _: train(tmp_path / "run", None)).end() == 0

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert all(one < other for one, other in pairwise(steps)), tag
    assert [event.step for event in events.Scalars("Loss/total")] == list(range(STEPS))

    assert read_history(tmp_path / "run")["Loss/total"].steps.tolist() == list(range(STEPS))
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    segments = [line for line in lines if "resume" in line]
    assert len(segments) >= RESUMES - 2  # one that died before its first checkpoint begins anew
