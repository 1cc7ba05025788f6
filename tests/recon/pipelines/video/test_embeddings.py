import json

import pytest
import torch
from PIL import Image
from torch.nn import functional

from fieldwatch.recon.pipelines.video.embeddings import draw_map, fit_map, map_notes, verify_embeddings

FRAMES = 16
PATCHES = 8
DIM = 32
SPLITS = tuple("val" if i % 8 == 7 else "train" for i in range(FRAMES))


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def clip_targets():
    """Return embeddings like those of a video: different positions, content that drifts over time."""
    place = noise(1, PATCHES, DIM, seed=0)
    drift = noise(FRAMES, PATCHES, DIM, seed=1).cumsum(0) * 0.25
    return functional.normalize(place + drift, dim=-1)


def held_out_noise(targets, amount):
    """Return predictions that are right on train frames and random on val frames."""
    wrong = torch.tensor([split == "val" for split in SPLITS])[:, None, None]
    return functional.normalize(targets + amount * wrong * noise(FRAMES, PATCHES, DIM, seed=5), dim=-1)


def test_a_perfect_head_gets_all_points():
    report = verify_embeddings(clip_targets(), clip_targets(), SPLITS)
    assert report["score"] == {"cosine": 3, "diversity": 2, "temporal": 1, "train_val": 2, "total": 8, "of": 8}
    assert report["verdict"] == "good"
    assert report["cosine"]["val"]["min"] == pytest.approx(1)
    assert report["frames"] == {"overall": 16, "train": 14, "val": 2}
    assert report == json.loads(json.dumps(report))


def test_norms_do_not_matter():
    scaled = verify_embeddings(clip_targets() * 0.1, clip_targets() * 10, SPLITS)
    assert scaled["diversity"]["variance_ratio"] == pytest.approx(1, abs=1e-5)
    assert scaled["score"]["total"] == 8


def test_the_mean_embedding_is_not_mistaken_for_knowledge():
    targets = clip_targets() + 2  # a common direction: high cosine for anybody
    train = torch.tensor([split == "train" for split in SPLITS])
    lazy = targets[train].mean(0).expand_as(targets)
    report = verify_embeddings(lazy, targets, SPLITS)
    assert report["cosine"]["overall"]["mean"] > 0.9
    assert report["score"]["cosine"] == 3
    assert report["gain"]["overall"] == pytest.approx(0, abs=1e-3)
    assert report["verdict"].startswith("no better than")
    assert report["temporal"]["predicted"]["std"] == pytest.approx(0, abs=1e-6)


def test_guessing_on_held_out_frames_is_found_out():
    report = verify_embeddings(held_out_noise(clip_targets(), 0.2), clip_targets(), SPLITS)
    assert report["score"]["total"] >= 7  # the points alone would call it good
    assert report["gain"]["val"] < 0 < report["gain"]["overall"]
    assert report["verdict"].endswith("val frames")


def test_random_predictions_fail_and_match_the_random_baseline():
    report = verify_embeddings(noise(FRAMES, PATCHES, DIM, seed=9), clip_targets(), SPLITS)
    assert abs(report["cosine"]["overall"]["mean"]) < 0.1
    assert abs(report["baselines"]["random"]["overall"]) < 0.1
    assert report["score"]["cosine"] == 0
    assert report["verdict"].endswith("the mean embedding")


def test_baselines_are_ordered_as_they_know_more():
    baselines = verify_embeddings(clip_targets(), clip_targets(), SPLITS)["baselines"]
    overall = [baselines[name]["overall"] for name in ("random", "shuffled", "mean_embedding_of_the_place")]
    assert overall == sorted(overall)
    assert baselines["previous_frame"]["val"] > baselines["shuffled"]["val"]


def test_collapsed_predictions_lose_the_diversity_points():
    targets = clip_targets()
    shrunk = targets.mean((0, 1)) + 0.2 * targets
    report = verify_embeddings(shrunk, targets, SPLITS)
    assert report["diversity"]["variance_ratio"] < 0.5
    assert report["diversity"]["pairwise_distance_ratio"] < 0.8
    assert report["score"]["diversity"] == 0


def test_without_val_frames_six_points_are_to_be_had():
    report = verify_embeddings(clip_targets(), clip_targets(), ("train",) * FRAMES)
    assert report["score"]["of"] == 6
    assert report["cosine"]["val"] == {"mean": None, "std": None, "min": None, "max": None}
    assert report["gain"]["val"] is None
    assert report["verdict"] == "good"
    assert not any("val" in note for note in map_notes(report))


def test_one_frame_is_enough_for_a_report():
    targets = clip_targets()[:1]
    report = verify_embeddings(targets, targets, ("train",))
    assert report["temporal"]["predicted"]["mean"] is None
    assert report["score"]["temporal"] == 0


def test_unsound_input_is_refused():
    broken = clip_targets()
    broken[3, 2] = 0
    with pytest.raises(ValueError, match=r"predicted embeddings .* got 1 .*frame 3, patch 2"):
        verify_embeddings(broken, clip_targets(), SPLITS)
    broken[3, 2] = float("nan")
    with pytest.raises(ValueError, match=r"target embeddings .* got 1 .*frame 3, patch 2"):
        fit_map(clip_targets(), broken)
    with pytest.raises(ValueError, match=r"\(16, 8, 32\) predicted.*3 splits"):
        verify_embeddings(clip_targets(), clip_targets(), SPLITS[:3])
    with pytest.raises(ValueError, match=r"one train frame.*none"):
        verify_embeddings(clip_targets(), clip_targets(), ("val",) * FRAMES)


def test_both_sets_share_the_axes():
    targets = clip_targets()
    same = fit_map(targets, targets)
    assert torch.equal(same.predicted, same.targets)
    moved = fit_map(held_out_noise(targets, 0.5), targets)
    known = torch.tensor([split == "train" for split in SPLITS])
    torch.testing.assert_close(moved.predicted[known], moved.targets[known])
    assert not torch.allclose(moved.predicted[~known], moved.targets[~known], atol=0.01)
    assert 1 > moved.explained[0] >= moved.explained[1] > 0


def test_the_map_keeps_the_plane_of_largest_variance():
    flat = torch.zeros(FRAMES, PATCHES, DIM)
    angle = torch.linspace(0, 1, FRAMES * PATCHES).view(FRAMES, PATCHES)
    flat[..., 0] = angle.cos()
    flat[..., 1] = angle.sin()
    fitted = fit_map(flat, flat)
    assert sum(fitted.explained) == pytest.approx(1)
    distance = (fitted.targets[0, 0] - fitted.targets[-1, -1]).norm()
    assert float(distance) == pytest.approx(float((flat[0, 0] - flat[-1, -1]).norm()), rel=1e-4)


def test_the_map_is_drawn_with_every_set_in_its_color(tmp_path):
    targets = clip_targets()
    splits = (*SPLITS[:-2], "unused", "val")
    report = verify_embeddings(held_out_noise(targets, 0.3), targets, splits)
    fitted = fit_map(held_out_noise(targets, 0.3), targets)
    draw_map(fitted, splits, tmp_path / "map.png", notes=map_notes(report))
    with Image.open(tmp_path / "map.png") as image:
        assert image.size == (1200, 860)
        plot = image.crop((72, 72, 788, 788)).convert("RGB")
        colors = {color for _, color in plot.getcolors(1 << 20)}
    assert {(0x1F, 0x5F, 0xA8), (0xD1, 0x49, 0x0C), (0x8A, 0x8A, 0x8A)} <= colors


def test_a_map_of_one_point_is_drawn(tmp_path):
    same = torch.ones(1, 1, 4)
    draw_map(fit_map(same, same), ("train",), tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 0
