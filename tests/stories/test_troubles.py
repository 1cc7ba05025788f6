"""Troubles that runs once had, through what every version has: the command line, ``Run``, files in the run folder.

Nothing here asks for a name that was made to mend them, so the same file runs against a version that still has them.
"""

import contextlib
import json
import os
import random
import struct
import subprocess
import sys
import time
import warnings
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fieldwatch
import fieldwatch.cli.health
from fieldwatch import Run, Terms, examine, read_history
from fieldwatch.cli import main
from fieldwatch.health import GENERAL
from fieldwatch.monitor import GAVE_UP, Supervisor
from fieldwatch.monitor.watch import Watcher
from fieldwatch.recon.data.normal_maps.map_files import read_normal_file
from fieldwatch.record.lines import CorruptRecord
from fieldwatch.report.account import account_of


def options_of(every, rules, sinks, mirror=""):
    """The options of a run in this version, and in those before they were records."""
    if not hasattr(fieldwatch, "Saving"):
        return {"checkpoint_every": every, "rules": rules, "sinks": sinks, "mirror": mirror}
    saving = fieldwatch.Saving(every=every, mirror=mirror)
    return {"saving": saving, "outputs": fieldwatch.Outputs(rules=rules, sinks=sinks)}


def restore(run, **items):
    """Have a run save these items, and restore them; in this version, and in those where one call did both."""
    if not hasattr(run, "track"):
        run.keep(**items)
        return
    run.track(**items)
    run.resume()


def train(folder, steps, mirror=""):
    """A run whose one tensor holds the number of finished steps; returns the step that it began at."""
    state = torch.zeros(4)
    with Run(folder, **options_of(5, (), (), mirror)) as run:
        restore(run, state=state)
        started = int(state[0])
        for step in run.steps(steps):
            state.fill_(step.index + 1)
            step.record({"Loss/total": 1.0 / (step.index + 1)})
    return started


def fit(folder, batches=None, steps=3, keep=("model", "optimizer")):
    """A loop with an optimizer, of which only some things are kept; it ends before a step where asked for none."""
    model = nn.Linear(2, 1)
    made = {"model": model, "optimizer": torch.optim.Adam(model.parameters())}
    with Run(folder, **options_of(5, GENERAL, ())) as run:
        if hasattr(run, "track"):
            run.track(groups={"model": model})
        else:
            run.watch(model=model)
        if keep:
            restore(run, **{name: made[name] for name in keep})
        drawn = iter(run.batches(batches or iter(torch.randn(steps, 8, 2))))
        for step in run.steps(steps):
            batch = next(drawn)
            terms = Terms(fit=(1.0, model(batch[0] if isinstance(batch, list) else batch).square().mean()))
            made["optimizer"].zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(made["optimizer"])


def test_a_damaged_events_file_raises_nothing_but_errors_with_names(tmp_path):
    train(tmp_path, 6)
    path = tmp_path / "events.jsonl"
    draw = random.Random(8)
    good = path.read_bytes()
    for _ in range(400):
        data = bytearray(good)
        place = draw.randrange(len(good))
        if draw.random() < 0.5:
            del data[place : place + draw.randrange(1, 30)]
        else:
            data[place : place + 1] = good[draw.randrange(len(good)) :][: draw.randrange(1, 30)]
        path.write_bytes(data)
        with contextlib.suppress(CorruptRecord):
            read_history(tmp_path)


SHAPES = ("(4294967296, 4294967296)", "(3, 4", "(1" + "0" * 5000 + ",)", "(" * 9000)


@pytest.mark.parametrize("shape", SHAPES, ids=["huge", "cut short", "many digits", "nested"])
def test_a_numpy_header_that_lies_is_refused_with_a_name(tmp_path, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(Exception, match=r"a\.npy") as raised:
        read_normal_file(tmp_path / "a.npy")
    assert type(raised.value).__module__.startswith("fieldwatch")


@pytest.mark.parametrize("keep", [(), ("model",), ("optimizer",)])
def test_what_is_not_kept_is_said_and_found(tmp_path, capsys, keep):
    fit(tmp_path, keep=keep)
    assert "tracked" in capsys.readouterr().err
    assert [finding for finding in examine(tmp_path, GENERAL) if "tracked" in finding.message]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_will_not_repeat_is_said_before_the_first_step(tmp_path, capsys, workers):
    loader = DataLoader(TensorDataset(torch.randn(40, 2)), batch_size=4, shuffle=True, num_workers=workers)
    fit(tmp_path, batches=loader)
    assert "DataLoader" in capsys.readouterr().err


READ = """
import resource, sys
from pathlib import Path
from fieldwatch.recon.data.normal_maps.cameras_file import CamerasFile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    CamerasFile(Path(sys.argv[1]))
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_small_file_of_cameras_does_not_fill_the_memory(tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (9000, 9000), }"
    large = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(4 * 9000 * 9000)
    np.savez(tmp_path / "cameras.npz", world_mat_0=np.eye(4), scale_mat_0=np.eye(4))
    with zipfile.ZipFile(tmp_path / "cameras.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("extra.npy", large)
    command = [sys.executable, "-c", READ, str(tmp_path / "cameras.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert int(done.stdout) * 1024 < len(large) / 4, done.stderr


def test_a_mirror_that_somebody_else_wrote_into_run_json_is_not_used(tmp_path, monkeypatch):
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "theirs"))
    train(tmp_path / "run", 6, mirror=f"file://{tmp_path}/mirror")
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "mine"))
    before = sorted(path.name for path in (tmp_path / "mirror").rglob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(tmp_path / "run", 12) == 6
    assert sorted(path.name for path in (tmp_path / "mirror").rglob("*")) == before


@pytest.mark.parametrize("name", ["journal.jsonl", "events.jsonl", "checkpoints"])
def test_no_link_in_a_run_folder_is_written_through(tmp_path, name):
    folder = tmp_path / "run"
    outside = tmp_path / "outside"
    train(folder, 6)
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)

    def content():
        files = [path for path in (outside, *outside.rglob("*")) if path.is_file()]
        return {path: path.read_bytes() for path in files}

    before = content()
    with contextlib.suppress(ValueError, OSError):
        train(folder, 40)
    assert content() == before


LOOP = """
import sys
import torch
import fieldwatch
from fieldwatch.monitor import supervisor_link

start, state = supervisor_link().attempt, torch.zeros(4)

def sinks(folder):
    if start == 1:
        raise OSError(28, "No space left on device", str(folder))
    return []

if hasattr(fieldwatch, "Saving"):
    outputs = fieldwatch.Outputs(sinks=sinks, rules=())
    options = {"saving": fieldwatch.Saving(every=2), "outputs": outputs}
else:
    options = {"sinks": sinks, "rules": (), "checkpoint_every": 2}
with fieldwatch.Run(sys.argv[1], **options) as run:
    if hasattr(run, "track"):
        run.track(state=state)
        run.resume()
    else:
        run.keep(state=state)
    for step in run.steps(8):
        if start == 2 and step.index == 4:
            sys.exit(2)  # as a library would
"""
FURTHER = """
import os, sys, time
from pathlib import Path
from fieldwatch.monitor import BlackBox, supervisor_link

me, folder = supervisor_link(), Path(sys.argv[1])
box = BlackBox(folder, attempt=me.attempt)
me.report_folder(folder)
box.beat(me.attempt, b"step", 60.0, time.monotonic())
if me.attempt < 20:
    os._exit(9)
box.close("finished")
"""


@pytest.fixture
def supervise(tmp_path):
    """Run a program under a supervisor: its exit code, the starts, and the seconds between them."""

    def run(program, **options):
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "run")]
        supervisor = Supervisor(lambda _: command, announce=lambda _: None, **options)
        began = time.monotonic()
        code = supervisor.run()
        between = time.monotonic() - began - sum(one.seconds for one in supervisor.attempts)
        return code, supervisor.attempts, between

    return run


def test_a_full_disk_at_the_start_and_a_librarys_exit_are_got_over(supervise):
    code, starts, _ = supervise(LOOP, pause=0.01)
    assert (code, len(starts)) == (0, 3), [one.cause for one in starts]


def test_restarts_that_each_get_further_are_paused_and_limited(supervise):
    code, starts, between = supervise(FURTHER, pause=0.004)
    assert (code, len(starts)) == (GAVE_UP, 11)
    assert between > 0.004 * (2**10 - 1)


def test_a_bug_is_no_bad_input(tmp_path, monkeypatch, capsys):
    def broken(*_, **__):
        raise KeyError("gaussians")

    train(tmp_path, 2)
    monkeypatch.setattr(fieldwatch.cli.health, "examine", broken)
    with pytest.raises(SystemExit) as raised:
        sys.exit(main(["health", str(tmp_path)]))
    assert raised.value.code == 3
    assert "Traceback" in capsys.readouterr().err


def test_watch_and_report_agree_about_a_run_that_is_silent_elsewhere(tmp_path):
    train(tmp_path, 6)
    path = tmp_path / "black_box" / "heartbeat"
    now = time.time()
    page = bytearray(path.read_bytes())
    struct.pack_into("<d", page, 24, now - 5000)
    struct.pack_into("<qddd32s", page, 128, 5, 1.0, now - 1000, 60.0, b"step")
    struct.pack_into("<16s800s", page, 320, b"running", b"")
    path.write_bytes(page)
    about = json.loads((tmp_path / "run.json").read_text())
    about["segments"][-1]["host"] = "elsewhere.example"
    told = {name: value for name, value in about.items() if name != "sha256"} | {"state": "running"}
    (tmp_path / "run.json").write_text(json.dumps(told))
    for name in ("run.json", "journal.jsonl", "events.jsonl"):
        os.utime(tmp_path / name, (now - 1000, now - 1000))
    with Watcher(tmp_path) as watcher:
        state = watcher.refresh().state
    assert account_of(tmp_path)["run"]["state"] == getattr(state, "word", state) == "silent"


def test_run_json_and_its_name_are_on_the_disk_when_a_run_is_over(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr("os.fsync", lambda file: (synced.append(os.fstat(file).st_ino), real(file)))
    train(tmp_path, 2)
    file = (tmp_path / "run.json").stat().st_ino
    folder = tmp_path.stat().st_ino
    assert file in synced
    assert folder in synced[len(synced) - synced[::-1].index(file) :]
