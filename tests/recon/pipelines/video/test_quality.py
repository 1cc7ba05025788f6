"""Evaluation under the tags of the dual-head HNeRV code, without and with held-out frames; references."""

import numpy as np
import pytest
import torch

from fieldwatch.recon.data import PatchGrid, read_clip, synthetic_clip
from fieldwatch.recon.losses import ms_ssim, ssim
from fieldwatch.recon.pipelines.video.baselines import embedding_baselines, reference_psnr
from fieldwatch.recon.pipelines.video.quality import (
    SetScores,
    evaluation_histograms,
    evaluation_metrics,
    further_metrics,
    psnr,
    psnr_from_mse,
    score_frame,
)
from fieldwatch.recon.pipelines.video.split import split_frames
from fieldwatch.recon.pipelines.video.tags import DUAL_HEAD_METRICS, EVALUATION, FURTHER_METRICS, VIDEO_METRICS


def scores(shift=0.0):
    patch_psnr = np.array([[30.0, 32.0], [20.0, 24.0], [40.0, 40.0]]) + shift
    cosines = np.array([[0.9, 1.0], [0.8, 0.6], [0.7, 0.8]]) - shift / 100
    return SetScores(
        patch_psnr=patch_psnr,
        frame_mse=(10 ** (-patch_psnr / 10)).mean(1),
        patch_cosine=cosines,
        ssim=np.array([0.9, 0.8, 1.0]),
        ms_ssim=np.array([0.95, 0.9, 1.0]),
    )


def test_psnr_is_the_originals():
    assert psnr_from_mse(torch.tensor(0.01)).item() == pytest.approx(20, abs=1e-4)
    assert psnr_from_mse(torch.tensor(0.0)).item() == pytest.approx(90)  # the cap
    a = torch.zeros(2, 3, 4, 4)
    b = torch.zeros(2, 3, 4, 4)
    b[1] = 1.5  # not clamped
    assert psnr(a, b).tolist() == pytest.approx([90, -10 * np.log10(2.25)], abs=1e-4)


def test_values_by_hand():
    metrics = evaluation_metrics(scores(), scores(-3.0))
    frames = np.array([31.0, 22.0, 40.0])
    assert metrics["Eval/Frame/train_psnr"] == pytest.approx(31)
    assert metrics["Eval/PSNR_Stats/train_std"] == pytest.approx(frames.std())  # population
    assert metrics["Eval/PSNR_Stats/train_min"] == 22
    assert metrics["Eval/PSNR_Stats/train_max"] == 40
    assert metrics["Eval/Patch/train_psnr_std"] == pytest.approx(np.std([30, 32, 20, 24, 40, 40]))
    assert metrics["Eval/Frame/train_clip_sim"] == pytest.approx(0.8)
    assert metrics["Eval/Frame/train_clip_dist"] == pytest.approx(0.2)
    assert metrics["Eval/Gap/psnr_gap"] == pytest.approx(3)
    assert metrics["Eval/Gap/clip_sim_gap"] == pytest.approx(-0.03)
    assert metrics["Eval/Info/num_train_frames"] == 3
    assert metrics["Eval/Info/num_val_patches"] == 6


def test_the_tags_are_exactly_the_guides():
    metrics = evaluation_metrics(scores(), scores())
    histograms = evaluation_histograms(scores(), scores())
    assert set(metrics) | set(histograms) == {metric.name for metric in EVALUATION}
    assert {m.name for m in EVALUATION if m.kind == "histogram"} == set(histograms)
    assert len(EVALUATION) == 26
    assert len(DUAL_HEAD_METRICS) == 47


def test_nothing_held_out_writes_counts_and_nothing_else():
    metrics = evaluation_metrics(scores(), None)
    assert {tag for tag in metrics if "val_" in tag or "gap" in tag} == {
        "Eval/Info/num_val_frames",
        "Eval/Info/num_val_patches",
    }
    assert metrics["Eval/Info/num_val_frames"] == metrics["Eval/Info/num_val_patches"] == 0
    assert set(evaluation_histograms(scores(), None)) == {
        "Eval/Histogram/train_psnr_distribution",
        "Eval/Histogram/train_clip_sim_distribution",
    }
    assert all("/val" not in tag for tag in further_metrics(scores(), None))


def test_without_a_semantic_head_its_tags_are_absent():
    bare = SetScores(patch_psnr=np.full((2, 3), 30.0), frame_mse=np.full(2, 1e-3))
    metrics = evaluation_metrics(bare, bare) | evaluation_histograms(bare, bare) | further_metrics(bare, bare)
    assert not [tag for tag in metrics if "clip" in tag]
    assert "Eval/Gap/psnr_gap" in metrics
    assert set(further_metrics(bare, None)) == {"Eval/Pooled/train_psnr"}


def test_pooled_psnr_is_never_above_the_mean_of_patches():
    one = scores()
    assert (one.pooled_psnr <= one.frame_psnr + 1e-6).all()
    assert one.pooled_psnr[2] == pytest.approx(40, abs=1e-3)
    assert further_metrics(one, None)["Eval/Pooled/train_psnr"] == pytest.approx(one.pooled_psnr.mean())


def test_the_spread_of_similarity_is_that_of_the_frames():
    one = scores()
    metrics = further_metrics(one, None)
    assert metrics["Eval/CLIP_Stats/train_std"] == pytest.approx(one.frame_cosine.std())
    assert metrics["Eval/CLIP_Stats/train_min"] == one.frame_cosine.min()
    assert metrics["Eval/CLIP_Stats/train_max"] == one.frame_cosine.max()


def test_every_value_is_declared():
    tags = further_metrics(scores(), scores()) | evaluation_metrics(scores(), scores())
    assert all(VIDEO_METRICS.find(tag) for tag in tags)
    assert all(metric.meaning.endswith(".") for metric in (*DUAL_HEAD_METRICS, *FURTHER_METRICS))


def test_a_frame_is_scored_as_the_parts_say():
    grid = PatchGrid(2, 2, 49, 64)  # drops one row
    truth = torch.rand(1, 3, 49, 64)
    drawn = (truth + 0.05 * torch.randn(truth.shape)).clamp(0, 1)
    a = grid.split(drawn)
    b = grid.split(truth)
    embedding = torch.eye(4)
    target = torch.eye(4).roll(1, 0)
    target[0] = embedding[0]
    score = score_frame(a, b, grid, embedding=embedding, target=target)
    assert score.patch_psnr.tolist() == pytest.approx(psnr(a, b).tolist())
    assert score.mse.item() == pytest.approx((drawn - truth)[:, :, :48].square().mean().item(), rel=1e-5)
    assert score.ssim.item() == pytest.approx(ssim(drawn[:, :, :48], truth[:, :, :48]).item())
    assert score.ms_ssim.item() == pytest.approx(ms_ssim(drawn[:, :, :48], truth[:, :, :48]).item())
    assert score.patch_cosine.tolist() == [1, 0, 0, 0]
    gathered = SetScores.of([score, score])
    assert gathered.patch_psnr.shape == (2, 4)
    assert gathered.patch_psnr.dtype == np.float64


def test_tiny_frames_have_no_ms_ssim_and_frames_without_embedding_no_cosine():
    grid = PatchGrid(1, 2, 16, 32)
    patches = grid.split(torch.rand(1, 3, 16, 32))
    gathered = SetScores.of([score_frame(patches, patches, grid)])
    assert gathered.ms_ssim is None
    assert gathered.patch_cosine is None


def test_a_value_that_is_not_a_number_is_shown_as_such():
    grid = PatchGrid(1, 2, 16, 32)
    truth = grid.split(torch.rand(1, 3, 16, 32))
    drawn = truth.clone()
    drawn[1, 0, 0, 0] = float("nan")
    metrics = evaluation_metrics(SetScores.of([score_frame(drawn, truth, grid)]), None)
    assert np.isnan(metrics["Eval/Frame/train_psnr"])


def test_values_that_do_not_belong_together():
    with pytest.raises(ValueError, match=r"got \(0, 8\).*None"):
        SetScores(patch_psnr=np.zeros((0, 8)), frame_mse=np.zeros(0))
    with pytest.raises(ValueError, match=r"ssim .*frames as patch_psnr, 2, got 3"):
        SetScores(patch_psnr=np.zeros((2, 8)), frame_mse=np.zeros(2), ssim=np.zeros(3))


def test_the_references_of_the_bunny_clip(real_data):
    folder = real_data / "video_bunny"
    clip = read_clip(folder)
    split = split_frames(len(clip), "7_7_8")
    references = reference_psnr(clip, split.train, split.val)
    assert references["Reference/val_neighbor_average"] == pytest.approx(28.45, abs=0.005)
    assert references["Reference/val_copy_previous"] == pytest.approx(26.78, abs=0.005)
    assert references["Reference/val_mean_frame"] == pytest.approx(19.68, abs=0.005)
    assert all(VIDEO_METRICS.find(tag) for tag in references)


def test_references_by_hand_and_at_the_ends():
    clip = synthetic_clip(frames=4, height=16, width=32)
    first, second, _, last = clip.frames.float() / 255
    references = reference_psnr(clip, train=[0, 1], val=[3])
    expected = psnr(second[None], last[None]).item()  # nothing after: the one before stands for both
    assert references["Reference/val_neighbor_average"] == pytest.approx(expected)
    assert references["Reference/val_copy_previous"] == pytest.approx(expected)
    mean = psnr((first + second)[None] / 2, last[None]).item()
    assert references["Reference/val_mean_frame"] == pytest.approx(mean, abs=1e-4)
    assert references["Reference/train_copy_previous"] == pytest.approx(psnr(first[None], second[None]).item())
    alone = reference_psnr(clip, train=[2], val=[])
    assert set(alone) == {"Reference/train_mean_frame"}
    with pytest.raises(ValueError, match=r"references.*split"):
        reference_psnr(clip, train=[], val=[1])


def test_embedding_baselines_by_hand():
    targets = torch.nn.functional.normalize(torch.randn(3, 2, 5) + 1, dim=-1)
    values = embedding_baselines(targets, [0, 2], [1])
    seen = targets[[0, 2]].reshape(4, 5)
    mean = torch.nn.functional.normalize(seen.mean(0), dim=0)
    assert values["Eval/Baseline/train_clip_sim_mean"] == pytest.approx((seen @ mean).mean().item(), abs=1e-6)
    pairs = [float(seen[i] @ seen[j]) for i in range(4) for j in range(4) if i != j]
    assert values["Eval/Baseline/train_clip_sim_shuffled"] == pytest.approx(np.mean(pairs), abs=1e-6)
    assert values["Eval/Baseline/val_clip_sim_shuffled"] == pytest.approx(
        float(targets[1, 0] @ targets[1, 1]), abs=1e-6
    )
    assert all(VIDEO_METRICS.find(tag) for tag in values)
    assert not [tag for tag in embedding_baselines(targets, [0], []) if "/val" in tag]
