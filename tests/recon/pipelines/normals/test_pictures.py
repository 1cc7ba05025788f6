"""Colors of normals, depth and errors, and the sheets that show them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch.recon.mesh import error_ramp
from fieldwatch.recon.pipelines.normals.pictures import (
    depth_colors,
    error_colors,
    normal_colors,
    sheet_of,
    strip_of,
)
from fieldwatch.recon.pipelines.normals.view_errors import ViewComparison
from fieldwatch.recon.pipelines.normals.views import render_view


@pytest.fixture(scope="module")
def sight(ball):
    config = ball.config()
    scene = ball.scene(config, size=32)
    view = scene.maps.views[1]
    shifted = ((0.0, 0.15, 0.0), 0.5)
    return ViewComparison.of(
        1, view, render_view(ball.model(config, scene, shifted), view.camera, config.rendering, 0.01), "train"
    )


def test_normals_are_coded_as_the_seeds_do():
    facing = [0.0, 0.0, -1.0]
    right = [1.0, 0.0, 0.0]
    up = [0.0, -1.0, 0.0]
    picture = normal_colors(torch.tensor([[facing, right, up, [0.0, 0.0, 0.0]]]))
    assert picture.tolist() == [[[128, 128, 255], [255, 128, 128], [128, 255, 128], [128, 128, 128]]]


def test_near_is_light_and_outside_is_gray():
    mask = torch.tensor([[True, True, False]])
    picture = depth_colors(torch.tensor([[2.0, 3.0, 0.0]]), mask)
    assert picture[0, 0].tolist() == error_ramp(np.array([1.0]))[0].tolist()
    assert picture[0, 1].tolist() == error_ramp(np.array([0.0]))[0].tolist()
    assert picture[0, 2].tolist() == [128, 128, 128]
    assert (depth_colors(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool)) == 128).all()


def test_errors_missed_pixels_and_those_beside_the_mask_have_their_colors(sight):
    picture = error_colors(sight)
    mask = sight.view.mask.numpy()
    seen = sight.rendered.mask.numpy()
    missed = mask & ~seen
    beside = seen & ~mask
    neither = ~mask & ~seen
    for which in (missed, beside, neither):
        assert which.any()
        assert (picture[which] == picture[which][0]).all()
    assert len({tuple(picture[which][0]) for which in (missed, beside, neither)}) == 3
    angle = float(sight.angles[mask & seen][0])
    assert picture[mask & seen][0].tolist() == error_ramp(np.array([angle / 20]))[0].tolist()


def test_a_strip_shows_three_squares_and_a_sheet_all_strips(sight):
    strip = strip_of(sight, 64)
    assert strip.shape == (64 + 20, 3 * 64 + 2 * 6, 3)
    sheet = sheet_of([strip] * 5)
    assert sheet.shape[0] > 2 * strip.shape[0]
    rows = [
        row
        for row in range(sheet.shape[0] - len(strip))
        if np.array_equal(sheet[row : row + len(strip), 12:216], strip)
    ]
    assert len(rows) in {3, 5}
    with pytest.raises(ValueError, match=r"sheet .*one strip.*none"):
        sheet_of([])


def test_a_view_of_which_nothing_is_known_is_drawn_too(sight):
    nothing = replace(sight.view, mask=torch.zeros_like(sight.view.mask))
    seen = replace(sight.rendered, opacity=torch.zeros_like(sight.rendered.opacity))
    empty = ViewComparison.of(1, nothing, seen, "held_out")
    assert empty.error.mae is None
    assert strip_of(empty, 64).shape == (84, 204, 3)
