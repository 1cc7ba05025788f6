"""Frames in a wrong order predict each other no better than any two frames."""

import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.commands.video.doctor_frames import clip_findings
from fieldwatch.recon.data import read_clip


@pytest.fixture
def clip(tmp_path):
    """Write a clip of moving waves with its frames in an order."""

    def write(order, name):
        folder = tmp_path / name
        folder.mkdir()
        y, x = np.mgrid[0:24, 0:48] / 24
        for place, i in enumerate(order):
            waves = np.stack([np.sin(7 * x + i / 4), np.cos(6 * y - i / 5), np.sin(3 * (x + y) + i / 3)], axis=-1)
            Image.fromarray(np.round(127.5 + 100 * waves).astype(np.uint8)).save(folder / f"{place:04d}.png")
        return read_clip(folder)

    return write


def test_shuffled_frames_are_told_from_those_in_time(clip):
    assert list(clip_findings(clip(range(20), "right"))) == []
    shuffled = clip(np.random.default_rng(0).permutation(20), "wrong")
    assert [(each.name, each.severity) for each in clip_findings(shuffled)] == [("order", "warning")]
    assert list(clip_findings(shuffled, most=5)) == []
