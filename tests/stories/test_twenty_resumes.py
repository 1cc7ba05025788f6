"""However often a run dies and is resumed, its logs have every step once, in order."""

import importlib
import json
import random
import signal
import sys
from itertools import pairwise
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from fieldwatch import Outputs, Run, Saving, Shuffled, Terms, read_history
from fieldwatch.record.sinks import TensorBoard

RESUMES = 20
STEPS = 170
EVERY = 20


def train(folder, kill_at, tell=lambda _: None):
    """A small training that dies at a step, by signal 9 or by ctrl-C."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    order = Shuffled(8, 2, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Run(
        folder,
        saving=Saving(every=EVERY),
        outputs=Outputs(rules=(), sinks=lambda place: [TensorBoard(place / "tensorboard")]),
    ) as run:
        run.track(model=model, optimizer=optimizer, order=order)
        run.resume()
        for step in run.steps(STEPS):
            terms = Terms(fit=(1.0, (model(next(order)[:, None].float().expand(-1, 2)) - 1).square().mean() / 100))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if kill_at is not None and step.index == kill_at[0]:
                tell(b"!")
                signal.raise_signal(kill_at[1])


def live_and_die(folder):
    """Train, killed at random steps, until the end; returns (whether it reached its step, how it ended, signal)."""
    forked = importlib.import_module("torture.forked").forked
    chance = random.Random(20)
    at = 0
    lives = []
    for _ in range(RESUMES):
        at, number = at + chance.randint(3, 9), chance.choice([signal.SIGKILL, signal.SIGTERM])
        child = forked(lambda tell, place=(at, number): train(folder, place, tell))
        lives.append((child.listen(1), child.end(), number))
    return lives, forked(lambda _: train(folder, None)).end()


def test_after_twenty_resumes_no_step_is_missing_or_there_twice(tmp_path, python, surroundings):
    # A process of its own: the forks of one that has threads inherit their locks, OpenSSL's among them.
    root = Path(__file__).parents[2]
    path = f"{root / 'src'}:{root / 'benchmarks'}"
    done = python(__file__, tmp_path / "run", environment=surroundings | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-3000:]
    lives, last = json.loads(done.stdout.splitlines()[-1])
    assert len(lives) == RESUMES
    for reached, code, number in lives:
        assert reached
        assert code == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    assert last == 0

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert all(one < other for one, other in pairwise(steps)), tag
    assert [event.step for event in events.Scalars("Loss/total")] == list(range(STEPS))

    assert read_history(tmp_path / "run")["Loss/total"].steps.tolist() == list(range(STEPS))
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    segments = [line for line in lines if "resume" in line]
    assert len(segments) >= RESUMES - 2  # one that died before its first checkpoint begins anew


if __name__ == "__main__":
    sys.stdout.write(json.dumps(live_and_die(Path(sys.argv[1]))))
