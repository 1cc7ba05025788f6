from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.data import Clip, PatchGrid, synthetic_clip
from fieldwatch.recon.pipelines.video.config import VideoConfig
from fieldwatch.recon.pipelines.video.descriptor import ImageDescriptor
from fieldwatch.recon.pipelines.video.split import split_frames
from fieldwatch.recon.pipelines.video.start import make_stand_ins, prepare_scene, semantic_notes

CPU = torch.device("cpu")


def stand_ins(frames, motion="straight"):
    clip = Clip.of(frames, source="test")
    grid = PatchGrid(2, 2, clip.height, clip.width)
    return make_stand_ins(clip, split_frames(len(clip), "3_3_4"), grid, ImageDescriptor(), CPU, motion=motion)


@pytest.mark.parametrize("motion", ["straight", "curved"])
def test_the_stand_ins_that_training_draws_never_see_a_held_out_frame(motion):
    frames = synthetic_clip(frames=8, height=48, width=64).frames
    spoiled = frames.clone()
    spoiled[[3, 7]] = 255 - spoiled[[3, 7]]
    one = stand_ins(frames, motion)
    other = stand_ins(spoiled, motion)
    assert list(one.row_of) == [3, 7]
    assert torch.equal(one.frames, other.frames)
    assert torch.equal(one.targets, other.targets)


def test_negative_control_they_do_see_the_training_frames():
    frames = synthetic_clip(frames=8, height=48, width=64).frames
    spoiled = frames.clone()
    spoiled[2] = 255 - spoiled[2]
    assert not torch.equal(stand_ins(frames).frames[0], stand_ins(spoiled).frames[0])


def test_the_setting_chooses_the_motion(tmp_path):
    config = VideoConfig(teacher="descriptor", between_weight=1.0, data_split="7_7_8", device="cpu", cache=tmp_path)
    straight = prepare_scene(config).stand_ins
    curved = prepare_scene(replace(config, between_motion="curved")).stand_ins
    assert straight is not None
    assert curved is not None
    assert straight.row_of == curved.row_of
    assert not torch.equal(straight.frames, curved.frames)


def test_after_the_last_training_frame_that_frame_is_held():
    frames = synthetic_clip(frames=8, height=48, width=64).frames
    assert torch.equal(stand_ins(frames).frames[1], frames[6])


def test_without_gaps_there_is_none():
    clip = synthetic_clip(frames=4, height=48, width=64)
    grid = PatchGrid(2, 2, clip.height, clip.width)
    assert make_stand_ins(clip, split_frames(4, "1_1_1"), grid, ImageDescriptor(), CPU) is None


@pytest.mark.parametrize(
    ("settings", "noted"),
    [
        ({"epochs": 20, "pixel_loss_warmup_epochs": 20}, True),
        ({"epochs": 21, "pixel_loss_warmup_epochs": 20}, False),
        ({"epochs": 20, "pixel_loss_warmup_epochs": 20, "clip_loss_weight": 0.0}, False),
    ],
)
def test_a_run_that_ends_before_the_semantic_term_starts_says_so(settings, noted):
    notes = semantic_notes(VideoConfig(**settings))
    assert [("--pixel-loss-warmup-epochs" in note, "--epochs" in note) for note in notes] == noted * [(True, True)]
