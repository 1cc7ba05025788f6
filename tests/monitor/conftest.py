"""A fake NVML, and real fieldwatch runs in separate processes."""

import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SRC = Path(__file__).parents[2] / "src"
RUN = """
import os, sys
from pathlib import Path
from fieldwatch.record import Block, Journal, Manifest, Row, new_segment
folder = Path(sys.argv[1])
journal = Journal(folder)
Manifest(config={}, segments=(new_segment(0),)).write(folder)
for step in range(3):
    journal.append(Block.of(Row(step=step, seconds=float(step), values={
        "Loss/total": 0.5, "Memory/allocated_MB": 100.0 + step, "Memory/reserved_MB": 200.0})))
worker = os.fork()
if worker == 0:
    sys.stdin.read()
    os._exit(0)
print(worker, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def nvml() -> Any:
    """The names of fake_nvml.py."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fake_nvml.py"))))


@pytest.fixture
def with_cards(nvml, monkeypatch) -> Callable[..., Any]:
    """Add GPUs to this machine, and return the fake library."""

    def put(*cards: dict[str, Any], **changes: Any) -> Any:
        fake = nvml.FakeNvml(*cards, **changes)
        monkeypatch.setattr("fieldwatch.monitor.nvml.pynvml", fake)
        return fake

    return put


@pytest.fixture
def running(tmp_path) -> Iterator[tuple[Path, int, int]]:
    """A run in progress: its folder, its pid, and the pid of a forked worker."""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", RUN, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={"PYTHONPATH": str(SRC)}, **pipes) as process:
        worker = int(process.stdout.readline())
        yield folder, process.pid, worker
        process.stdin.close()
        process.wait()
