"""The synthetic clip: reproducible, smooth and moving."""

import time

import pytest
import torch

from fieldwatch.recon.data import synthetic_clip


@pytest.fixture(scope="module")
def clip():
    return synthetic_clip()


@pytest.mark.machine
def test_shape_and_speed():
    begin = time.process_time()
    clip = synthetic_clip()
    assert time.process_time() - begin < 6  # 0.6 s
    assert (len(clip), clip.height, clip.width) == (24, 128, 256)
    assert clip.frames.dtype == torch.uint8


def test_the_same_seed_gives_the_same_clip_whatever_torchs_seed(clip):
    torch.manual_seed(99)
    assert synthetic_clip().digest == clip.digest
    assert synthetic_clip(seed=1).digest != clip.digest


def test_it_is_a_picture_with_smooth_motion(clip):
    frames = clip.frames.float() / 255
    assert frames.std() > 0.15  # not flat
    assert (frames.mean((0, 2, 3)) > 0.2).all()  # not dark
    step = (frames[1:] - frames[:-1]).square().mean((1, 2, 3))
    far = (frames[8:] - frames[:-8]).square().mean((1, 2, 3))
    assert (step > 1e-4).all()  # every frame moves
    assert step.mean() < 0.35 * far.mean()  # and moves a little
    rough = (frames[..., 1:] - frames[..., :-1]).abs().mean()
    assert rough < 0.03  # textures, not noise


def test_other_sizes():
    assert synthetic_clip(frames=1, height=16, width=16).frames.shape == (1, 3, 16, 16)
    assert synthetic_clip(frames=2, height=33, width=17).frames.shape == (2, 3, 33, 17)
    for name in ("frames", "height", "width"):
        with pytest.raises(ValueError, match=f"^{name} .*synthetic clip.* got 0$"):
            synthetic_clip(**{name: 0})
