import csv
import math

import pytest
import torch

from fieldwatch.recon.pipelines.video.models import ModelOptions, Prediction, VideoGeometry, build_model
from fieldwatch.recon.pipelines.video.study import (
    StudiedModel,
    category_summary,
    pooled_psnr,
    positions,
    score_patches,
    score_positions,
    write_csv,
    write_patch_study,
    write_position_study,
)

GEOMETRY = VideoGeometry(frames=5, height=32, width=64)
SPLITS = ("train", "train", "unused", "train", "val")
CLIP = torch.rand(5, 3, 32, 64, generator=torch.Generator().manual_seed(0))
TARGETS = torch.nn.functional.normalize(torch.randn(5, 8, 16, generator=torch.Generator().manual_seed(1)), dim=-1)


def truth(query):
    """A frame model with a known error: 0.01 in every pixel of the left half, 0.1 in the right half."""
    index = (query.t * 5).round().long()
    error = torch.full((64,), 0.1)
    error[:32] = 0.01
    return Prediction(rgb=CLIP[index] + error, embedding=TARGETS[index])


def patchwise(query):
    """A patch model that returns the ground truth at trained centers and mid-gray elsewhere."""
    rows = ((query.y * 2 - 0.5).round().long(), (query.x * 4 - 0.5).round().long())
    known = ((query.y * 2 - 0.5) == rows[0]) & ((query.x * 4 - 0.5) == rows[1])
    index = (query.t * 5).round().long()
    windows = []
    for f, r, c, k in zip(index, *rows, known, strict=True):
        patch = CLIP[f, :, 16 * r : 16 * r + 16, 16 * c : 16 * c + 16] if k else torch.full((3, 16, 16), 0.5)
        windows.append(patch + 0.01)
    embedding = torch.zeros(len(index), 1, 16)
    embedding[:, 0] = TARGETS[index, (4 * rows[0] + rows[1]).clamp(0, 7)]
    return Prediction(rgb=torch.stack(windows), embedding=embedding)


def subject(draw=truth, unit="frame", targets=TARGETS, splits=SPLITS):
    return StudiedModel(draw=draw, unit=unit, geometry=GEOMETRY, frame=CLIP.__getitem__, splits=splits, targets=targets)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_two_by_four_patches_have_21_positions():
    found = positions(GEOMETRY)
    counts = {}
    for position in found:
        counts[position.category] = counts.get(position.category, 0) + 1
    assert counts == {"trained_center": 8, "untrained_middle_h": 6, "untrained_middle_v": 4, "untrained_corner": 3}
    assert (found[0].norm_x, found[0].norm_y, found[0].position_type) == (0.125, 0.25, "center_0_0")
    by_type = {position.position_type: (position.norm_x, position.norm_y) for position in found}
    assert by_type["mid_h_1_2"] == (0.75, 0.75)
    assert by_type["mid_v_0_3"] == (0.875, 0.5)
    assert by_type["corner_0_1"] == (0.5, 0.5)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (4, 1)])
def test_any_grid(rows, columns):
    geometry = VideoGeometry(frames=1, height=33, width=67, rows=rows, columns=columns)
    assert len(positions(geometry)) == (2 * rows - 1) * (2 * columns - 1)


def test_patches_are_scored_against_their_own_pixels():
    scores = score_patches(subject())
    assert [(score.frame_idx, score.patch_idx) for score in scores] == [(f, p) for f in (0, 1, 3, 4) for p in range(8)]
    for score in scores:
        assert score.psnr == pytest.approx(40 if score.patch_idx % 4 < 2 else 20, abs=0.01)
        assert score.clip_similarity == pytest.approx(1)
        assert score.split == SPLITS[score.frame_idx]


def test_patch_and_frame_models_are_scored_alike():
    for score in score_patches(subject(patchwise, "patch")):
        assert score.psnr == pytest.approx(40, abs=0.01)
        assert score.clip_similarity == pytest.approx(1)


def test_files_of_the_patch_study(tmp_path):
    summary = write_patch_study(tmp_path, score_patches(subject()))
    patches = read(tmp_path / "all_patches_detailed.csv")
    frames = read(tmp_path / "per_frame_stats.csv")
    assert list(patches[0]) == ["frame_idx", "patch_idx", "psnr", "ssim", "clip_similarity", "split"]
    assert len(patches) == 32
    assert [row["frame_idx"] for row in frames] == ["0", "1", "3", "4"]
    assert frames[-1]["split"] == "val"
    assert float(frames[0]["mean_psnr"]) == pytest.approx(30, abs=0.01)
    assert float(frames[0]["std_psnr"]) == pytest.approx(10 * math.sqrt(8 / 7), abs=0.01)
    pooled = -10 * math.log10((0.01**2 + 0.1**2) / 2)
    assert float(frames[0]["pooled_psnr"]) == pytest.approx(pooled, abs=0.01)
    (row,) = read(tmp_path / "summary_stats.csv")
    assert (row["train_patches"], row["val_patches"]) == ("24", "8")
    assert float(row["val_pooled_psnr"]) == pytest.approx(summary["overall_pooled_psnr"], abs=0.01)
    assert summary["overall_psnr"] > summary["overall_pooled_psnr"] + 5  # mean of dB flatters


def test_an_empty_val_set_is_empty_not_zero(tmp_path):
    summary = write_patch_study(tmp_path, score_patches(subject(splits=("train",) * 5)))
    assert summary["val_psnr"] is None
    assert summary["val_patches"] == 0
    assert read(tmp_path / "summary_stats.csv")[0]["val_psnr"] == ""


def test_without_targets_there_is_no_clip_column_value(tmp_path):
    write_patch_study(tmp_path, score_patches(subject(targets=None)))
    assert {row["clip_similarity"] for row in read(tmp_path / "all_patches_detailed.csv")} == {""}
    assert read(tmp_path / "per_frame_stats.csv")[0]["mean_clip_similarity"] == ""


def test_a_model_that_only_knows_its_centers_is_found_out(tmp_path):
    rows = write_position_study(tmp_path, score_positions(subject(patchwise, "patch"), [0, 4]))
    everything = {row["category"]: row for row in rows if row["split"] == "all"}
    assert everything["trained_center"]["PSNR_drop"] == 0
    assert everything["untrained_corner"]["PSNR_drop"] > 20
    assert everything["untrained_middle_h"]["count"] == 12
    assert {row["split"] for row in rows} == {"all", "train", "val"}
    detailed = read(tmp_path / "fractional_positions_detailed.csv")
    assert len(detailed) == 42
    assert list(detailed[0])[:5] == ["frame_idx", "norm_x", "norm_y", "position_type", "category"]
    assert len(read(tmp_path / "fractional_positions_summary.csv")) == 12


def test_windows_of_a_frame_model_are_cut_from_its_frame():
    scores = score_positions(subject(), [0])
    by_type = {score.position_type: score.psnr for score in scores}
    assert by_type["mid_h_0_0"] == pytest.approx(40, abs=0.01)
    both = -10 * math.log10((0.01**2 + 0.1**2) / 2)
    assert by_type["corner_0_1"] == pytest.approx(both, abs=0.01)


def test_a_single_patch_has_centers_only():
    geometry = VideoGeometry(frames=5, height=32, width=64, rows=1, columns=1)
    only = StudiedModel(draw=truth, unit="frame", geometry=geometry, frame=CLIP.__getitem__, splits=SPLITS)
    assert {row["category"] for row in category_summary(score_positions(only, [0]))} == {"trained_center"}


@pytest.mark.parametrize("name", ["grid", "dual"])
def test_real_models_are_studied(name, tmp_path):
    model = build_model(name, GEOMETRY, ModelOptions(fc_dim=8, clip_dim=16, lower_width=8, embed="pe_1.25_8"))
    real = subject(model, model.unit)
    assert len(write_position_study(tmp_path, score_positions(real, [0]))) == 8
    assert write_patch_study(tmp_path, score_patches(real))["overall_psnr"] > 0


def test_pooled_psnr_is_the_psnr_of_the_mean_error():
    assert pooled_psnr([20.0, 20.0]) == pytest.approx(20)
    assert pooled_psnr([10.0, 90.0]) == pytest.approx(10 + 10 * math.log10(2), abs=0.01)


def test_parts_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"one split .*5 frames, got 4"):
        subject(splits=SPLITS[:4])
    with pytest.raises(ValueError, match=r"expected targets for \(5, 8\) frames.*got \(5, 6\)"):
        subject(targets=TARGETS[:, :6])
    with pytest.raises(ValueError, match=r"frames of shape \(3, 32, 64\), got \(3, 32, 32\)"):
        StudiedModel(draw=truth, unit="frame", geometry=GEOMETRY, frame=CLIP[..., :32].__getitem__, splits=SPLITS)


def test_nothing_to_write_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"x\.csv: no frame"):
        write_csv(tmp_path / "x.csv", [])
