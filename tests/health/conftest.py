"""Histories made of real blocks, to plant faults in."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fieldwatch.record import Block, History


def block_of(columns, *, first=0, stride=1, axis="step", seconds=None, samples=()):
    """Make a block: one recording every ``stride`` steps; on the epoch axis its position counts recordings from 1."""
    count = max(len(values) for values in columns.values())
    steps = first + stride * np.arange(count)
    positions = 1 + np.arange(count) if axis == "epoch" else steps
    values = np.stack([np.asarray(column, np.float64) for column in columns.values()], axis=1)
    times = 0.1 * (steps + 1.0) if seconds is None else np.asarray(seconds, np.float64)
    return Block(
        axis=axis,
        columns=tuple(columns),
        steps=steps.astype(np.int64),
        seconds=times,
        positions=positions.astype(np.int64),
        values=values,
        samples=tuple((name,) for name in samples),
    )


def make_history(
    *parts: tuple[Mapping[str, Sequence[float]], Mapping[str, object]] | Mapping[str, Sequence[float]],
    windows: Mapping[str, tuple[int, int]] | None = None,
    events: Sequence[Mapping[str, object]] = (),
) -> History:
    """Make a history of parts: columns, or columns with the options of ``block_of``."""
    history = History()
    if windows:
        history.add_event({"kind": "windows", "step": 0, "windows": windows})
    for event in events:
        history.add_event(event)
    for part in parts:
        columns, options = part if isinstance(part, tuple) else (part, {})
        history.extend(block_of(columns, **options))
    return history


@pytest.fixture(name="block_of")
def _block_of():
    return block_of


@pytest.fixture(name="make")
def _make():
    return make_history


@pytest.fixture
def rng():
    return np.random.default_rng(20_240_611)


@pytest.fixture(scope="session")
def simulator(benchmark):
    """The simulated runs of benchmarks/forecast.py."""
    return benchmark("forecast")
