"""Strips and sheets: their layout, and that NaN is visible."""

import numpy as np
import pytest
import torch

from fieldwatch.recon.pipelines.video.strips import (
    FULL_SCALE,
    SheetEntry,
    as_bytes,
    as_picture,
    color_map,
    sheet,
    strip,
    worst,
    worst_sheet,
)

LINE = 18
GAP = 4


def lightness(colors):
    """Return the CIE L* of 8-bit sRGB colors."""
    linear = np.where(colors / 255 <= 0.04045, colors / 255 / 12.92, ((colors / 255 + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126, 0.7152, 0.0722]
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


def test_the_color_map_gets_lighter_evenly():
    steps = np.diff(lightness(color_map(np.linspace(0, 1, 9)).astype(float)))
    assert (steps > 0).all()
    assert steps.max() < 2.5 * steps.min()


def test_values_outside_and_values_that_are_none():
    colors = color_map(np.array([-1.0, 0.0, 1.0, 7.0, np.nan, np.inf]))
    assert (colors[0] == colors[1]).all()
    assert (colors[2] == colors[3]).all()
    assert colors[4].tolist() == colors[5].tolist() == [0, 255, 0]


def test_images_as_bytes():
    image = torch.tensor([-0.2, 0.0, 0.5, 1.0, 1.3, float("nan")]).expand(3, 1, 6)
    assert as_bytes(image)[0, 0].tolist() == [0, 0, 128, 255, 255, 0]
    assert as_picture(image).shape == (1, 6, 3)


def test_a_strip_shows_truth_prediction_and_error():
    truth = torch.rand(3, 60, 100)
    prediction = truth.clone()
    prediction[:, 10:20, 30:40] += FULL_SCALE
    prediction[0, 50, 90] = float("nan")
    picture = strip(truth, prediction, "frame 3")
    assert picture.dtype == np.uint8
    assert picture.shape == (60 + 2 * LINE, 300 + 2 * GAP, 3)
    assert (picture[LINE : LINE + 60, :100] == as_picture(truth)).all()
    assert (picture[LINE : LINE + 60, 100 + GAP : 200 + GAP] == as_picture(prediction)).all()
    error = picture[LINE : LINE + 60, 200 + 2 * GAP :]
    assert (error[30, 50] == color_map(np.array(0.0))).all()
    assert (error[15, 35].astype(int) - color_map(np.array(1.0)) < 3).all()
    assert error[50, 90].tolist() == [0, 255, 0]


def test_a_strip_is_labelled():
    image = torch.rand(3, 40, 160)
    bare = strip(image, image)
    titled = strip(image, image, "frame 3: 31.20 dB")
    assert (bare[:LINE] != titled[:LINE]).any()
    below = bare[LINE + 40 :]
    for place in range(3):
        assert np.ptp(below[:, place * 164 : place * 164 + 160]) > 0  # a name, or the scale
    assert (strip(image, image, full_scale=0.5)[LINE + 40 :] != below).any()  # the scale's end is written


def test_small_patches_and_long_titles_fit():
    image = torch.rand(3, 8, 12)
    assert strip(image, image, "a title far too long for so small a picture").shape == (8 + 2 * LINE, 36 + 2 * GAP, 3)


def test_wrong_strips():
    with pytest.raises(ValueError, match=r"full_scale .*greater than 0, .* got 0"):
        strip(torch.zeros(3, 4, 4), torch.zeros(3, 4, 4), full_scale=0)


@pytest.mark.usefixtures("unchecked")
def test_images_of_two_sizes():
    with pytest.raises(ValueError, match=r"same size, got \(3, 4, 4\) and \(3, 4, 5\)"):
        strip(torch.zeros(3, 4, 4), torch.zeros(3, 4, 5))


def test_the_worst_come_first_and_no_number_is_worst():
    assert worst(np.array([30.0, 20.0, np.nan, 25.0]), 3) == [2, 1, 3]
    assert worst(np.array([3.0]), 5) == [0]


def test_a_sheet_is_row_by_row():
    parts = [np.full((10, 20, 3), value, np.uint8) for value in (1, 2, 3)]
    one = sheet(parts)
    assert one.shape == (3 * 10 + 2 * GAP, 20, 3)
    two = sheet(parts, columns=2)
    assert two.shape == (2 * 10 + GAP, 40 + 2 * GAP, 3)
    assert [two[0, 0, 0], two[0, -1, 0], two[-1, 0, 0]] == [1, 2, 3]
    with pytest.raises(ValueError, match="got 0 strips and 1 columns"):
        sheet([])
    with pytest.raises(ValueError, match="and 0 columns"):
        sheet(parts, columns=0)


def test_the_worst_sheet_sorts_and_labels():
    image = torch.rand(3, 30, 50)
    shown = [SheetEntry(truth=image, prediction=image * i / 4, psnr=10.0 * i, label=f"frame {i}") for i in (3, 1, 2)]
    picture = worst_sheet(shown, count=2)
    expected = [strip(image, image * i / 4, f"frame {i}: {10 * i:.2f} dB") for i in (1, 2)]
    assert (picture == sheet(expected)).all()
    with pytest.raises(ValueError, match="got 0 strips"):
        worst_sheet([])
    with pytest.raises(ValueError, match="got 0 strips"):
        worst_sheet(shown, count=0)
