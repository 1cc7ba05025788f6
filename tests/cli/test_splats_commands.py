"""eval, export, health and resume on a run of splats: each finds what the run's pipeline offers."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from fieldwatch import Checkpoints, read_history
from fieldwatch.recon.data import open_splat_folder, read_gaussian_ply, read_gaussians

STEPS = 30


def change_manifest(folder, **changes):
    path = folder / "run.json"
    stored = json.loads(path.read_text())
    stored.pop("sha256", None)  # else the change would count as damage
    path.write_text(json.dumps(stored | changes))


def test_eval_gives_the_metrics_of_the_training_and_writes_tables_and_pictures(splats, answer):
    got = answer("eval", splats, "--checkpoint", "last", "--device", "cpu")
    history = read_history(splats)
    for tag in ("Test/psnr", "Test/ssim", "Test/l1", "Test/train_psnr"):
        assert got["metrics"][tag] == pytest.approx(float(history[tag].values[-1]), abs=1e-4)
    assert got["step"] == STEPS
    assert got["training"]["Test/psnr"] == pytest.approx(got["metrics"]["Test/train_psnr"], abs=1e-3)
    files = {name: Path(path) for name, path in got["files"].items()}
    with files["per photo"].open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2
    with files["per training photo"].open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4
    assert json.loads(files["metrics"].read_text())["metrics"] == got["metrics"]
    for name in ("worst views", "depth and normals"):
        Image.open(files[name]).load()
    assert len(list(files["renders"].iterdir())) == 2


def test_eval_shows_training_photos_beside_those_held_out(splats, fieldwatch, tmp_path):
    code, out, _ = fieldwatch("eval", splats, "--out", tmp_path / "here", "--device", "cpu")
    assert code == 0
    assert "2 photos held out" in " ".join(out.split())
    assert str(tmp_path / "here" / "worst_views.png") in out
    assert not any("eval" in path.name for path in (splats / "products").iterdir())


def test_eval_refuses_flags_of_videos_and_unknown_checkpoints(splats, refused):
    assert "--positions-frames 3: " in refused("eval", splats, "--positions-frames", 3)
    assert "checkpoint of step 7" in refused("eval", splats, "--checkpoint", 7)


def test_export_writes_gaussians_for_viewers(splats, answer):
    got = answer("export", splats, "--to", "ply", "--checkpoint", "last", "--device", "cpu")
    path = splats / "products" / f"splats-{STEPS}.ply"
    assert (got["file"], got["bytes"]) == (str(path.absolute()), path.stat().st_size)
    stored = Checkpoints(splats / "checkpoints").read(STEPS)["gaussians"]
    assert torch.equal(read_gaussian_ply(path).means, stored["means"])
    assert got["gaussians"] == len(stored["means"])
    assert got["iteration"] == 15_000


@pytest.mark.parametrize(("to", "name"), [("compressed-ply", "compressed.ply"), ("spz", "spz"), ("splat", "splat")])
def test_export_writes_compressed_gaussians_with_their_loss(splats, answer, to, name):
    got = answer("export", splats, "--to", to, "--checkpoint", "last", "--device", "cpu")
    path = splats / "products" / f"splats-{STEPS}.{name}"
    assert (got["file"], got["bytes"]) == (str(path.absolute()), path.stat().st_size)
    assert len(read_gaussians(path)) == got["gaussians"]
    assert {"positions", "colors", "opacity", "scales", "rotations"} <= set(got["losses"])
    assert 0 < got["losses"]["colors"]["mean"] <= got["losses"]["colors"]["worst"] < 0.004


def test_export_prints_the_loss_of_a_format(splats, fieldwatch, tmp_path):
    words = ("--to", "splat", "-o", tmp_path / "a.splat", "--checkpoint", "last", "--device", "cpu")
    code, out, _ = fieldwatch("export", splats, *words)
    assert code == 0
    assert all(word in out for word in ("positions", "rotations", "degrees", "worst", "mean"))


def test_export_writes_a_folder_that_training_can_go_on_from(splats, fieldwatch, tmp_path):
    folder = tmp_path / "new folder"
    code, out, _ = fieldwatch("export", splats, "--to", "3dgs", "-o", folder, "--checkpoint", "last", "--device", "cpu")
    assert code == 0
    opened = open_splat_folder(folder)
    assert (opened.iterations, len(opened.cameras)) == ((15_000,), 6)
    assert f"fieldwatch train splats -c '{folder}' -i 15000" in out


def test_export_writes_the_checkpoint_of_the_original(splats, answer, tmp_path):
    answer("export", splats, "--to", "pt", "-o", tmp_path / "x.pt", "--checkpoint", "last", "--device", "cpu")
    content = torch.load(tmp_path / "x.pt", weights_only=True)
    assert content["iteration"] == 15_000
    assert content["state_dict"]["_sh_coordinates_rest"].shape[1:] == (15, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "bitstream"), "a run of splats: use --to ply or --to compressed-ply or --to spz"),
        (("--to", "ply", "--bits", "4"), "--bits 4: it applies to runs of video"),
        (("--to", "ply", "-o", "."), ". is a folder: give a file"),
        (("--to", "3dgs", "-o", __file__), "is a file, but --to 3dgs writes a folder"),
        (("--to", "ply", "--checkpoint", "12"), "there is no checkpoint of step 12"),
    ],
)
def test_export_names_bad_input(splats, refused, words, message):
    assert message in refused("export", splats, *words)


def test_export_of_a_video_knows_no_gaussians(run, refused):
    assert "use --to bitstream" in refused("export", run, "--to", "ply")


def test_health_examines_by_the_rules_of_splats(splats, fieldwatch):
    code, out, _ = fieldwatch("health", splats)
    assert code in (0, 1)
    assert "finished" in out


def test_a_finished_run_is_left_alone(splats, fieldwatch):
    before = {path: path.read_bytes() for path in splats.rglob("*") if path.is_file()}
    code, out, _ = fieldwatch("resume", splats)
    assert code in (0, 1)
    flat = " ".join(out.split())
    assert "larger --coarse-iterations" in flat
    assert "PSNR (dB)" in flat
    assert {path: path.read_bytes() for path in splats.rglob("*") if path.is_file()} == before


def test_a_killed_run_ends_with_the_very_gaussians_of_one_that_was_not(splats, trained_splats, fieldwatch):
    kept = sorted(Checkpoints(splats / "checkpoints").steps())
    for step in kept[1:]:
        shutil.rmtree(splats / "checkpoints" / f"step_{step:010d}")
    assert kept[0] < STEPS
    change_manifest(splats, state="running")
    code, out, message = fieldwatch("resume", splats)
    assert code in (0, 1), message
    assert str(splats.absolute() / "products" / "point_cloud.ply") in out
    ended, wanted = (
        Checkpoints(folder / "checkpoints").read(STEPS)["gaussians"] for folder in (splats, trained_splats)
    )
    assert all(torch.equal(ended[name], wanted[name]) for name in ("means", "opacity_logits", "constant"))


def test_a_damaged_config_is_refused(splats, refused):
    change_manifest(splats, config={"color": "red"})
    assert "splats config" in refused("resume", splats)
    assert "splats config" in refused("eval", splats)
