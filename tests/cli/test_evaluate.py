"""fieldwatch eval: every file, the numbers of the training itself, and one message for each bad input."""

import csv
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from fieldwatch import read_history

TABLES = {
    "all_patches_detailed": 8 * 4,
    "per_frame_stats": 8,
    "summary_stats": 1,
    "fractional_positions_detailed": 3 * 9,
}
PICTURES = ("embedding_map", "worst_train_frames", "worst_val_frames")


def rows(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_file_is_written_and_named(run, fieldwatch):
    code, out, _ = fieldwatch("eval", run, "--positions-frames", 3)
    assert code == 0
    folder = run / "products" / "eval-6"
    assert {path.name for path in folder.iterdir()} == {
        *(f"{name}.csv" for name in (*TABLES, "fractional_positions_summary")),
        *(f"{name}.png" for name in PICTURES),
        "metrics.json",
        "embedding_report.json",
    }
    assert all(str(path.absolute()) in out for path in folder.iterdir())
    assert {name: len(rows(folder / f"{name}.csv")) for name in TABLES} == TABLES
    for name in PICTURES:
        Image.open(folder / f"{name}.png").load()
    assert json.loads((folder / "embedding_report.json").read_text())["verdict"]
    assert "held out" in out
    assert "embeddings: " in out


def test_the_metrics_are_those_of_the_training(run, answer):
    got = answer("eval", run, "--checkpoint", "last")
    history = read_history(run)
    tags = [name for name in history.names() if name.startswith(("Eval/", "Reference/"))]
    recorded = {name: float(history[name].values[-1]) for name in tags}
    assert {"Eval/Baseline/val_clip_sim_mean", "Reference/val_neighbor_average", "Eval/SSIM/val"} <= recorded.keys()
    assert got["metrics"] == pytest.approx(recorded, abs=1e-4)
    stored = json.loads((run / "products" / "eval-6" / "metrics.json").read_text())
    assert stored["metrics"] == got["metrics"]
    patches = rows(got["files"]["all_patches_detailed"])
    train = [float(row["psnr"]) for row in patches if row["split"] == "train"]
    assert sum(train) / len(train) == pytest.approx(got["metrics"]["Eval/Frame/train_psnr"], abs=1e-3)


def test_a_checkpoint_from_the_warm_up_has_no_semantic_report(run, answer, tmp_path):
    got = answer("eval", run, "--checkpoint", 3, "--out", tmp_path / "here", "--positions-frames", 0)
    assert got["step"] == 3
    assert got["embeddings"] is None
    assert not any(name.startswith(("embedding", "fractional")) for name in got["files"])
    assert not any("clip_sim" in name for name in got["metrics"] if not name.startswith("Eval/Baseline"))
    assert all(path.startswith(str(tmp_path / "here")) for path in got["files"].values())
    assert not (run / "products").exists()


def test_a_network_that_encodes_frames_is_scored_too(trained_hnerv, answer, tmp_path):
    got = answer("eval", trained_hnerv, "--out", tmp_path / "out", "--positions-frames", 1)
    assert len(rows(got["files"]["fractional_positions_detailed"])) == 9
    assert got["metrics"]["Eval/Pooled/val_psnr"] > 5


def test_places_between_the_patches_are_shown_for_networks_that_draw_patches(train, trained, fieldwatch, tmp_path):
    patches = train("--model", "dual", "--fc-dim", "8", "--lower-width", "4", "--epochs", "1", "--batch", "12")
    _, out, _ = fieldwatch("eval", patches, "--out", tmp_path / "patches")
    assert "untrained_corner: " in out
    assert "the patch centers" in out
    _, out, _ = fieldwatch("eval", trained, "--out", tmp_path / "frames", "--positions-frames", 1)
    assert "untrained_corner" not in out


def test_bad_input_is_named_and_nothing_is_written(run, refused):
    before = sorted(run.rglob("*"))
    assert "checkpoint of step 99" in (message := refused("eval", run, "--checkpoint", 99))
    assert "[3, 6]" in message
    assert "--checkpoint 'newest' is" in refused("eval", run, "--checkpoint", "newest")
    assert "holds no run" in refused("eval", run / "nowhere")
    assert "--positions-frames -1" in refused("eval", run, "--positions-frames", -1)
    assert sorted(run.rglob("*")) == before


def test_a_damaged_checkpoint_is_named_with_the_others(run, refused):
    path = run / "checkpoints" / "step_0000000006" / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    message = refused("eval", run, "--checkpoint", "last")
    assert "step_0000000006 is damaged" in message
    assert "other steps are [3]" in message
    assert not (run / "products").exists()


def test_without_a_ranked_checkpoint_the_way_out_is_named(run, refused):
    for path in (run / "checkpoints").iterdir():
        if path.name.endswith("6"):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    assert "use --checkpoint last" in refused("eval", run)


def test_a_checkpoint_of_another_network_is_refused(run, refused):
    path = run / "run.json"
    manifest = json.loads(path.read_text())
    manifest["config"]["options"]["grid_widths"] = [8, 8, 12]
    del manifest["sha256"]
    path.write_text(json.dumps(manifest))
    assert re.search(rf"step_\d+ .*not match .*network of {re.escape(str(path))}", refused("eval", run))


def test_a_folder_that_cannot_be_written_is_refused(run, refused):
    (run / "taken").write_text("")
    assert "taken" in refused("eval", run, "--out", run / "taken")


def test_help_shows_an_example(fieldwatch):
    code, out, _ = fieldwatch("eval", "--help")
    assert code == 0
    assert "Example: fieldwatch eval" in out
