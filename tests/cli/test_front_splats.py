"""The quality table of splats: what was measured has a row, and only that."""

import io

from rich.console import Console

from fieldwatch.recon.commands.splats.job import quality_table

HELD_OUT = {"Test/psnr": 29.5, "Test/ssim": 0.93, "Test/train_psnr": 31.25, "Test/psnr_gap": 1.75}


def shown(*metrics):
    file = io.StringIO()
    Console(file=file, width=100).print(quality_table(*metrics))
    return [" ".join(line.replace("│", " ").split()) for line in file.getvalue().splitlines()]


def test_the_mean_of_some_training_photos_stands_beside_the_held_out_ones():
    lines = shown(HELD_OUT)
    assert "PSNR (dB) 29.50 31.25" in lines
    assert "SSIM 0.9300 -" in lines
    assert not any("LPIPS" in line or "surface" in line for line in lines)


def test_all_training_photos_stand_beside_them_where_they_were_scored():
    lines = shown(HELD_OUT, {"Test/psnr": 31.0, "Test/ssim": 0.95})
    assert "PSNR (dB) 29.50 31.00" in lines
    assert "SSIM 0.9300 0.9500" in lines


def test_without_held_out_photos_the_table_says_so():
    lines = shown({"Test/psnr": 31.0, "Test/num_gaussians_K": 12.345})
    assert any("(none is held" in line for line in lines)
    assert "PSNR (dB) 31.00" in lines
    assert "Gaussians 12,345" in lines


def test_the_surface_is_shown_where_it_is_known():
    surface = {"Surface/mean_distance": 0.01234, "Surface/median_distance": 0.01, "Surface/within_1_percent": 0.876}
    lines = shown(HELD_OUT | surface | {"Test/psnr_fitted": 30.5})
    assert any("mean 0.0123" in line for line in lines)
    assert any("1 % of the extent 87.6%" in line for line in lines)
    assert any("(dB) 30.50 -" in line for line in lines)
