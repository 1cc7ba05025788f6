import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from fieldwatch import Outputs, Run, Terms
from fieldwatch.record import WriterFailed

EXHAUST = """
import resource, sys, torch
from torch import nn
from fieldwatch import Outputs, Run, Saving, Terms
torch.set_num_threads(1)
model = nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters())
kept = []
import psutil
def fill(kept, smallest):
    size = 32 * 2**20
    while size >= smallest:
        try:
            kept.append(torch.ones(size // 4))
        except RuntimeError:
            size //= 2
room = psutil.Process().memory_info().vms + 900 * 2**20  # threads take 64 MiB of it each
with Run(sys.argv[1], outputs=Outputs(sinks=(), rules=())) as run:
    run.track(groups={"model": model}, data={"kept": kept})
    for step in run.steps(1000):
        if step.index == 0:
            resource.setrlimit(resource.RLIMIT_AS, (room, room))
        terms = Terms(fit=(1.0, model(torch.ones(1, 8)).square().mean()))
        terms.total.backward()
        kept.append(torch.ones(8 * 2**20))
        if sys.argv[2:] and step.index == 3:
            fill(kept, int(sys.argv[2]))
        step.observe(terms)
        step.update(optimizer)
"""


def crash_of(folder):
    (place,) = (folder / "crash").iterdir()
    return json.loads((place / "memory.json").read_text())


def fail(folder, request):
    model = nn.Linear(8, 8)
    with Run(folder, outputs=Outputs(sinks=(), rules=())) as run:
        run.track(groups={"model": model})
        for step in run.steps(5):
            step.observe(Terms(fit=(1.0, model(torch.ones(1, 8)).square().mean())))
            if step.index == 3:
                request()


def test_an_impossible_size_is_diagnosed_as_corrupt(tmp_path):
    with pytest.raises(RuntimeError, match="allocate") as caught:
        fail(tmp_path / "run", lambda: torch.empty(2**58, dtype=torch.uint8))
    report = crash_of(tmp_path / "run")
    assert report["verdict"]["reason"] == "impossible request"
    assert report["requested"] == 2**58
    assert "print the shapes" in report["verdict"]["remedy"]
    assert any("impossible request" in note for note in caught.value.__notes__)
    assert report["census"]["owners"]["parameters"] == {"model": 288}


def test_an_unrelated_error_has_no_diagnosis(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fail(tmp_path / "run", lambda: 1 / 0)
    (place,) = (tmp_path / "run" / "crash").iterdir()
    assert not (place / "memory.json").exists()


def exhaust(folder, *arguments):
    """Run out of real memory, in another process."""
    script = folder / "exhaust.py"
    script.write_text(EXHAUST)
    command = [sys.executable, str(script), str(folder / "run"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    return done


@pytest.mark.machine
@pytest.mark.parametrize(
    "smallest", [2**16, 2**9]
)  # down to 512 bytes, even the first line of a handler cannot allocate
def test_the_report_uses_reserved_memory(tmp_path, smallest):
    done = exhaust(tmp_path, str(smallest))
    report = crash_of(tmp_path / "run")
    assert report["census"]["owners"]["data"]["kept"] >= 10 * 32 * 2**20
    # Whatever runs out first fails: a tensor of a known size, or a few bytes of C++ or Python code.
    assert report["requested"] is None or report["verdict"]["reason"] == "exhaustion"
    assert "During handling" not in done.stderr


def test_an_error_of_the_writer_thread_has_a_census(tmp_path):
    def request():
        raise WriterFailed("the writer thread stopped") from MemoryError()

    with pytest.raises(WriterFailed):
        fail(tmp_path / "run", request)
    assert crash_of(tmp_path / "run")["census"]["owners"]["parameters"] == {"model": 288}


def test_a_python_memory_error_without_a_size_has_a_census(tmp_path):
    def request():
        raise MemoryError

    with pytest.raises(MemoryError):
        fail(tmp_path / "run", request)
    report = crash_of(tmp_path / "run")
    assert report["verdict"] is None
    assert report["requested"] is None
    assert report["census"]["owners"]["parameters"] == {"model": 288}


@pytest.mark.machine
def test_true_exhaustion_names_what_grew(tmp_path):
    done = exhaust(tmp_path)
    report = crash_of(tmp_path / "run")
    assert report["verdict"]["reason"] == "exhaustion", report
    assert report["requested"] == 32 * 2**20
    owners = report["census"]["owners"]
    assert owners["data"]["kept"] >= 10 * 32 * 2**20  # the name of the list that grew
    assert "largest: kept" in report["verdict"]["message"]
    assert "ran out: exhaustion" in done.stderr
