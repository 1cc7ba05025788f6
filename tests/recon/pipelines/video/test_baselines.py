import pytest
import torch
from torch.nn import functional

from fieldwatch.recon.data import Clip, read_clip
from fieldwatch.recon.pipelines.video.baselines import embedding_baselines, reference_psnr
from fieldwatch.recon.pipelines.video.split import split_frames


def levels(*values):
    """A clip of uniform gray frames."""
    return Clip.of(torch.stack([torch.full((3, 4, 4), value, dtype=torch.uint8) for value in values]), source="test")


def decibels(error):
    """Return the PSNR of a uniform error in 8-bit levels."""
    return -10 * torch.log10(torch.tensor((error / 255) ** 2 + 1e-9)).item()


def test_the_bunny_references(real_data):
    clip = read_clip(real_data / "video_bunny")
    split = split_frames(len(clip), "7_7_8")
    found = reference_psnr(clip, split.train, split.val)
    assert found["Reference/val_neighbor_average"] == pytest.approx(28.45, abs=0.005)
    assert found["Reference/val_copy_previous"] == pytest.approx(26.78, abs=0.005)
    assert found["Reference/val_mean_frame"] == pytest.approx(19.68, abs=0.005)
    assert {name.split("_")[0] for name in found} == {"Reference/train", "Reference/val"}
    assert len(found) == 6


def test_a_held_out_frame_between_two():
    found = reference_psnr(levels(0, 60, 100), [0, 2], [1])
    assert found["Reference/val_neighbor_average"] == pytest.approx(decibels(10), abs=1e-3)
    assert found["Reference/val_copy_previous"] == pytest.approx(decibels(60), abs=1e-3)
    assert found["Reference/val_mean_frame"] == pytest.approx(decibels(10), abs=1e-3)


def test_frames_at_the_ends_copy_the_only_neighbor():
    found = reference_psnr(levels(10, 40, 90), [1], [0, 2])
    for kind in ("neighbor_average", "copy_previous"):
        assert found[f"Reference/val_{kind}"] == pytest.approx((decibels(30) + decibels(50)) / 2, abs=1e-3)
    assert "Reference/train_copy_previous" not in found  # no other training frame to copy
    assert found["Reference/train_mean_frame"] == pytest.approx(90, abs=1e-3)


def test_a_training_frame_is_not_its_own_neighbor():
    found = reference_psnr(levels(0, 50, 0), [0, 1, 2], [])
    one = decibels(50)
    assert found["Reference/train_neighbor_average"] == pytest.approx(one, abs=1e-3)
    assert not [name for name in found if "/val_" in name]


def test_unused_frames_are_not_neighbors():
    found = reference_psnr(levels(0, 99, 20), [0], [2])
    assert found["Reference/val_copy_previous"] == pytest.approx(decibels(20), abs=1e-3)


def test_references_need_a_training_frame():
    with pytest.raises(ValueError, match=r"references.*split"):
        reference_psnr(levels(1, 2), [], [0])


def test_embedding_baselines_against_every_pair_by_hand():
    vectors = functional.normalize(torch.randn(4, 3, 5) + 1, dim=-1)
    found = embedding_baselines(vectors, [0, 1, 3], [2])
    train = vectors[[0, 1, 3]].flatten(0, 1).double()
    val = vectors[2].double()
    mean = functional.normalize(train.mean(0), dim=0)
    for name, rows in (("train", train), ("val", val)):
        pairs = [float(a @ b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
        assert found[f"Eval/Baseline/{name}_clip_sim_mean"] == pytest.approx(float((rows @ mean).mean()), abs=1e-6)
        assert found[f"Eval/Baseline/{name}_clip_sim_shuffled"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)


def test_patches_that_are_all_alike_are_at_one_and_random_ones_near_nought():
    alike = functional.normalize(torch.ones(3, 2, 8), dim=-1)
    assert list(embedding_baselines(alike, [0, 1], [2]).values()) == pytest.approx([1.0] * 4, abs=1e-6)
    spread = functional.normalize(torch.randn(40, 8, 512), dim=-1)
    assert abs(embedding_baselines(spread, range(35), range(35, 40))["Eval/Baseline/val_clip_sim_shuffled"]) < 0.02


def test_an_empty_set_has_no_baseline_and_a_single_patch_no_pair():
    vectors = functional.normalize(torch.randn(3, 1, 8), dim=-1)
    assert set(embedding_baselines(vectors, [0, 1, 2], [])) == {
        "Eval/Baseline/train_clip_sim_mean",
        "Eval/Baseline/train_clip_sim_shuffled",
    }
    assert "Eval/Baseline/val_clip_sim_shuffled" not in embedding_baselines(vectors, [0, 1], [2])
