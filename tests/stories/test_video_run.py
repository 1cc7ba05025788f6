"""A video run as a user meets it: what it leaves behind, what it says of a bad value, what it says of bad input."""

import json
import math
import os
import re
import signal
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from fieldwatch import Checkpoints, examine, read_history
from fieldwatch.checkpoint import FolderLock
from fieldwatch.cli import main
from fieldwatch.recon.data import write_video
from fieldwatch.recon.pipelines.video import VIDEO_METRICS, VIDEO_RULES
from fieldwatch.recon.pipelines.video.scene import VideoScene
from fieldwatch.record import TOOLKIT, read_events, read_manifest

SHORT = "--epochs 12 --eval-freq 4 --pixel-loss-warmup-epochs 3 --checkpoint-epochs 2 --attribute-every 20".split()
STEPS = 12 * 7
DUAL_HEAD_TABLE = """
Eval/Frame train_clip_dist train_clip_sim train_psnr val_clip_dist val_clip_sim val_psnr
Eval/Gap clip_sim_gap psnr_gap
Eval/Histogram train_clip_sim_distribution train_psnr_distribution val_clip_sim_distribution val_psnr_distribution
Eval/Info num_train_frames num_train_patches num_val_frames num_val_patches
Eval/PSNR_Stats train_max train_min train_std val_max val_min val_std
Eval/Patch train_clip_sim_std train_psnr_std val_clip_sim_std val_psnr_std
Model/Params clip_head_mean clip_head_std rgb_head_mean rgb_head_std
Train/Gradients clip_head_norm decoder_norm rgb_head_norm rgb_to_clip_ratio total_norm
Train/Loss clip_loss clip_loss_weighted pixel_loss pixel_to_clip_ratio total_loss
Train PSNR clip_loss_active learning_rate
Train_Batch PSNR clip_loss pixel_loss total_loss
"""
"""What the dual-head HNeRV code records: a folder of tags, then the names in it."""
DUAL_HEAD_TAGS = {
    f"{folder}/{name}" for folder, *names in map(str.split, DUAL_HEAD_TABLE.split("\n")[1:-1]) for name in names
}


@pytest.fixture
def train(frames, tiny, capsys):
    """Train in this process; the exit code and what was printed."""

    def run(out, *more):
        code = main(["train", "video", "--data", str(frames), "--out", str(out), *tiny, *SHORT, *map(str, more)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def load(folder):
    everything = {"scalars": 0, "histograms": 0, "images": 0, "tensors": 0}
    return EventAccumulator(str(folder / "tensorboard"), size_guidance=everything).Reload()


def tags_in(accumulator):
    kinds = accumulator.Tags()
    return set(kinds["scalars"]) | set(kinds["histograms"]) | set(kinds["images"]) | set(kinds["tensors"])


def test_all_tags_of_the_dual_head_code_are_written_and_none_undeclared_and_no_step_twice(tmp_path, train):
    folder = tmp_path / "run"
    for part in range(3):  # interrupted three times: each epoch is recorded once
        interrupt_at(train, folder, 20 * (part + 1))
    train(folder)
    events = load(folder)
    assert len(DUAL_HEAD_TAGS) == 47
    assert tags_in(events) >= DUAL_HEAD_TAGS
    declared = TOOLKIT + VIDEO_METRICS
    plugins = (
        "custom_scalars__config__",
        "_hparams_/session_start_info",
        "_hparams_/session_end_info",
        "Guide/metrics",
    )
    assert [tag for tag in tags_in(events) if tag not in declared and not tag.startswith(plugins)] == []
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert len(steps) == len(set(steps)), tag
        assert steps == sorted(steps), tag
    assert [event.step for event in events.Scalars("Train/PSNR")] == list(range(1, 13))
    assert [event.step for event in events.Scalars("Train_Batch/PSNR")] == list(range(STEPS))


def interrupt_at(train, folder, step):
    """Stop the process as Ctrl-C does, once the run has come to a step."""
    original = VideoScene.batch

    def batch(self, unit, units, **options):
        if options.get("training"):
            if len(seen) == step:
                os.kill(os.getpid(), signal.SIGINT)
            seen.append(step)
        return original(self, unit, units, **options)

    history = read_history(folder) if (folder / "journal.jsonl").exists() else None
    seen = list(range(history.step + 1)) if history else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VideoScene, "batch", batch)
        with pytest.raises(SystemExit) as stopped:
            train(folder)
    assert stopped.value.code == 130


def test_the_layout_has_six_tabs_and_memory(tmp_path, train):
    train(tmp_path / "run")
    (event,) = load(tmp_path / "run").Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [tab.title for tab in layout.category] == [
        "Overview",
        "Loss Breakdown",
        "Gradients",
        "Evaluation",
        "Statistics",
        "Distributions",
        "Memory",
    ]


def test_the_seeds_rule_of_undefined_ratios_and_inactive_terms(tmp_path, train):
    train(tmp_path / "run")
    history = read_history(tmp_path / "run")
    assert history["Train/Loss/pixel_to_clip_ratio"].positions.tolist() == list(range(4, 13))
    assert history["Train/Gradients/clip_head_norm"].values[:3].tolist() == [0, 0, 0]
    assert history["Train/clip_loss_active"].values.tolist() == [0] * 3 + [1] * 9
    assert history["Loss/component_clip"].steps[0] == 21
    total = history["Train/Loss/total_loss"].values
    parts = history["Train/Loss/pixel_loss"].values + history["Train/Loss/clip_loss_weighted"].values
    np.testing.assert_allclose(total, parts, rtol=1e-5)


def test_a_nan_in_one_patch_is_refused_named_and_reported_and_training_goes_on(tmp_path, train, monkeypatch):
    folder = tmp_path / "run"
    poison(monkeypatch, lambda seen: seen == 40)
    code, out, _ = train(folder)
    assert code == 0, "warnings are printed, and are no failure"
    assert re.search(r"\d+ warnings?", out), out
    assert main(["resume", str(folder)]) == 0
    assert main(["resume", str(folder), "--strict"]) == 1
    assert main(["health", str(folder)]) == 1
    assert re.search(r"(RefusedUpdates|NonFinite)[^\n]* at step 40", out), out
    (refusal,) = [event for event in read_events(folder) if event["kind"] == "refusal"]
    assert (refusal["step"], refusal["terms"]) == (40, ["clip"])
    assert refusal["samples"]
    assert read_manifest(folder).state == "finished"
    assert all(
        torch.isfinite(value).all() for value in Checkpoints(folder / "checkpoints").read("last")["model"].values()
    )
    assert np.isfinite(read_history(folder)["Train/Loss/total_loss"].values).all()


def test_nan_for_ever_stops_with_3_and_says_where_to_resume(tmp_path, train, monkeypatch):
    folder = tmp_path / "run"
    poison(monkeypatch, lambda seen: seen >= 40)
    code, out, err = train(folder)
    assert code == 3
    told = (out + err).replace("\n", " ")
    assert re.search(r"from step \d+ on.*from step \d+ with `fieldwatch resume", told)
    assert re.search("back 2 times before.*from 50 steps to 28, .*steps 38 to 51", told)
    assert read_manifest(folder).state == "diverged"
    assert main(["health", str(folder)]) == 3


def poison(monkeypatch, when):
    """Put a NaN into one patch of the batches that are meant."""
    original = VideoScene.batch
    seen = []

    def batch(self, unit, units, **options):
        made = original(self, unit, units, **options)
        if options.get("training"):
            if when(len(seen)):
                made.embedding[0, 0, 0] = math.nan
            seen.append(made.names)
        return made

    monkeypatch.setattr(VideoScene, "batch", batch)


def test_findings_of_the_live_run_and_of_the_finished_one_are_the_same(tmp_path, train, monkeypatch):
    poison(monkeypatch, lambda seen: seen == 40)
    train(tmp_path / "run")
    live = [event for event in read_events(tmp_path / "run") if event["kind"] == "finding"]
    later = [finding.as_event() for finding in examine(tmp_path / "run", VIDEO_RULES)]
    assert [(f["rule"], f["step"], f["message"]) for f in live] == [(f["rule"], f["step"], f["message"]) for f in later]
    assert live


def test_json_prints_one_document_and_nothing_else(tmp_path, train):
    code, out, _ = train(tmp_path / "run", "--json")
    answer = json.loads(out)
    assert answer["exit_code"] == code
    assert answer["metrics"]["Eval/Pooled/val_psnr"] > 5


def picture(path, size=(64, 32), value=100):
    Image.fromarray(np.full((size[1], size[0], 3), value, np.uint8)).save(path)


def empty(folder, _frames):
    folder.mkdir()


def unreadable(folder, frames):
    folder.mkdir()
    for path in sorted(frames.iterdir()):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "0003.png").write_bytes((folder / "0003.png").read_bytes()[:60])


def mixed(folder, frames):
    unreadable(folder, frames)
    picture(folder / "0003.png", size=(32, 32))


def truncated_header(folder, frames):
    unreadable(folder, frames)
    (folder / "0003.png").write_bytes(struct.pack("8B", *range(8)))


BAD_DATA = {
    "empty folder": (empty, r"bad is empty: set --data to a folder of images or a video file"),
    "unreadable frame": (unreadable, "0003.png"),
    "not an image": (truncated_header, "0003.png"),
    "mixed sizes": (mixed, r"(?s)0003.png.*--resize"),
    "missing": (lambda *_: None, "bad"),
}
BAD_FLAGS = {
    "grid finer than the frame": (["--rows", "64"], r"grid of 64 x 2 patches is finer than the frame of 32 x 64"),
    "unknown loss": (["--loss", "Fusion66"], r"Fusion66.*Did you mean Fusion6\?"),
    "unknown schedule": (["--lr-type", "linear_0.1"], r"--lr-type must be cosine_.* got 'linear_0.1'"),
    "no validation": (["--data-split", "9_10_10"], "9_9_10"),
    "no such teacher": (["--teacher", "nowhere/at-all"], "--teacher nowhere/at-all"),
    "curved motion of no prior": (["--between-motion", "curved"], "--between-motion curved .* --between-weight 0 "),
    "unknown preset": (["--preset", "smal"], "expected one of default, demo, small"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_one_clear_message_exit_2_and_nothing_written(name, tmp_path, frames, tiny, capsys):
    spoil, message = BAD_DATA[name]
    spoil(tmp_path / "bad", frames)
    code = main(["train", "video", "--data", str(tmp_path / "bad"), "--out", str(tmp_path / "run"), *tiny])
    assert code == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", BAD_FLAGS)
def test_bad_settings_are_one_clear_message_exit_2_and_nothing_written(name, tmp_path, train):
    flags, message = BAD_FLAGS[name]
    code, _, err = train(tmp_path / "run", *flags)
    assert code == 2
    assert re.search(message, err), err
    assert not (tmp_path / "run").exists()


def test_an_unknown_flag_and_an_unknown_command_exit_2(tmp_path, train, capsys):
    with pytest.raises(SystemExit) as stopped:
        train(tmp_path / "run", "--epoch", "3")
    assert stopped.value.code == 2
    assert "--epochs" in capsys.readouterr().err
    assert main(["trian", "video"]) == 2
    assert "did you mean `fieldwatch train video`" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_place_is_refused_before_any_work(tmp_path, train):
    (tmp_path / "closed").mkdir(mode=0o500)
    code, _, err = train(tmp_path / "closed" / "run")
    assert code == 2
    assert "cannot write into" in err


def test_a_file_in_the_place_of_the_run_folder_is_refused(tmp_path, train):
    (tmp_path / "run").write_text("a file")
    code, _, err = train(tmp_path / "run")
    assert code == 2
    assert "is a file" in err


def test_another_config_in_the_folder_is_refused_with_the_difference(tmp_path, train):
    train(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    code, _, err = train(tmp_path / "run", "--lr", "0.5")
    assert code == 2
    assert re.search(r"lr: stored 0.005, given 0.5", err)
    assert "fieldwatch resume" in err
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_an_mp4_trains_like_a_folder_of_frames(tmp_path, frames, tiny, capsys):
    pictures = [torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path in sorted(frames.iterdir())]
    film = write_video(tmp_path / "clip.mp4", pictures, rate=8)
    options = "--epochs 2 --eval-freq 2 --pixel-loss-warmup-epochs 1".split()
    code = main(["train", "video", "--data", str(film), "--out", str(tmp_path / "run"), *tiny, *options])
    assert code in (0, 1), capsys.readouterr().err
    assert len(read_history(tmp_path / "run")["Loss/total"]) == 14


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_goes_on(tmp_path, train):
    folder = tmp_path / "run"
    folder.mkdir()
    with FolderLock(folder):
        code, _, err = train(folder)
    assert code == 2
    assert str(os.getpid()) in err
