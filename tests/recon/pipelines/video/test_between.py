"""Interpolated targets: which frames they stand for, and what they are made from."""

import pytest
import torch

from fieldwatch.recon.pipelines.video.between import FARTHEST, interpolated_targets

SIZE = 64
MOTIONS = ("straight", "curved")


@pytest.fixture
def sliding(view):
    """Return a function from positions to the frames of a window there."""
    return lambda positions: torch.stack([view(position) for position in positions])


def inner(picture):
    return picture[..., 8:-8, 8:-8]


def error(found, truth):
    return (found - truth).square().mean()


def targets(video, train, motion):
    found = interpolated_targets(video, train, motion=motion)
    return dict(zip(found.indices, found.frames, strict=True))


@pytest.mark.parametrize("motion", MOTIONS)
def test_targets_stand_for_the_frames_that_are_not_trained_on(sliding, motion):
    video = sliding([2 * i for i in range(6)])
    found = interpolated_targets(video, [4, 0, 1, 3], motion=motion)
    assert found.indices == (2, 5)
    assert found.frames.shape == (2, 3, SIZE, SIZE)
    assert inner(found.frames[0] - video[2]).abs().mean() < 0.02


@pytest.mark.parametrize("motion", MOTIONS)
def test_held_out_frames_are_never_read(sliding, motion):
    video = sliding([2 * i for i in range(8)])
    spoiled = video.clone()
    spoiled[[2, 4, 7]] = torch.nan
    kept = [0, 1, 3, 5, 6]
    found = interpolated_targets(spoiled, kept, motion=motion).frames
    assert torch.equal(interpolated_targets(video, kept, motion=motion).frames, found)
    assert found.isfinite().all()


@pytest.mark.parametrize("motion", MOTIONS)
def test_nothing_held_out_gives_no_targets(sliding, motion):
    found = interpolated_targets(sliding(range(3)), range(3), motion=motion)
    assert found.indices == ()
    assert found.frames.shape == (0, 3, SIZE, SIZE)


@pytest.mark.parametrize("train", [[], [-1, 2], [0, 6]])
def test_training_frames_that_are_not_there_are_refused(sliding, train):
    with pytest.raises(ValueError, match=r"frame index in \[0, 6\), got \["):
        interpolated_targets(sliding(range(6)), train)


def test_straight_motion_ends_with_the_last_training_frame(sliding):
    video = sliding([2 * i for i in range(5)])
    assert torch.equal(targets(video, [0, 1, 2, 3], "straight")[4], video[3])


@pytest.mark.parametrize(("train", "gap", "copied"), [([0, 1, 2, 3], 4, 3), ([1, 2, 3, 4], 0, 1)])
def test_curved_motion_goes_on_past_the_ends(sliding, train, gap, copied):
    video = sliding([3 * i for i in range(5)])
    found = targets(video, train, "curved")[gap]
    assert error(found, video[gap]) < 0.1 * error(video[copied], video[gap])


def test_a_motion_that_did_not_go_on_before_is_not_continued(sliding):
    video = sliding([0, 4, 0, 4, 0])
    assert torch.equal(targets(video, [0, 1, 2, 3], "curved")[4], video[3])


def test_a_cut_beyond_the_neighbors_is_no_harm(sliding):
    video = sliding([2 * i for i in range(7)])
    video[:2] = 1 - video[:2].flip(-1)
    kept = [0, 1, 2, 4, 5, 6]
    blend = (video[2] + video[4]) / 2
    assert error(targets(video, kept, "curved")[3], video[3]) < 0.1 * error(blend, video[3])


def test_far_from_all_training_frames_the_nearest_is_kept(sliding):
    video = sliding([2 * i for i in range(9)])
    found = targets(video, [0, 1, 2, 3], "curved")
    farthest = 3 + int(FARTHEST)
    assert not torch.equal(found[farthest], video[3])
    assert torch.equal(found[farthest + 1], video[3])


@pytest.mark.parametrize("train", [[2], [2, 3]])
def test_too_few_training_frames_to_check_a_motion_are_copied(sliding, train):
    video = sliding([2 * i for i in range(5)])
    found = targets(video, train, "curved")
    assert torch.equal(found[0], video[2])
    assert torch.equal(found[4], video[train[-1]])


def test_between_two_frames_alone_both_motions_move_the_picture(sliding):
    video = sliding([0, 2, 4])
    blend = (video[0] + video[2]) / 2
    for motion in MOTIONS:
        found = targets(video, [0, 2], motion)[1]
        assert error(inner(found), inner(video[1])) < 0.1 * error(inner(blend), inner(video[1]))
