"""The border of the photos against the background of the training: opaque photos, photos with masks, other content."""

import dataclasses

import pytest
import torch

from fieldwatch.recon.commands.splats.doctor_colors import background_findings, sample_colors
from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.data.photos import PhotoPixels


def findings(photos, background):
    return list(background_findings(photos, sample_colors(photos), background))


COLORS = {"black": torch.zeros(3), "white": torch.ones(3)}


@pytest.fixture(scope="module")
def framed():
    """Return what makes six photos of a gray square in a frame of one color, all of them or the first few."""
    photos = solid_photos(views=6, size=48, points=10)

    def make(color, count=6, mask=None):
        def read(index):
            image = torch.full((48, 48, 3), 128, dtype=torch.uint8)
            frame = image.clone()
            frame[:] = color
            frame[16:32, 16:32] = image[16:32, 16:32]
            return PhotoPixels(image=frame if index < count else image, mask=mask)

        return dataclasses.replace(photos, read=read)

    return make


@pytest.mark.parametrize(("color", "name", "other"), [(255, "white", "black"), (0, "black", "white")])
def test_a_plain_border_of_the_other_color_is_a_warning_that_names_the_flag(framed, color, name, other):
    (finding,) = findings(framed(color), COLORS[other])
    assert (finding.name, finding.severity) == ("background", "warning")
    assert f"--background {name}" in finding.remedy
    assert "6 of 6" in finding.message
    assert not findings(framed(color), COLORS[name])


@pytest.mark.parametrize("noise", [0, 8])
def test_noise_of_a_compressed_photo_is_still_plain(framed, noise):
    torch.manual_seed(0)
    photos = framed(255)
    plain = photos.read(0).image.int() - torch.randint(0, noise + 1, (48, 48, 3))
    noisy = dataclasses.replace(photos, read=lambda _: PhotoPixels(image=plain.clamp(0, 255).byte()))
    assert sample_colors(noisy)[0].border == "white"


@pytest.mark.parametrize(
    "photos",
    [
        {"color": 128},
        {"color": 255, "count": 3},
        {"color": 255, "mask": torch.full((48, 48), 255, dtype=torch.uint8)},
    ],
    ids=["another color", "half of the photos", "masks"],
)
def test_other_photos_are_not_compared(framed, photos):
    assert not findings(framed(**photos), COLORS["black"])


def test_a_backdrop_of_another_color_is_that_of_the_photos(framed):
    assert not findings(framed(255), torch.tensor([0.8, 0.9, 1.0]))
