"""Patch grid: splitting, joining, coordinates and windows."""

import pytest
import torch

from fieldwatch.recon.data import PatchGrid


def test_patches_are_row_major_and_come_back():
    grid = PatchGrid(2, 4, 6, 8)
    frames = torch.arange(2 * 3 * 6 * 8).reshape(2, 3, 6, 8)
    patches = grid.split(frames)
    assert patches.shape == (16, 3, 3, 2)
    assert torch.equal(patches[5], frames[0, :, 3:6, 2:4])  # row 1, column 1 of frame 0
    assert torch.equal(patches[8], frames[1, :, 0:3, 0:2])
    assert torch.equal(grid.join(patches), frames)
    assert grid.dropped == (0, 0)


def test_the_remainder_is_reported():
    grid = PatchGrid(2, 4, 7, 11)
    assert (grid.patch_height, grid.patch_width, grid.patches, grid.dropped) == (3, 2, 8, (1, 3))
    frames = torch.rand(1, 3, 7, 11)
    assert torch.equal(grid.join(grid.split(frames)), frames[:, :, :6, :8])


def test_centers_of_the_original_grid():
    centers = PatchGrid(2, 4, 640, 1280).centers(4)
    assert centers.dtype == torch.float64
    assert centers.shape == (32, 3)
    assert centers[:8, 1].tolist() == [0.125, 0.375, 0.625, 0.875] * 2
    assert centers[:8, 2].tolist() == [0.25] * 4 + [0.75] * 4
    assert centers[::8, 0].tolist() == [0, 0.25, 0.5, 0.75]  # never 1


def test_centers_with_a_remainder_stay_on_their_patches():
    grid = PatchGrid(2, 3, 101, 100)
    for i, (_, x, y) in enumerate(grid.centers(1).tolist()):
        window = grid.window(x, y)
        assert (window.top, window.left) == (i // 3 * 50, i % 3 * 33)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 4), (3, 5), (7, 7), (10, 3)])
def test_the_window_at_a_center_is_that_patch(rows, columns):
    grid = PatchGrid(rows, columns, 121, 243)
    frame = torch.rand(1, 3, 121, 243)
    for patch, (_, x, y) in zip(grid.split(frame), grid.centers(1).tolist(), strict=True):
        assert torch.equal(grid.window(x, y).cut(frame[0]), patch)


def test_windows_between_patches_and_at_the_border():
    grid = PatchGrid(2, 4, 320, 640)
    assert grid.window(0.25, 0.5) == (80, 80, 160, 160)  # four corners
    assert grid.window(0.0, 1.0) == (160, 0, 160, 160)  # shifted inside the frame


def test_grids_that_do_not_fit():
    with pytest.raises(ValueError, match=r"a grid of 9 x 2 patches.*of 8 x 8 pixels"):
        PatchGrid(9, 2, 8, 8)
    with pytest.raises(ValueError, match=r"rows and columns.* got .* 0 x 2 patches"):
        PatchGrid(0, 2, 8, 8)


def test_frames_and_patches_of_another_size():
    grid = PatchGrid(2, 2, 8, 8)
    with pytest.raises(ValueError, match=r"8 x 8 pixels, got shape \(1, 3, 8, 10\)"):
        grid.split(torch.zeros(1, 3, 8, 10))
    with pytest.raises(ValueError, match=r"multiple of 4 patches of 4 x 4 pixels, got shape \(5, 3, 4, 4\)"):
        grid.join(torch.zeros(5, 3, 4, 4))
