"""Run folders written without torch: rows, events and a manifest."""

import io
import os
import platform
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fieldwatch.record import Block, EventLog, Journal, Manifest


def block_of(columns, *, first=0, axis="step", positions=None, samples=()):
    count = len(next(iter(columns.values())))
    steps = first + np.arange(count)
    return Block(
        axis=axis,
        columns=tuple(columns),
        steps=steps,
        seconds=0.01 * steps,
        positions=steps if positions is None else np.asarray(positions),
        values=np.stack([np.asarray(column, float) for column in columns.values()], axis=1),
        samples=tuple(samples),
    )


def training(count, seed=0):
    """Return the columns that a loop with two loss terms records."""
    noise = np.random.default_rng(seed).normal(1, 0.02, (count, 6))
    fall = np.exp(-np.arange(count) / max(count / 3, 1))
    share = np.full(count, 0.75)
    return {
        "Loss/total": 0.1 + fall * noise[:, 0],
        "Loss/component_color": fall * noise[:, 1],
        "Loss/component_edges": fall * noise[:, 2],
        "Loss/share_color": share,
        "Loss/share_edges": 1 - share,
        "Gradients/total_norm": noise[:, 3],
        "Gradients/net_norm": noise[:, 4],
        "Time/step": 10 * noise[:, 5],
    }


def segment(step=0, **more):
    told = {"step": step, "started": "2026-01-02T03:04:05+00:00", "host": platform.node(), "pid": os.getpid()}
    return told | {"command": ["train.py", "--out", "a b"]} | more


@pytest.fixture
def rows() -> SimpleNamespace:
    """Functions that build blocks of rows, the columns of a training, and segments of the manifest."""
    return SimpleNamespace(block=block_of, training=training, segment=segment)


@pytest.fixture
def run_folder(tmp_path) -> Callable[..., Path]:
    """Write a run folder with the given blocks and events."""

    def make(*blocks, events=(), name="run", state="finished", **manifest):
        folder = tmp_path / name
        folder.mkdir()
        with Journal(folder) as journal:
            for block in blocks:
                journal.append(block)
        with EventLog(folder) as record:
            for event in events:
                record.append(event)
        manifest = {"config": {}, "segments": (segment(),)} | manifest
        Manifest(state=state, **manifest).write(folder)
        return folder

    return make


@pytest.fixture
def png() -> Callable[..., bytes]:
    """Return noise as a PNG of the given size."""

    def make(width, height, seed=0):
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        return out.getvalue()

    return make
