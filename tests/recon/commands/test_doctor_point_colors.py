"""Points that are observed tell of photos with another white balance, of dark corners, and of inverted masks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fieldwatch.recon.commands.splats.doctor_point_colors import COLOR_OF_PHOTOS, color_findings, hidden_findings
from fieldwatch.recon.commands.splats.doctor_reprojection import observed_points
from fieldwatch.recon.data import PhotoOptions, read_colmap
from fieldwatch.recon.data.colmap import read_colmap_model, read_colmap_observations

PLUSH = Path(__file__).parents[3] / "data" / "real" / "colmap_plush"


@pytest.fixture(scope="module")
def observed():
    place = PLUSH / "sparse" / "0"
    return observed_points(read_colmap_model(place), read_colmap_observations(place))


@pytest.fixture(scope="module")
def photos():
    return read_colmap(PLUSH, PhotoOptions(longer_side=96))


def changed(photos, change):
    """Change the pictures, given as floats from 0 to 1 with the number of the photo."""

    def read(index):
        photo = photos.read(index)
        pixels = change(photo.image.float() / 255, index)
        return replace(photo, image=(255 * pixels.clamp(0, 1)).round().to(photo.image))

    return photos.having(read=read)


def masked(photos, white):
    """Give each photo a mask that is white from the left side to a share of the width."""

    def read(index):
        photo = photos.read(index)
        height, width = photo.image.shape[:2]
        mask = torch.zeros(height, width, dtype=torch.uint8)
        mask[:, : round(white * width)] = 255
        return replace(photo, mask=mask)

    return photos.having(read=read, masked=True)


def tinted(factor):
    return lambda pixels, index: pixels * 0.7 * torch.tensor([factor ** (index % 3 - 1), 1.0, 1.0])


def vignetted(pixels, _index):
    height, width = pixels.shape[:2]
    down, right = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    return pixels * (1 - 0.7 * (down.square() + right.square()) / 2)[..., None]


def test_real_photos_of_one_exposure_are_sound(photos, observed):
    assert [*color_findings(photos, observed), *hidden_findings(photos, observed)] == []


@pytest.mark.parametrize(("factor", "certain"), [(1.2, False), (1.6, True)])
def test_a_white_balance_of_each_photo_is_named(photos, observed, factor, certain):
    (finding,) = color_findings(changed(photos, tinted(factor)), observed)
    assert (finding.name, finding.certain) == (COLOR_OF_PHOTOS, certain)
    assert "white balance" in finding.message
    assert "--exposure True" in finding.remedy


def test_an_exposure_of_each_photo_is_named(photos, observed):
    (finding,) = color_findings(changed(photos, lambda pixels, index: pixels * (0.9, 0.4)[index % 2]), observed)
    assert finding.name == COLOR_OF_PHOTOS
    assert "brightness" in finding.message


def test_corners_that_are_darker_than_the_middle_are_the_lens(photos, observed):
    (finding,) = color_findings(changed(photos, vignetted), observed)
    assert finding.name == "dark corners"
    assert "vignetting" in finding.remedy


@pytest.mark.parametrize(("white", "count"), [(0.7, 0), (0.2, 1)])
def test_masks_that_hide_most_of_what_is_observed_may_be_inverted(photos, observed, white, count):
    findings = list(hidden_findings(masked(photos, white), observed))
    assert len(findings) == count
    assert all("invert the masks" in each.remedy for each in findings)
