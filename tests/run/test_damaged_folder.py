"""A damaged run folder: the run resumes from its newest intact checkpoint, or reports why it cannot."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch

from fieldwatch import Outputs, Run, Saving
from fieldwatch.checkpoint import CheckpointError, Checkpoints, FolderInUseError, FolderLock
from fieldwatch.health import GENERAL, examine
from fieldwatch.record import NotARun, read_events, read_history, read_manifest
from fieldwatch.run import default_sinks

OLD = Path(__file__).parents[1] / "record" / "old_run"


def train(folder, steps, *, keep=True, lr=0.25, **options):
    """Run with a tensor that holds the number of finished steps; return the first step."""
    state = torch.zeros(4)
    config = {"lr": lr, "size": 4}
    with Run(
        folder, config=config, **{"saving": Saving(every=5), "outputs": Outputs(rules=(), sinks=())} | options
    ) as run:
        started = 0
        if keep:
            run.track(state=state)
            started = run.resume() or 0
        assert not keep or state.eq(started).all()
        for step in run.steps(steps):
            state.fill_(step.index + 1)
            step.record({"Loss/total": 1.0 / (step.index + 1)})
    return started


@pytest.fixture
def folder(tmp_path):
    train(tmp_path / "run", 12)
    return tmp_path / "run"


def damage(folder, *steps):
    for step in steps:
        file = folder / "checkpoints" / f"step_{step:010d}" / "tensors.safetensors"
        file.write_bytes(b"\1" + file.read_bytes()[1:])


def events_of(folder, kind):
    return [event for event in read_events(folder) if event["kind"] == kind]


def test_a_flipped_bit_in_journal_or_events_does_not_prevent_a_resume(folder):
    for name in ("journal.jsonl", "events.jsonl"):
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 4
        (folder / name).write_bytes(content)
    assert train(folder, 14) == 12
    assert {event["file"] for event in events_of(folder, "damaged_record")} == {"journal.jsonl", "events.jsonl"}
    assert len(read_history(folder)["Loss/total"].steps) >= 13
    assert {one.subject for one in examine(folder, GENERAL)} >= {"journal.jsonl", "events.jsonl"}


def test_a_run_resumes_without_run_json_and_recreates_it(folder, capsys):
    before = read_manifest(folder)
    (folder / "run.json").unlink()
    assert train(folder, 14) == 12
    after = json.loads((folder / "run.json").read_text())
    assert after["config"] == before.config
    assert [segment["step"] for segment in after["segments"]] == [0, 12]
    assert "run.json is missing" in capsys.readouterr().err
    assert [event["file"] for event in events_of(folder, "damaged_record")] == ["run.json"]


def test_another_config_is_refused_without_run_json(folder):
    (folder / "run.json").unlink()
    with pytest.raises(ValueError, match=r"lr: stored 0\.25, given 0\.5"):
        train(folder, 14, lr=0.5)


def test_a_corrupt_digit_in_run_json_is_not_taken_for_another_config(folder):
    path = folder / "run.json"
    path.write_text(path.read_text().replace("0.25", "0.35"))
    assert train(folder, 14) == 12
    assert json.loads(path.read_text())["config"]["lr"] == 0.25


def test_every_checkpoint_contains_run_json(folder):
    path = folder / "run.json"
    path.write_bytes(b"")
    damage(folder)
    for step in (12, 10):
        assert read_manifest(folder).config == {"lr": 0.25, "size": 4}
        (folder / "checkpoints" / f"step_{step:010d}" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(NotARun):
        read_manifest(folder)


def test_a_run_with_only_damaged_checkpoints_does_not_start_from_step_0(folder):
    damage(folder, *Checkpoints(folder / "checkpoints").steps())
    for _ in range(3):
        with pytest.raises(CheckpointError, match="no good checkpoint"):
            train(folder, 14)
    assert len(events_of(folder, "plan")) == 1


@pytest.mark.parametrize("lose", ["set aside", "deleted", "deleted, and run.json"])
def test_a_run_that_lost_its_checkpoints_does_not_start_from_step_0(folder, lose):
    place = folder / "checkpoints"
    if lose == "set aside":  # as earlier versions did at the first attempt
        for path in list(place.iterdir()):
            path.rename(path.with_name(f"damaged-{path.name}"))
    else:
        shutil.rmtree(place)
    if "run.json" in lose:
        path = folder / "run.json"
        path.write_text(path.read_text().replace("0.25", "0.35"))
    for _ in range(2):
        with pytest.raises((CheckpointError, NotARun)):
            train(folder, 14)
    assert len(events_of(folder, "plan")) == 1


def test_a_run_without_tracked_objects_does_not_overwrite_one_with_checkpoints(folder):
    with pytest.raises(CheckpointError, match=r"run\.resume"):
        train(folder, 14, keep=False)
    assert read_history(folder)["Loss/total"].steps.tolist() == list(range(12))


def test_start_over_moves_checkpoints_aside(folder):
    damage(folder, 10, 12)
    assert train(folder, 6, saving=Saving(every=5, resume="start-over")) == 0
    (aside,) = folder.glob("given-up-checkpoints-*")
    assert sorted(path.name for path in aside.iterdir()) == ["step_0000000010", "step_0000000012"]
    assert Checkpoints(folder / "checkpoints").steps() == [5, 6]
    assert train(folder, 8) == 6


def test_start_over_allows_another_config(folder):
    assert train(folder, 6, saving=Saving(every=5, resume="start-over"), lr=0.5) == 0
    (aside,) = folder.glob("given-up-checkpoints-*")
    assert {f"step_{step:010d}" for step in (10, 12)} <= {path.name for path in aside.iterdir()}
    assert read_manifest(folder).config["lr"] == 0.5
    assert read_history(folder)["Loss/total"].steps.tolist() == list(range(6))
    assert train(folder, 8, lr=0.5) == 6


def test_start_over_moves_the_results_of_the_earlier_training_aside(folder):
    results = ("products", "evaluations", "crash", "validation_failures")
    for name in results:
        (folder / name).mkdir()
        (folder / name / "old.txt").write_text(name)
    train(folder, 6, saving=Saving(every=5, resume="start-over"))
    assert not any((folder / name / "old.txt").exists() for name in results)
    for name in results:
        (aside,) = folder.glob(f"given-up-{name}-*")
        assert (aside / "old.txt").read_text() == name


def test_start_over_leaves_a_folder_without_a_run_as_it_is(tmp_path):
    (tmp_path / "products").mkdir()
    train(tmp_path, 6, saving=Saving(every=5, resume="start-over"))
    assert list(tmp_path.glob("given-up-*")) == []
    assert (tmp_path / "products").is_dir()


def test_start_over_refuses_a_run_json_that_is_no_run(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(NotARun):
        train(tmp_path, 6, saving=Saving(resume="start-over"))
    assert (tmp_path / "run.json").read_text() == "{}"


def test_a_run_without_checkpoints_starts_again(tmp_path):
    train(tmp_path / "run", 3, keep=False)
    assert train(tmp_path / "run", 4, keep=False) == 0


def test_a_fallback_is_reported_in_terminal_log_and_health(tmp_path, capsys):
    folder = tmp_path / "run"
    options = {"outputs": Outputs(sinks=default_sinks, rules=GENERAL)}
    train(folder, 12, **options)
    damage(folder, 12)
    assert train(folder, 14, **options) == 10
    assert "resumed from step 10" in capsys.readouterr().err
    assert "event=incident" in (folder / "log.txt").read_text()
    (finding,) = [one for one in examine(folder, GENERAL) if one.rule == "FellBack"]
    assert (finding.severity, finding.subject) == ("warning", "step 12")
    assert "2 steps are repeated" in finding.message


def test_missing_rows_at_the_end_are_reported(folder):
    path = folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-4]))
    assert train(folder, 14) == 12
    (event,) = events_of(folder, "damaged_record")
    assert (event["file"], event["lost_steps"]) == ("journal.jsonl", 4)


@pytest.mark.parametrize("place", [24, 128 + 8, 128 + 16, 128 + 24])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0, 1e300])
def test_a_damaged_time_in_the_black_box_does_not_prevent_a_resume(folder, place, value):
    path = folder / "black_box" / "heartbeat"
    page = bytearray(path.read_bytes())
    page[place : place + 8] = struct.pack("<d", value)
    page[320:336] = b"running".ljust(16, b"\0")  # as after a kill -9
    path.write_bytes(page)
    assert train(folder, 13) == 12


def test_a_failed_start_releases_the_folder_and_reports_the_reason(folder):
    def no_sinks(_folder):
        raise RuntimeError("the tracking server does not answer")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not answer"):
            train(folder, 14, outputs=Outputs(rules=(), sinks=no_sinks))
    note = json.loads((folder / "black_box" / "end.json").read_text())
    assert "does not answer" in note["error"]
    assert train(folder, 14) == 12


def test_a_second_run_in_a_locked_folder_is_refused_after_a_copy(tmp_path):
    with Run(tmp_path / "run", outputs=Outputs(sinks=())) as run:
        for step in run.steps(2):
            shutil.copytree(run.folder, tmp_path / f"backup-{step.index}")
            child = os.fork()
            if not child:
                try:
                    FolderLock(run.folder).__enter__()
                except FolderInUseError:
                    os._exit(7)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_run_of_a_version_without_checksums_is_resumed(tmp_path):
    folder = shutil.copytree(OLD, tmp_path / "run")
    assert train(folder, 14) == 12
    assert read_history(folder)["Loss/total"].steps.tolist() == list(range(14))
    assert events_of(folder, "damaged_record") == []
    (folder / "run.json").unlink()
    assert train(folder, 15) == 14


def test_an_old_run_without_run_json_resumes_and_warns_about_the_config(tmp_path, capsys):
    folder = shutil.copytree(OLD, tmp_path / "run")
    (folder / "run.json").unlink()
    assert train(folder, 13) == 12
    assert "no checkpoint" in capsys.readouterr().err
