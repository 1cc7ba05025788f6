"""Notation of crop and resize."""

import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.data.clip_error import ClipError
from fieldwatch.recon.data.framing import Framing


@pytest.mark.parametrize(
    ("crop", "resize", "size", "expected"),
    [
        ("-1", "-1", (100, 200), (100, 200)),
        ("40_80", "-1", (100, 200), (40, 80)),
        ("-1", "50_60", (100, 200), (50, 60)),
        ("-1", "50", (100, 200), (50, 100)),
        ("-1", "50", (200, 100), (100, 50)),
        ("-1", "33", (100, 201), (33, 66)),  # the longer side is rounded down
        ("80_80", "20", (100, 200), (20, 20)),  # crop first
        ("20_30_last", "50", (100, 200), (20, 30)),  # crop last
    ],
)
def test_the_size_after(crop, resize, size, expected):
    framing = Framing(crop=crop, resize=resize)
    assert framing.size_after(size) == expected
    framed = framing.apply(Image.new("RGB", (size[1], size[0])))
    assert (framed.height, framed.width) == expected


def test_a_crop_is_central_and_comes_before_or_after_the_resize():
    array = np.zeros((8, 8, 3), np.uint8)
    array[2:6, 2:6] = 255
    image = Image.fromarray(array)
    assert (np.asarray(Framing(crop="4_4").apply(image)) == 255).all()
    assert (np.asarray(Framing(crop="4_4", resize="2").apply(image)) == 255).all()
    assert not (np.asarray(Framing(crop="4_4_last", resize="6").apply(image)) == 255).all()


def test_bicubic_values_stay_in_eight_bits():
    array = np.zeros((16, 16, 3), np.uint8)
    array[:, 8:] = 255  # bicubic interpolation overshoots at an edge
    assert {0, 255} <= set(np.unique(Framing(resize="40_40").apply(Image.fromarray(array))))


@pytest.mark.parametrize("crop", ["", "x", "10", "10_", "10_20_30", "0_5", "-5_5", "10_20_first", "1.5_2"])
def test_other_crops_are_refused(crop):
    with pytest.raises(ClipError, match=r"--crop must be H_W or H_W_last.*, got '"):
        Framing(crop=crop)


@pytest.mark.parametrize("resize", ["", "big", "1_2_3", "0", "-2", "5_x"])
def test_other_resizes_are_refused(resize):
    with pytest.raises(ClipError, match=r"--resize must be H_W.*, got '"):
        Framing(resize=resize)


def test_a_crop_larger_than_the_frame_names_both_sizes():
    with pytest.raises(ClipError, match=r"--crop 50_300 .* is larger than 0007.png, which is 100_200"):
        Framing(crop="50_300").size_after((100, 200), "0007.png")
    with pytest.raises(ClipError, match="which is 20_40"):
        Framing(crop="30_30_last", resize="20").apply(Image.new("RGB", (200, 100)))
