"""Photos that repeat the one before are found where their cameras are in other places."""

from pathlib import Path

import pytest

from fieldwatch.recon.commands.splats.doctor_photos import repeated_findings
from fieldwatch.recon.data import PhotoOptions, read_colmap

PLUSH = Path(__file__).parents[3] / "data" / "real" / "colmap_plush"


@pytest.fixture(scope="module")
def photos():
    return read_colmap(PLUSH, PhotoOptions(longer_side=48))


def test_photos_that_repeat_the_one_before_spoil_a_training(photos):
    assert list(repeated_findings(photos)) == []
    twice = photos.having(read=lambda index: photos.read(index - index % 2))
    (found,) = repeated_findings(twice)
    assert (found.name, found.severity, found.certain) == ("repeated", "warning", True)
    assert photos.names[1] in found.message
    assert "Remove" in found.remedy


def test_photos_from_one_place_may_be_equal(photos):
    still = photos.having(read=lambda _: photos.read(0), cameras=tuple(photos.cameras[0] for _ in photos.cameras))
    assert list(repeated_findings(still)) == []
