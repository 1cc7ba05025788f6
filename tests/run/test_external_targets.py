"""An untrusted run folder causes no writes, deletions or copies outside of itself."""

import os
import stat
import warnings
from dataclasses import replace

import pytest
import torch

from fieldwatch import Outputs, Run, Saving
from fieldwatch.base import InputError
from fieldwatch.checkpoint import CheckpointError, Checkpoints
from fieldwatch.record import read_manifest
from fieldwatch.run import ExternalTargets, default_sinks
from fieldwatch.run import external_targets as module


def train(folder, steps, **options):
    state = torch.zeros(100)
    with Run(folder, **{"saving": Saving(every=2), "outputs": Outputs(rules=(), sinks=())} | options) as run:
        run.track(state=state)
        run.resume()
        for step in run.steps(steps):
            state.fill_(step.index + 1)
            step.record({"Loss/total": 1.0})
    return run


def change_about(folder, **changes):
    stored = read_manifest(folder)
    replace(stored, about={**stored.about, **changes}).write(folder)


def test_a_resumed_run_keeps_the_mirror_that_its_user_chose(tmp_path):
    train(tmp_path / "run", 4, saving=Saving(every=2, mirror=f"file://{tmp_path}/far"))
    train(tmp_path / "run", 8)
    assert (tmp_path / "far" / "checkpoints" / "step_0000000008").is_dir()


@pytest.mark.parametrize("signature", ["", "0" * 64, 7, None])
def test_an_unsigned_mirror_in_run_json_is_not_used_and_causes_a_warning(tmp_path, signature):
    train(tmp_path / "run", 4)
    url = f"file://{tmp_path}/elsewhere"
    change_about(tmp_path / "run", mirror=url, signature=signature)
    with pytest.warns(UserWarning, match=f"--mirror {url}"):
        train(tmp_path / "run", 8)
    assert not (tmp_path / "elsewhere").exists()
    train(tmp_path / "run", 10, saving=Saving(every=2, mirror=url))
    train(tmp_path / "run", 12)
    assert (tmp_path / "elsewhere" / "checkpoints" / "step_0000000012").is_dir()


def test_the_key_of_another_user_is_not_trusted(tmp_path, monkeypatch):
    train(tmp_path / "run", 4, saving=Saving(every=2, mirror=f"file://{tmp_path}/far"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state of another"))
    assert not ExternalTargets.stored(tmp_path / "run").trusted
    assert stat.S_IMODE((tmp_path / "state of another" / "fieldwatch" / "key").stat().st_mode) == 0o600


def test_a_changed_url_or_sink_invalidates_the_signature(tmp_path):
    train(
        tmp_path / "run",
        2,
        saving=Saving(every=2, mirror=f"file://{tmp_path}/far"),
        outputs=Outputs(rules=(), sinks=(), sink_names=("csv",)),
    )
    assert ExternalTargets.stored(tmp_path / "run") == ExternalTargets(
        mirror=f"file://{tmp_path}/far", sinks=("csv",), trusted=True
    )
    change_about(tmp_path / "run", sinks=["csv", "wandb"])
    assert not ExternalTargets.stored(tmp_path / "run").trusted


def test_without_a_home_directory_nothing_is_signed_and_nothing_fails(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    train(tmp_path / "run", 2, saving=Saving(every=2, mirror=f"file://{tmp_path}/far"))
    assert not ExternalTargets.stored(tmp_path / "run").trusted


def test_the_first_of_two_concurrent_keys_is_kept(tmp_path):
    module._write_key(tmp_path / "key")
    first = (tmp_path / "key").read_bytes()
    module._write_key(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == first
    assert os.listdir(tmp_path) == ["key"]  # noqa: PTH208


RECORD = ["journal.jsonl", "events.jsonl", "log.txt", "memory.jsonl", "run.json", ".lock", "metrics.csv"]


@pytest.mark.parametrize("name", RECORD)
def test_a_linked_record_is_refused_and_its_target_unchanged(tmp_path, name):
    run = tmp_path / "run"
    mine = tmp_path / "mine.txt"
    train(run, 2, outputs=Outputs(rules=(), sinks=default_sinks))
    mine.write_bytes((run / name).read_bytes() if (run / name).exists() else b"my own lines\n")
    before = mine.read_bytes(), mine.stat().st_mtime_ns
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(mine)
    with pytest.raises(InputError, match=rf"run/{name}"):
        train(run, 4, outputs=Outputs(rules=(), sinks=default_sinks))
    assert (mine.read_bytes(), mine.stat().st_mtime_ns) == before


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "black_box", "crash", "wandb"])
def test_a_linked_subfolder_is_refused_and_its_target_unchanged(tmp_path, name):
    run = tmp_path / "run"
    mine = tmp_path / "mine"
    train(run, 6, outputs=Outputs(rules=(), sinks=default_sinks))
    if (run / name).exists():
        (run / name).rename(mine)
    else:
        mine.mkdir()
    (run / name).symlink_to(mine)
    before = {path: path.stat().st_mtime_ns for path in (mine, *mine.rglob("*"))}
    with pytest.raises(InputError, match=f"run/{name} is a symbolic"):
        train(run, 12, outputs=Outputs(rules=(), sinks=default_sinks))
    assert {path: path.stat().st_mtime_ns for path in (mine, *mine.rglob("*"))} == before


def test_the_run_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "large disk")
    train(tmp_path / "run", 4, outputs=Outputs(rules=(), sinks=default_sinks))
    train(tmp_path / "run", 6, outputs=Outputs(rules=(), sinks=default_sinks))
    assert Checkpoints(tmp_path / "large disk" / "checkpoints").steps() == [4, 6]


def test_a_linked_checkpoint_counts_as_damaged_and_nothing_outside_is_deleted(tmp_path):
    run = tmp_path / "run"
    mine = tmp_path / "mine"
    train(run, 4)
    newest = run / "checkpoints" / "step_0000000004"
    newest.rename(mine)
    newest.symlink_to(mine)
    before = sorted(path.name for path in mine.iterdir())
    with pytest.raises(CheckpointError, match="symbolic link"):
        Checkpoints(run / "checkpoints").read(4)
    with pytest.raises(InputError, match="symbolic link"):
        Checkpoints(run / "checkpoints").pin(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(run, 20)
    assert sorted(path.name for path in mine.iterdir()) == before


def test_an_unrelated_link_in_a_run_folder_is_allowed(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data").symlink_to(tmp_path / "photos")
    train(tmp_path / "run", 2)
