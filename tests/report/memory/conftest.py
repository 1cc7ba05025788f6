"""Runs and logs with planted growth, leaks and jumps of memory."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from fieldwatch.record import Block, EventLog, Journal, Manifest
from fieldwatch.record.memory import MemoryLog, TensorSnapshot
from fieldwatch.record.memory.tensor_log import format_snapshot
from fieldwatch.report.memory import MemoryHistory

MB = 2**20
NOON = datetime(2026, 1, 29, 12, 0, 0)  # noqa: DTZ001  the log's own kind of time


def census(step: int, parameters: int, *, leaked: float, spike: int, rng: np.random.Generator) -> dict:
    half = parameters // 2
    owners = {
        "parameters": {"means": half, "sh": parameters - half},
        "gradients": {"means": half, "sh": parameters - half},
        "optimizer": {"means": 2 * half, "sh": 2 * (parameters - half)},
        "data": {"images": 900 * MB},
    }
    saved = int((200 + rng.normal(0, 3)) * MB)
    unattributed = int((10 + leaked + abs(rng.normal())) * MB) + spike
    owned = sum(sum(parts.values()) for parts in owners.values())
    allocated = owned + saved + unattributed + 3 * MB
    large = {"owner": "means", "kind": "parameters", "name": "means", "bytes": half, "shape": [half // 12, 3]}
    return {
        "step": step, "time": "2026-01-29T12:00:00", "moment": "update", "device": "cuda:0", "allocated": allocated,
        "reserved": allocated * 5 // 4, "owners": owners, "saved": {"render": saved}, "saved_peak": 3 * saved,
        "rounding": 2 * MB, "workspace": MB, "unattributed": unattributed, "tensors": 100 + step // 50 % 7,
        "dtypes": {"float32": owned}, "large": [large | {"dtype": "float32", "views": 2}],
        "fragmentation": {"not_returnable": allocated // 50, "returnable": allocated // 5}, "peaks": {},
    }  # fmt: skip


@pytest.fixture
def run_folder(tmp_path) -> Callable[..., Path]:
    """Write a run of 200 snapshots that grows by 3 % every 200 steps from 1000 to 6000, and evaluates every 1250."""

    def write(
        name: str = "run", *, leak: float = 0.0, grows: bool = True, evaluates: bool = True, count: int = 200
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        Manifest(config={}).write(folder)
        rng = np.random.default_rng(0)
        parameters = 300 * MB
        with MemoryLog(folder) as log, EventLog(folder) as events:
            for i in range(count):
                step = 50 * i + 49
                spike = 0
                if grows and 20 <= i < 120 and i % 4 == 0:
                    parameters = int(parameters * 1.03)
                    events.append({"kind": "growth", "step": step - 10})
                if i % 25 == 20:
                    events.append({"kind": "evaluation", "step": step - 1})
                    spike = 600 * MB
                log.append(census(step, parameters, leaked=leak * step, spike=spike, rng=rng))
        steps = np.arange(50 * count)
        loss = 1 / np.sqrt(steps + 10.0) + rng.normal(0, 0.002, len(steps))
        loss[3000] += 3
        values = np.stack((loss, np.full(len(steps), 5000.0), np.full(len(steps), 2000.0)), axis=1)
        columns = ("Loss/total", "Memory/peak_MB", "Memory/allocated_MB")
        with Journal(folder) as journal:
            seconds = steps * 0.01
            journal.append(
                Block(
                    axis="step",
                    columns=columns,
                    steps=steps,
                    seconds=seconds,
                    positions=steps,
                    values=values,
                    samples=(),
                )
            )
        return folder

    return write


@pytest.fixture
def log_file(tmp_path) -> Callable[..., Path]:
    """Write a tensor log with the given allocated memory and the categories of the original profiler."""

    def write(allocated, *, name: str = "tensor_profile_20260129_120000.log", tensors=None, first: int = 50) -> Path:
        texts = []
        for i, held in enumerate(allocated):
            count = 1267 if tensors is None else int(tensors[i])
            texts.append(
                format_snapshot(
                    TensorSnapshot(
                        iteration=first + 50 * i,
                        time=NOON + timedelta(seconds=i),
                        total_tensors=count,
                        allocated=float(held),
                        reserved=12000.0,
                        fragmentation=100 * (12000 - float(held)) / 12000,
                        categories={"parameters": 0.6 * float(held), "activations": 0.4 * float(held)},
                        dtypes={"float32": float(held)},
                    )
                )
            )
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(texts))
        return path

    return write


@pytest.fixture
def trace_of() -> Callable[..., MemoryHistory]:
    """Make a memory history with the given allocated memory."""

    def make(allocated, **more) -> MemoryHistory:
        values = np.asarray(allocated, np.float64)
        count = len(values)
        usual = {
            "label": "made", "kind": "tensor log", "files": (), "steps": 50 * np.arange(count, dtype=np.int64),
            "allocated": values, "reserved": np.full(count, 1e4), "fragmentation": np.full(count, 20.0),
            "tensors": np.full(count, 1000.0), "large_counts": np.zeros(count),
        }  # fmt: skip
        return MemoryHistory(**usual | more)

    return make
