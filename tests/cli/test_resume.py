"""fieldwatch resume: the same run goes on, a finished one is left alone, and what is no run is refused."""

import json
import math
import shutil

import pytest
import torch

from fieldwatch import Block, Checkpoints
from fieldwatch.recon.commands.video import VIDEO
from fieldwatch.recon.pipelines.video import VideoConfig
from fieldwatch.record import Journal, Row
from fieldwatch.run import ExternalTargets

LAST = 6
MIDDLE = 3


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change_manifest(folder, **changes):
    path = folder / "run.json"
    stored = json.loads(path.read_text())
    stored.pop("sha256", None)  # else the change would count as damage
    path.write_text(json.dumps(stored | changes))


@pytest.fixture
def interrupted(run):
    """The run as a kill in the second epoch leaves it: the later checkpoint is gone, the record goes on beyond."""
    shutil.rmtree(run / "checkpoints" / f"step_{LAST:010d}")
    change_manifest(run, state="running")
    return run


def test_a_killed_run_ends_with_the_very_weights_of_one_that_was_not(interrupted, trained, fieldwatch):
    preset = json.loads((interrupted / "run.json").read_text())["preset_difference"]
    assert Checkpoints(interrupted / "checkpoints").steps() == [MIDDLE]
    code, out, _ = fieldwatch("resume", interrupted)
    assert code in (0, 1)
    assert str(interrupted.absolute() / "checkpoints") in out
    ended, wanted = (Checkpoints(folder / "checkpoints").read(LAST)["model"] for folder in (interrupted, trained))
    assert all(torch.equal(ended[name], wanted[name]) for name in wanted)
    manifest = json.loads((interrupted / "run.json").read_text())
    assert manifest["state"] == "finished"
    assert [segment["step"] for segment in manifest["segments"]] == [0, MIDDLE]
    assert manifest["preset_difference"] == preset


def test_resume_answers_scripts_with_json_alone(interrupted, fieldwatch):
    code, out, _ = fieldwatch("resume", interrupted, "--json")
    outcome = json.loads(out)
    assert outcome["exit_code"] == code
    assert outcome["metrics"]["Eval/Pooled/val_psnr"] > 5


def test_a_finished_run_is_left_alone(run, fieldwatch):
    before = contents(run)
    code, out, _ = fieldwatch("resume", run)
    assert code in (0, 1)
    assert "is finished" in " ".join(out.split())
    assert "held out" in out
    assert str(run.absolute()) in out
    code_of_json, out, _ = fieldwatch("resume", run, "--json")
    outcome = json.loads(out)
    assert code_of_json == outcome["exit_code"] == code
    assert {"Eval/Pooled/val_psnr", "Reference/val_mean_frame"} <= outcome["metrics"].keys()
    assert contents(run) == before


def test_a_finished_run_is_continued_from_an_earlier_step_only_if_asked(run, trained, fieldwatch):
    later = contents(run / "checkpoints" / f"step_{LAST:010d}")
    code, _, said = fieldwatch("resume", run, "--checkpoint", MIDDLE)
    assert code in (0, 1)
    assert f"abandoned-step_{LAST:010d}" in said
    again, wanted = (Checkpoints(folder / "checkpoints").read(LAST)["model"] for folder in (run, trained))
    assert all(torch.equal(again[name], wanted[name]) for name in wanted)
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["state"] == "finished"
    assert [segment["step"] for segment in manifest["segments"]] == [0, MIDDLE]
    aside = contents(run / "checkpoints" / f"abandoned-step_{LAST:010d}")
    assert list(aside.values()) == list(later.values())


@pytest.mark.parametrize("which", [LAST, "last"])
def test_the_newest_checkpoint_of_a_finished_run_leaves_nothing_to_train(run, fieldwatch, which):
    before = contents(run)
    code, out, _ = fieldwatch("resume", run, "--checkpoint", which)
    assert code in (0, 1)
    assert "is finished" in " ".join(out.split())
    assert contents(run) == before


@pytest.mark.parametrize("state", ["finished", "running"])
def test_a_step_without_a_checkpoint_is_refused_and_nothing_is_written(run, refused, state):
    change_manifest(run, state=state)
    before = contents(run)
    assert f"[{MIDDLE}, {LAST}]" in refused("resume", run, "--checkpoint", LAST + 1)
    assert "--checkpoint 'soon'" in refused("resume", run, "--checkpoint", "soon")
    assert contents(run) == before


def test_the_log_keeps_its_interval(train, fieldwatch):
    folder = train("--log-every", "2")

    def summaries():
        lines = (folder / "log.txt").read_text().splitlines()
        return [line.split()[1] for line in lines if " loss=" in line]

    assert summaries() == ["step=0", "step=2", "step=4"]
    # The first step of a start has a line in any case.
    fieldwatch("resume", folder, "--checkpoint", MIDDLE)
    assert summaries() == ["step=0", "step=2", f"step={MIDDLE}", "step=4"]
    fieldwatch("resume", folder, "--checkpoint", MIDDLE, "--log-every", "1")
    assert summaries() == ["step=0", "step=2", "step=3", "step=4", "step=5"]


def test_an_interval_below_one_step_is_refused(run, refused):
    before = contents(run)
    assert "--log-every" in refused("resume", run, "--log-every", "0")
    assert contents(run) == before


def test_a_finished_run_with_findings_ends_with_1(run, fieldwatch):
    journal = Journal(run)
    journal.append(Block.of(Row(step=LAST - 1, seconds=9.0, values={"Loss/total": math.nan})))
    journal.close()
    code, out, _ = fieldwatch("resume", run)
    assert code == 1
    assert "NonFinite" in out


def test_extra_sinks_of_the_first_start_go_on(interrupted, fieldwatch):
    about = json.loads((interrupted / "run.json").read_text())["about"]
    change_manifest(interrupted, about=dict(ExternalTargets(sinks=("csv",)).add_to_about(about)))
    code, _, _ = fieldwatch("resume", interrupted)
    assert code in (0, 1)
    assert (interrupted / "metrics.csv").stat().st_size > 0
    assert json.loads((interrupted / "run.json").read_text())["about"]["sinks"] == ["csv"]


def test_what_lies_in_the_folder_starts_no_sink(interrupted, fieldwatch):
    about = json.loads((interrupted / "run.json").read_text())["about"]
    change_manifest(interrupted, about={**about, "sinks": ["csv", "mlflow"], "signature": "0" * 64})
    (interrupted / "wandb").mkdir()
    code, _, said = fieldwatch("resume", interrupted)
    assert code in (0, 1)
    assert all(f"enable it with --{name}" in " ".join(said.split()) for name in ("csv", "wandb", "mlflow"))
    assert not (interrupted / "metrics.csv").exists()
    assert not (interrupted / "mlflow.db").exists()
    assert list((interrupted / "wandb").iterdir()) == []


def test_a_flag_turns_a_sink_on(interrupted, fieldwatch):
    code, _, _ = fieldwatch("resume", interrupted, "--csv")
    assert code in (0, 1)
    assert (interrupted / "metrics.csv").stat().st_size > 0


def test_what_is_no_run_is_refused_and_nothing_is_written(tmp_path, refused):
    assert "holds no run (no run.json)" in refused("resume", tmp_path / "nowhere")
    assert "holds no run" in refused("resume", tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "holds no run" in refused("resume", tmp_path / "file")


def test_a_damaged_run_json_is_made_anew_from_the_newest_checkpoint(run, fieldwatch):
    path = run / "run.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    code, _, message = fieldwatch("resume", run)
    # 1 says that this short training ended worse than a prediction without training.
    assert code in (0, 1)
    assert "run.json is damaged" in message
    assert json.loads(path.read_text())["config"] == json.loads(whole)["config"]


def test_a_foreign_run_json_is_refused(run, refused):
    path = run / "run.json"
    whole = path.read_text()
    change_manifest(run, about={"pipeline": "hair"})
    assert all(name in refused("resume", run) for name in ("normals", "refined", "splats", "video"))
    change_manifest(run, about={"pipeline": "splats"})
    assert "splats config" in refused("resume", run)
    change_manifest(run, about={})
    assert "loop of your" in refused("resume", run)
    path.write_text(whole)
    change_manifest(run, config={"epochs": 0})
    assert "config" in (message := refused("resume", run))
    assert "--epochs must" in message
    change_manifest(run, config={"color": "red"})
    assert "color that VideoConfig" in refused("resume", run)


def test_a_run_is_not_continued_with_another_teacher(interrupted, refused):
    about = json.loads((interrupted / "run.json").read_text())["about"]
    change_manifest(interrupted, about=about | {"teacher": "clip-512-0123456789ab"})
    message = refused("resume", interrupted)
    assert "clip-512-0123456789ab, but --teacher descriptor finds image-descriptor" in message
    assert "$FIELDWATCH_CLIP" in message


def test_a_clip_that_is_gone_is_named(interrupted, refused):
    manifest = json.loads((interrupted / "run.json").read_text())
    change_manifest(interrupted, config=manifest["config"] | {"data": "/nowhere/at/all"})
    assert "/nowhere/at/all does not exist" in refused("resume", interrupted)


def test_config_and_preset_come_back_as_they_were(trained):
    config = VIDEO.stored_config(trained)
    assert isinstance(config, VideoConfig)
    assert (config.epochs, config.teacher, config.options.grid_widths) == (2, "descriptor", (8, 8, 8))
    preset = VIDEO.stored_preset(trained)
    assert (preset.epochs, preset.teacher, preset.options.grid_widths) == (300, "auto", (64, 64, 48))
    assert preset.data is None


def test_help_shows_an_example(fieldwatch):
    code, out, _ = fieldwatch("resume", "--help")
    assert code == 0
    assert "Example: fieldwatch resume" in out
