"""Pictures: colors, labels and layout."""

import numpy as np
import pytest
import torch

from fieldwatch.recon.pipelines.splats.pictures import (
    FULL_SCALE,
    as_picture,
    depth_bounds,
    depth_picture,
    error_picture,
    normal_picture,
    sheet,
    strip,
)

SOLID = torch.ones(4, 6)


def plain(red, green, blue):
    return torch.tensor([red, green, blue]).expand(4, 6, 3)


def test_values_are_clamped_and_rounded_and_what_is_no_number_is_black():
    image = plain(-1.0, 0.5, 9.0).clone()
    image[0, 0] = torch.nan
    picture = as_picture(image)
    assert picture.dtype == np.uint8
    assert picture[1, 1].tolist() == [0, 128, 255]
    assert picture[0, 0].tolist() == [0, 0, 0]


def test_larger_errors_are_lighter_and_none_is_black():
    dark, middle, light = (
        error_picture(plain(0.5, 0.5, 0.5), plain(0.5 + e, 0.5 - e, 0.5 + e))[0, 0].astype(int).sum()
        for e in (0.0, FULL_SCALE / 2, FULL_SCALE)
    )
    assert dark == 0 < middle < light
    assert (error_picture(plain(0.0, 0.0, 0.0), plain(0.0, 0.0, torch.nan)) == (0, 255, 0)).all()


def test_near_is_red_and_far_is_violet_and_what_is_not_drawn_is_paper():
    depth = torch.linspace(1, 3, 6).expand(4, 6)
    alpha = SOLID.clone()
    alpha[3] = 0
    picture = depth_picture(depth, alpha).astype(int)
    assert picture[0, 0, 0] > picture[0, 0, 2]
    assert picture[0, -1, 2] > picture[0, -1, 1]
    assert (picture[3] == picture[3, 0]).all()
    assert picture[3, 0].max() < 40


def test_bounds_leave_out_strays_and_exist_where_nothing_is_drawn():
    depth = torch.linspace(1, 2, 1000).view(20, 50).clone()
    depth[0, 0] = 1e6
    low, high = depth_bounds(depth, torch.ones(20, 50))
    assert 1 < low < 1.1
    assert 1.9 < high < 2.1
    assert depth_bounds(depth, torch.zeros(20, 50)) == (0, 1)
    flat = depth_bounds(torch.full((4, 6), 7.0), SOLID)
    assert flat[0] < flat[1]


def test_a_normal_to_the_camera_is_blue_upwards_green_to_the_right_red():
    for normal, color in (((0, 0, -2), (128, 128, 255)), ((0, -1, 0), (128, 255, 128)), ((3, 0, 0), (255, 128, 128))):
        picture = normal_picture(plain(*map(float, normal)), SOLID)
        assert np.abs(picture[0, 0].astype(int) - color).max() <= 1


def test_strips_and_sheets_hold_their_pictures():
    one = as_picture(plain(1.0, 0.0, 0.0))
    other = as_picture(plain(0.0, 1.0, 0.0))
    row = strip([one, other], ["a", "b"], "t")
    assert row.shape == (4 + 2 * 18, 6 + 4 + 6, 3)
    assert (row[18:22, :6] == one).all()
    assert (row[18:22, 10:] == other).all()
    both = sheet([row, row[:, :10]])
    assert both.shape == (2 * len(row) + 4, 16, 3)
    assert (both[: len(row)] == row).all()


def test_labels_are_written_and_cut_to_their_picture():
    picture = as_picture(torch.zeros(30, 60, 3))
    named = strip([picture], ["a label that is far too long for it"])
    unnamed = strip([picture], [""])
    assert named.shape == unnamed.shape
    assert (named[30:] != unnamed[30:]).any()


def test_what_does_not_go_together_is_refused():
    one = as_picture(torch.zeros(4, 6, 3))
    other = as_picture(torch.zeros(4, 5, 3))
    with pytest.raises(ValueError, match=r"pictures of shapes \["):
        strip([one, other], ["a", "b"])
    with pytest.raises(ValueError, match=r"pictures of shapes .* labels"):
        strip([one], [])
    with pytest.raises(ValueError, match=r"no pictures.*one row"):
        sheet([])
