"""Small runs for the tab, written by the writers of the record, without torch."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboard.plugins.base_plugin import TBContext

from fieldwatch.record import Block, EventLog, Journal, Manifest, new_segment


def rows(first: int, count: int, scale: float = 1.0) -> Block:
    steps = np.arange(first, first + count)
    loss = scale / np.sqrt(steps + 10.0)
    columns = ("Loss/total", "Loss/component_color", "Loss/share_color", "Memory/allocated_MB")
    values = np.stack((loss, 0.7 * loss, np.full(count, 0.7), np.full(count, 512.0)), axis=1)
    return Block(axis="step", columns=columns, steps=steps, seconds=steps * 0.01, positions=steps, values=values)


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """Write a run with ``count`` rows and a finding at step 7 into a folder."""

    def write(folder: Path, count: int = 20, *, scale: float = 1.0, config: dict | None = None) -> Path:
        folder.mkdir(parents=True)
        (folder / "tensorboard").mkdir()
        Manifest(config=config or {"lr": 0.1, "seed": 1}, segments=(new_segment(0),), state="finished").write(folder)
        with Journal(folder) as journal, EventLog(folder) as events:
            journal.append(rows(0, count, scale))
            finding = {"kind": "finding", "rule": "Planted", "step": 7, "severity": "warning", "subject": ""}
            events.append(finding | {"message": "a planted <b>finding</b>", "remedy": "nothing to do"})
        return folder

    return write


@pytest.fixture
def add_rows() -> Callable[..., None]:
    """Add rows to a run, as its process would."""

    def add(folder: Path, first: int, count: int = 5) -> None:
        with Journal(folder) as journal:
            journal.append(rows(first, count))

    return add


@pytest.fixture
def context() -> Callable[..., TBContext]:
    """Make the context that TensorBoard passes to a plugin."""

    def make(logdir: Path | str = "", spec: str = "") -> TBContext:
        return TBContext(logdir=str(logdir), flags=SimpleNamespace(logdir=str(logdir), logdir_spec=spec))

    return make
