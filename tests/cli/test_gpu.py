"""`fieldwatch gpu`: its output with and without a driver, once and repeatedly."""

import json
import os
import runpy
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
GB = 2**30


@pytest.fixture
def nvml():
    return SimpleNamespace(**runpy.run_path(str(HERE.parent / "monitor" / "fake_nvml.py")))


@pytest.fixture
def two_cards(nvml, monkeypatch):
    listed = [nvml.process(os.getpid(), None), nvml.process(2**22 + 1, None)]
    second = nvml.card(PowerUsage=nvml.failure("NOT_SUPPORTED"))
    fake = nvml.FakeNvml(nvml.card(ComputeRunningProcesses=listed), second, driver="590.44.01")
    monkeypatch.setattr("fieldwatch.monitor.nvml.pynvml", fake)
    return fake


@pytest.fixture
def looks(monkeypatch):
    """End the command, as Ctrl-C does, after so many pauses; returns the pauses."""
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) > 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("fieldwatch.cli.gpu.time.sleep", sleep)
    return pauses


def test_once_as_json_with_two_cards(two_cards, answer):
    told = answer("gpu", "--once")
    first, second = told["gpus"]
    assert (told["driver"], told["cuda"]) == ("590.44.01", "13.0")
    assert (first["memory_used_bytes"], first["memory_total_bytes"]) == (6 * GB, 24 * GB)
    assert [process["memory_bytes"] for process in first["processes"]] == [None, None]
    assert first["processes"][0]["facts"]["command"] == " ".join(psutil.Process().cmdline())
    assert first["processes"][1]["facts"] is None
    assert (second["power_watts"], second["missing"]["power_watts"]) == (None, "Not Supported")
    assert any("N/A" in note for note in told["notes"])


def test_once_as_text(two_cards, fieldwatch):
    code, out, _ = fieldwatch("gpu", "--once")
    assert code == 0
    assert out.count("6.0 GiB / 24.0 GiB (25%) HEALTHY") == 2
    assert "N/A of 450 W" in out
    assert "not visible" in out


def test_without_a_driver_it_says_so_and_ends_with_0(answer, fieldwatch):
    told = answer("gpu", "--once")
    assert told["gpus"] == []
    assert told["cpu"]["memory_total_bytes"] > GB
    assert "no NVIDIA driver" in told["notes"][0]
    code, out, _ = fieldwatch("gpu", "--once")
    assert code == 0
    assert "only CPU, memory" in " ".join(out.split())


def test_into_a_pipe_it_writes_a_line_per_look_and_notes_once(two_cards, looks, fieldwatch):
    code, out, _ = fieldwatch("gpu", "--interval", "7")
    assert code == 0
    lines = out.splitlines()
    assert lines[-1] == (
        "GPU 0 Memory: 6.0 GiB / 24.0 GiB (25%) HEALTHY  GPU 1 Memory: 6.0 GiB / 24.0 GiB (25%) HEALTHY"
    )
    assert sum(line.startswith("GPU 0 Memory") for line in lines) == 3
    assert sum("N/A" in line for line in lines) == 1
    assert looks == [0.25, 7, 7, 7]
    assert two_cards.calls.count("nvmlShutdown") == 1


def test_json_again_and_again_is_an_object_per_line(two_cards, looks, fieldwatch):
    code, out, _ = fieldwatch("gpu", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [len(machine["gpus"]) for machine in told] == [2, 2, 2]


def test_in_a_terminal_it_is_drawn_again_and_again(two_cards, looks, fieldwatch, monkeypatch):
    from fieldwatch.record import Terminal  # noqa: PLC0415  the real one, before it is replaced

    screen = StringIO()

    def terminal(**settings):
        return Terminal(file=screen, force_terminal=True, width=80, height=24, **settings)

    monkeypatch.setattr("fieldwatch.cli.gpu.Terminal", terminal)
    assert fieldwatch("gpu", "--interval", "3")[0] == 0
    assert screen.getvalue().count("GPU 0") >= 3
    assert looks == [0.25, 3, 3, 3]


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "0.01"])
def test_an_interval_that_makes_no_sense(refused, interval):
    assert "seconds between refreshes" in refused("gpu", f"--interval={interval}", "--once")


def test_no_cuda_context_and_no_torch():
    program = (
        "import sys; from fieldwatch.cli import main; code = main(['gpu', '--once', '--json']);"
        "loaded = [name for name in ('torch', 'jaxtyping', 'tensorboard') if name in sys.modules];"
        "print(code, loaded, 'libcuda' in open('/proc/self/maps').read(), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=True
    )
    assert done.stderr == "0 [] False\n"
    assert json.loads(done.stdout)["cpu"]["cores"] >= 1


def test_ctrl_c_ends_it_with_0():
    line = [sys.executable, "-m", "fieldwatch", "gpu", "--interval", "0.1", "--json"]
    with subprocess.Popen(
        line, env={"PYTHONPATH": str(SRC)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=20)
    assert (process.returncode, message) == (0, b"")
