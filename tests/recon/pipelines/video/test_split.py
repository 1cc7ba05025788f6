"""The a_b_c rule as implemented originally, and splits that hold nothing out."""

import random
import re

import pytest

from fieldwatch.recon.pipelines.video.split import parse_split, split_frames


@pytest.mark.parametrize(
    ("rule", "train", "unused", "val"),
    [  # percent, as in the table of the specification
        ("1_1_1", 100, 0, 0),
        ("9_10_10", 90, 10, 0),
        ("9_9_10", 90, 0, 10),
        ("8_9_10", 80, 10, 10),
        ("6_6_10", 60, 0, 40),
        ("7_7_10", 70, 0, 30),
        ("8_8_10", 80, 0, 20),
        ("4_5_5", 80, 20, 0),
    ],
)
def test_the_table(rule, train, unused, val):
    split = split_frames(100, rule, allow_empty_validation=True)
    assert (len(split.train), len(split.unused), len(split.val)) == (train, unused, val)


def test_the_original_counts_and_positions():
    assert len(split_frames(192, "9_10_10", allow_empty_validation=True).train) == 173
    split = split_frames(32, "7_7_8")
    assert split.val == (7, 15, 23, 31)
    assert len(split.train) == 28
    labels = split_frames(10, "2_3_5").labels
    assert labels == ("train", "train", "unused", "val", "val") * 2


@pytest.mark.parametrize(("rule", "instead"), [("9_10_10", "9_9_10"), ("4_5_5", "4_4_5"), ("1_2_2", "1_1_2")])
def test_nothing_held_out_is_an_error_that_names_the_alternative(rule, instead):
    with pytest.raises(ValueError, match=f"--data-split {rule} .* {instead} .* 1 of"):
        split_frames(100, rule)
    assert split_frames(100, instead).val
    noted = split_frames(100, rule, allow_empty_validation=True)
    assert any(instead in note for note in noted.notes)


def test_everything_trains_is_a_note_where_it_is_said_outright():
    split = split_frames(5, "1_1_1")
    assert split.train == (0, 1, 2, 3, 4)
    (note,) = split.notes
    assert re.fullmatch(r"every frame .*training .*1_1_1.* no held-out quality .*", note)


def test_a_clip_too_short_for_its_rule():
    with pytest.raises(ValueError, match=r"7_7_8.*of 5.*frame 7: use 4_4_5"):
        split_frames(5, "7_7_8")
    assert split_frames(5, "4_4_5").val == (4,)
    with pytest.raises(ValueError, match="use 1_1_1"):
        split_frames(1, "7_7_8")


def test_unused_frames_are_noted():
    (note,) = split_frames(100, "8_9_10").notes
    assert "10 of 100 frames" in note
    assert "(8_9_10)" in note


def test_shuffling_is_the_originals_order():
    order = list(range(20))
    random.Random(0).shuffle(order)
    split = split_frames(20, "4_4_5", shuffle=True)
    assert set(split.val) == {order[i] for i in (4, 9, 14, 19)}
    assert split.val == tuple(sorted(split.val))
    assert split != split_frames(20, "4_4_5")
    assert sorted((*split.train, *split.val)) == list(range(20))


@pytest.mark.parametrize("rule", ["", "7_8", "7_7_8_9", "a_b_c", "8_7_9", "7_9_8", "0_1_2", "-1_2_3", "1.5_2_3"])
def test_other_notations_are_refused(rule):
    with pytest.raises(ValueError, match=r"--data-split must be a_b_c with 1 <= a <= b <= c .* got "):
        parse_split(rule)


def test_no_frames():
    with pytest.raises(ValueError, match=r"split .* got 0"):
        split_frames(0)
