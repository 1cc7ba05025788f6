"""Runs with planted growth, whose effects are known."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from fieldwatch.record import Block, EventLog, Journal, Manifest

PHOTOS = 10


def written(folder: Path, columns: Mapping[str, np.ndarray], events: Sequence[Mapping], *, names: bool, first: int):
    """Write journal, events and manifest of a run; step ``s`` draws photo ``s % 10``."""
    count = len(next(iter(columns.values())))
    steps = first + np.arange(count)
    block = Block(
        axis="step",
        columns=tuple(columns),
        steps=steps,
        seconds=0.1 * steps,
        positions=steps,
        values=np.stack([np.asarray(column, float) for column in columns.values()], axis=1),
        samples=tuple((f"photo_{step % PHOTOS}",) for step in steps) if names else (),
    )
    with Journal(folder) as journal:
        journal.append(block)
    with EventLog(folder) as record:
        for event in events:
            record.append(event)
    Manifest(config={}).write(folder)
    return folder


@pytest.fixture
def ledger_run(tmp_path) -> Callable[..., Path]:
    """Write a run of 600 steps whose photos differ by up to 9 dB.

    Each of ``falls`` is a step after which PSNR falls, the number of steps until it recovers, and the fall in dB.
    """

    def make(events=(), *, falls=(), count=600, names=True, first=0, columns=(), without=()):
        steps = np.arange(count)
        psnr = 20.0 + (first + steps) % PHOTOS
        for at, length, depth in falls:
            psnr = psnr - depth * ((first + steps > at) & (first + steps <= at + length))
        own = {"Loss/total": 2.0 - psnr / 100, "Train/PSNR": psnr, "Memory/allocated_MB": 100 + steps / 10}
        own |= {"Memory/parameters_MB": np.full(count, 8.0), "Model/size": np.full(count, 5000.0), **dict(columns)}
        kept = {name: values for name, values in own.items() if name not in without}
        return written(tmp_path / "run", kept, events, names=names, first=first)

    return make
