"""Random histories of saves, compared with an independent oracle: exactly the union of all rules is kept."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from forked import answer
from rows import Row, judged

from fieldwatch.checkpoint import Checkpoints, Retention

SAVES = 14
"""Saves per history."""
METRIC = "psnr"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the oracle knows of one stored checkpoint.

    Attributes:
        score: its metric; None if it was saved without one.
        pinned: whether it is pinned.
    """

    score: float | None
    pinned: bool = False


def wanted(present: Mapping[int, Kept], rules: Retention) -> set[int]:
    """Return the kept steps, computed independently of the package."""
    stays = set[int]()
    for step, one in present.items():
        newer = sum(other > step for other in present)
        if newer < rules.last or one.pinned or (rules.every and not step % rules.every):
            stays.add(step)
        if one.score is None:
            continue
        better = 0
        for other, two in present.items():
            if two.score is None or other == step:
                continue
            gain = two.score - one.score if rules.better == "higher" else one.score - two.score
            better += gain > 0 or (gain == 0 and other > step)
        if better < rules.best:
            stays.add(step)
    return stays


def rules_of(draw: random.Random) -> Retention:
    """Return random rules."""
    return Retention(
        last=draw.randint(1, 3),
        every=draw.choice((0, 0, 20, 50)),
        best=draw.randint(0, 3),
        metric=METRIC,
        better="higher" if draw.random() < 0.5 else "lower",
    )


def history(folder: Path, seed: int) -> list[str]:
    """Run one history in one folder; return what differs from the oracle."""
    draw = random.Random(seed)  # noqa: S311  reproducible choices, not secrets
    rules = rules_of(draw)
    present = dict[int, Kept]()
    step = 0
    wrong = list[str]()
    checkpoints = Checkpoints(folder, keep=rules)
    for _ in range(SAVES):
        step += draw.choice((10, 10, 20, 35))
        score = draw.choice((None, *range(5))) if draw.random() < 0.9 else float("nan")
        metrics = {} if score is None else {METRIC: float(score)}
        if draw.random() < 0.2:  # as a new process does
            checkpoints = Checkpoints(folder, keep=rules)
        checkpoints.save(step, {"n": torch.tensor(step)}, metrics=metrics)
        present[step] = Kept(score=None if score is None or math.isnan(score) else float(score))
        stays = wanted(present, rules)
        if checkpoints.steps() != sorted(stays):
            wrong.append(f"after step {step} with {rules}: {checkpoints.steps()} instead of {sorted(stays)}")
            break
        present = {step: one for step, one in present.items() if step in stays}
        if any(int(checkpoints.read(one)["n"]) != one for one in present):
            wrong.append(f"after step {step}: a checkpoint holds another step")
        if draw.random() < 0.3:
            chosen = draw.choice(sorted(present))
            pinned = not present[chosen].pinned
            (checkpoints.pin if pinned else checkpoints.unpin)(chosen)
            present[chosen] = Kept(score=present[chosen].score, pinned=pinned)
    return wrong


def run_retention(folder: Path, count: int = 60) -> list[Row]:
    """Return the row of P18."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [answer(lambda n=number: history(folder / f"{n}", n)) for number in range(count)]
    broken = [str(one) for one in found if one]
    return [
        judged(
            *("P18", f"{count} random histories of {SAVES} saves with pins and new processes, against an oracle"),
            *("exactly the union of last, every, best and pinned", f"{count - len(broken)} of {count}"),
            good=not broken,
            why="; ".join(broken[:2])[:400],
        )
    ]
