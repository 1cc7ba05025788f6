"""After many kills, the record of a run has every step once and in order, for fieldwatch and for TensorBoard."""

import random
import signal
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from forked import answer, forked
from rows import Row, judged
from torch import nn

from fieldwatch import Outputs, Run, Saving, Shuffled, Terms
from fieldwatch.record import DamageTally, read_blocks, read_events
from fieldwatch.record.sinks import TensorBoard

EVERY = 20
RESUMES = 20
TORN = (b"[0,17,3.25,17,[],0.4", b'{"kind":"note","st', b'{"segment":', b"[", b"\0" * 40)
"""Possible remains of a last line after a kill or a power cut."""


def train(folder: Path, steps: int, die: tuple[int, int] | None, say: Callable[[bytes], Any]) -> None:
    """Train a small model with TensorBoard, and let it die at a step by a signal."""
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
        for step in run.steps(steps):
            terms = Terms(fit=(1.0, (model(next(order)[:, None].float().expand(-1, 2)) - 1).square().mean() / 100))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.index % 3 == 0:
                run.event("mark", number=step.index)
            if die is not None and step.index == die[0]:
                run.flush()
                say(b"!")
                signal.raise_signal(die[1])


def steps_of(folder: Path, damage: DamageTally) -> list[tuple[int, float]]:
    """Return all valid rows of the journal as stored, without merging: steps and losses."""
    found = list[tuple[int, float]]()
    for block in read_blocks(folder, damage):
        if "Loss/total" in block.columns:
            losses = block.values[:, block.columns.index("Loss/total")].tolist()
            found += zip(block.steps.tolist(), losses, strict=True)
    return found


def of_tensorboard(folder: Path) -> dict[str, list[int]]:
    """Return the steps of every tag, read by TensorBoard's loader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415  takes seconds

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def wrong_with(folder: Path, twin: Path, steps: int) -> dict[str, str]:
    """Return what is wrong with the journal, the events and the event files of TensorBoard."""
    damage = DamageTally()
    rows = steps_of(folder, damage)
    clean = steps_of(twin, damage)
    numbers = [step for step, _ in rows]
    twice = [step for step, count in Counter(numbers).items() if count > 1]
    journal = [f"steps {twice[:5]} twice"] if twice else []
    journal += [] if numbers == sorted(numbers) else ["not in order"]
    journal += [f"steps {sorted(set(range(steps)) - set(numbers))[:5]} missing"] * (set(numbers) != set(range(steps)))
    journal += ["other losses than the undisturbed run"] * (not journal and rows != clean)
    marks = [event["number"] for event in read_events(folder, damage) if event["kind"] == "mark"]
    events = [] if marks == list(range(0, steps, 3)) else [f"marks at {marks}"]
    if damage:  # a torn line must be cut off before anything is appended to it
        journal.append("; ".join(one.message for one in damage.entries))
    tags = of_tensorboard(folder)
    board = [tag for tag, found in tags.items() if any(one >= other for one, other in pairwise(found))]
    board += [] if tags.get("Loss/total") == list(range(steps)) else ["Loss/total: not every step once"]
    return {"journal": "; ".join(journal), "events": "; ".join(events), "tensorboard": "; ".join(board)}


def run_histories(folder: Path, resumes: int = RESUMES, seed: int = 20) -> list[Row]:
    """Return the rows of P19 about resumes."""
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # torch's lazy imports happen once here, not after every fork
    draw, at, steps = random.Random(seed), 0, 9 * resumes + EVERY  # noqa: S311  chance that repeats, not secrets
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "run"
    twin = folder / "twin"
    ends = list[int]()
    for _ in range(resumes):
        at, number = at + draw.randint(3, 9), draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        child = forked(lambda say, die=(at, int(number)): train(run, steps, die, say))
        child.listen(1)
        ends.append(child.end())
        for name in ("journal.jsonl", "events.jsonl"):
            if number == signal.SIGKILL and draw.random() < 0.5:
                with (run / name).open("ab") as file:
                    file.write(draw.choice(TORN))
    ends = [forked(lambda say, place=place: train(place, steps, None, say)).end() for place in (run, twin)] + ends
    found = answer(lambda: wrong_with(run, twin, steps))
    known = {0, 128 + signal.SIGTERM, -signal.SIGKILL}
    odd = [f"a start exited with {code}" for code in ends if code not in known]
    odd += [found["raised"]] if "raised" in found else []
    what = f"a run ended {resumes} times by SIGKILL or SIGTERM, with a torn last line at every other kill"
    names = {"journal": "journal", "events": "events", "tensorboard": "event files, by TensorBoard's loader"}
    rows = list[Row]()
    for name, shown in names.items():
        wrong = "; ".join([*odd[:2], found.get(name, "")]).strip("; ")
        row = judged(
            "P19", f"{shown} of {what}", "every step once, in order", wrong or f"{steps} steps", good=not wrong
        )
        rows.append(row)
    return rows
