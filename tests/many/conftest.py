"""Fixtures: scenes that a fast fake trainer trains, and a driver for them."""

from pathlib import Path

import pytest

from fieldwatch.many import Capacity, Driver, Ledger, PlannedScene, ProcessExecutor

STAND_IN = ("-I", "-S", str(Path(__file__).with_name("trainer.py")))
ROOM = Capacity(cpus=4, gpus=2, memory_bytes=2**40)


@pytest.fixture
def scene():
    """Return a scene with flags of the fake trainer."""

    def make(name="one", *, retries=2, timeout=None, env=None, cpus=1.0, **flags):
        words = {key: (f"--{key.replace('_', '-')}={value}",) for key, value in flags.items()}
        resources = {"retries": retries, "timeout": timeout, "env": env or {}, "cpus": cpus}
        return PlannedScene(name=name, pipeline="video", flags=words, **resources)

    return make


@pytest.fixture
def drive(tmp_path):
    """Train scenes until they end; return the driver."""

    def run(*scenes, stop=lambda: False, tell=lambda _: None, executor=None, grace=20.0, program=STAND_IN):
        out = tmp_path / "out"
        with Ledger(out) as ledger:
            driver = Driver(
                scenes,
                out,
                executor or ProcessExecutor(ROOM),
                ledger,
                place=tmp_path,
                grace=grace,
                pause=0.01,
                program=program,
            )
            driver.run(stop, tell)
        return driver

    return run
