"""Runs for the watcher, written by the record's writers, with or without a black box."""

import os
import time

import numpy as np
import pytest

from fieldwatch.monitor import BlackBox
from fieldwatch.record import Block, EventLog, Journal, Manifest, derive_block, new_segment


class Recorded:
    """A run folder that is written step by step."""

    def __init__(self, folder):
        self.folder = folder

    def begin(self, *, steps=1000, state="running", about=None, phases=(("warm-up", 0, 499), ("fine", 500, None))):
        self.folder.mkdir(parents=True, exist_ok=True)
        segment = new_segment(0)
        Manifest(config={}, phases=phases, segments=(segment,), state=state, about=about or {}).write(self.folder)
        self.event(kind="plan", step=0, steps=steps)
        return self

    def rows(self, first, last, *, seconds_each=0.02, **changes):
        """Write the rows ``first`` to ``last - 1``; a change is a value, one per row, or None: absent."""
        steps = np.arange(first, last)
        usual = {
            "Loss/total": 0.1 + 1 / (1 + steps),
            "Loss/component_color": 0.1 + 0.5 / (1 + steps),
            "Loss/weight_color": 1.0,
            "Loss/component_flatness": 0.02,
            "Loss/weight_flatness": 0.5,
            "Gradients/total_norm": 0.25,
            "Gradients/encoder_norm": 0.2,
            "Guard/refused": 0.0,
            "Train/PSNR": 20 + 10 * steps / 1000,
            "Model/size": 60_000.0,
            "Time/step": 20.0,
            "Time/forward": 5.0,
            "Memory/peak_MB": 3000.0,
            "Memory/capacity_MB": 4000.0,
        } | changes
        usual = {name: value for name, value in usual.items() if value is not None}
        values = np.stack([np.broadcast_to(value, len(steps)) for value in usual.values()], axis=1).astype(float)
        seconds = steps * seconds_each
        block = Block(axis="step", columns=tuple(usual), steps=steps, seconds=seconds, positions=steps, values=values)
        with Journal(self.folder) as journal:
            journal.append(derive_block(block))
        return self

    def event(self, **facts):
        with EventLog(self.folder) as events:
            events.append(facts)
        return self

    def finding(self, step=10, severity="warning", **changes):
        facts = {"rule": "LossSpike", "message": "Loss/total was 52.44.", "remedy": "Clip.", "subject": ""} | changes
        return self.event(kind="finding", step=step, severity=severity, **facts)

    def beats(self, step=10, *, timeout=float("inf"), ago=0.0):
        """Create the black box of this process; the caller closes it, or leaves it open."""
        box = BlackBox(self.folder)
        box.beat(step, b"backward", timeout, time.monotonic() - ago)
        return box

    def old(self, seconds):
        """Set the age of the last row."""
        then = time.time() - seconds
        os.utime(self.folder / "journal.jsonl", (then, then))
        return self


@pytest.fixture
def recorded(tmp_path):
    return Recorded(tmp_path / "runs" / "bear")


@pytest.fixture(scope="module")
def record_in():
    """Return the class of recorded runs, for module-scoped fixtures."""
    return Recorded
