"""fieldwatch compare --checkpoints: the ranking, its files, one message per bad input."""

import csv
import json
import math

import pytest
from PIL import Image

from fieldwatch.cli.compare_checkpoints import CheckpointRow
from fieldwatch.recon.commands.normals.rank import CHAMFER, IOU, MAE, MAE_HELD_OUT, by_ratios


@pytest.fixture(autouse=True)
def coarse_truth(monkeypatch):
    """Fewer cells and points than figures that are to be believed need."""
    monkeypatch.setattr("fieldwatch.recon.pipelines.normals.start.TRUTH_CELLS", 48)
    monkeypatch.setattr("fieldwatch.recon.pipelines.normals.evaluate.SAMPLES", 2000)


def test_checkpoints_are_ranked_by_mesh_and_normals(normals_run, answer):
    got = answer("compare", "--checkpoints", normals_run, "--device", "cpu")
    assert [row["step"] for row in got["checkpoints"]] == [9, 4]
    first, second = got["checkpoints"]
    assert (first["iteration"], second["iteration"]) == (27_000, 12_000)
    assert first["score"] == pytest.approx(1)
    ratios = [second[name] / first[name] for name in ("mae_held_out", "chamfer_percent")]
    assert second["score"] == pytest.approx(math.sqrt(math.prod(ratios)))
    assert got["best"] == 9
    assert "--checkpoint 9" in got["advice"]
    assert got["ranked_by"].split(" and ") == ["MAE held out", "Chamfer %"]
    folder = normals_run / "products" / "compare"
    with (folder / "checkpoints.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [9, 4]
    assert json.loads((folder / "checkpoints.json").read_text())["checkpoints"] == got["checkpoints"]
    with Image.open(folder / "checkpoints.png") as picture:
        assert picture.height > 4 * 100


def test_a_damaged_checkpoint_is_left_out_and_told(normals_run, fieldwatch):
    tensors = (
        next(path for path in (normals_run / "checkpoints").iterdir() if path.name.endswith("04"))
        / "tensors.safetensors"
    )
    data = bytearray(tensors.read_bytes())
    data[len(data) // 2] ^= 0xFF
    tensors.write_bytes(bytes(data))
    code, out, _ = fieldwatch("compare", "--checkpoints", normals_run, "--device", "cpu", "--resolution", 16)
    assert code == 1
    assert "step 4 was left out" in out
    assert "use --checkpoint 9" in out


def test_splats_are_ranked_by_psnr(splats, answer):
    got = answer("compare", "--checkpoints", splats, "--device", "cpu")
    assert got["ranked_by"].split(" of the ") == ["PSNR", "held-out photos"]
    psnr = [row["psnr"] for row in got["checkpoints"]]
    assert psnr == sorted(psnr, reverse=True)
    assert got["checkpoints"][0]["score"] == 0


def row(step, mae=None, held_out=None, chamfer=None):
    return CheckpointRow(
        step=step, iteration=10 * step, figures={MAE: mae, MAE_HELD_OUT: held_out, CHAMFER: chamfer, IOU: None}
    )


def test_without_truth_or_held_out_views_the_training_error_ranks():
    found = by_ratios([row(1, mae=4.0), row(2, mae=2.0), row(3, mae=3.0)], {}, {})
    assert [each.step for each in found.rows] == [2, 3, 1]
    assert [each.score for each in found.rows] == pytest.approx([1, 1.5, 2])
    assert found.ranked_by == MAE


def test_what_shows_no_surface_comes_last_and_of_equals_the_later_is_first():
    found = by_ratios([row(1, 2.0, 3.0, 0.1), row(2, 2.0, 3.0, 0.1), row(3, 1.0, None, None)], {}, {})
    assert [each.step for each in found.rows] == [2, 1, 3]
    assert found.rows[-1].score == math.inf


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{run}", "--checkpoints with one run"),
        ("--checkpoints {run} {run}", "expects one run, got 2"),
        ("", "expected two or more run folders"),
        ("{run} {run} --resolution 64", "needs --checkpoints"),
        ("--checkpoints {run} --resolution 4", "got 4"),
        ("--checkpoints {run}/nothing", "nothing"),
    ],
)
def test_bad_input_is_one_message(trained_normals, refused, words, message):
    assert message in refused("compare", *words.format(run=trained_normals).split())
