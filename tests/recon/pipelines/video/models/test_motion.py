import pytest
import torch
from torch.nn import functional

from fieldwatch.recon.pipelines.video.motion import interpolate, midway_flow, warp


def texture(height, width):
    """Return coarse blobs overlaid with finer ones, in [0, 1]."""
    generator = torch.Generator().manual_seed(0)
    layers = [torch.rand(1, 3, height // cell, width // cell, generator=generator) for cell in (32, 16, 8)]
    return sum(functional.interpolate(x, (height, width), mode="bicubic").clamp(0, 1) / 3 for x in layers)


def sliding(frames, step, size=96):
    """A window moving over a texture: frame i at p equals frame 0 at p + (i step, 0)."""
    wide = texture(size, size + step * frames)[0]
    return torch.stack([wide[..., i * step : i * step + size] for i in range(frames)])


def inner(pictures, border=16):
    return pictures[..., border:-border, border:-border]


def test_flow_of_a_known_translation():
    video = sliding(2, 6)
    flow = inner(midway_flow(video[:1], video[1:]))
    assert flow.shape == (1, 2, 64, 64)
    assert (flow[:, 0] + 6).abs().mean() < 0.1
    assert flow[:, 1].abs().mean() < 0.1


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_between_follows_the_motion_where_the_plain_blend_does_not(share):
    video = sliding(9, 2)
    truth = inner(video[int(8 * share), None])
    carried = inner(interpolate(video[:1], video[8:], share=share))
    blend = inner((1 - share) * video[:1] + share * video[8:])
    assert (carried - truth).square().mean() < 0.25 * (blend - truth).square().mean()


def test_warp_reads_at_the_moved_place_and_repeats_the_border():
    ramp = torch.arange(8.0).expand(1, 1, 4, 8)
    flow = torch.stack([torch.full((4, 8), 2.5), torch.zeros(4, 8)])[None]
    assert torch.allclose(warp(ramp, flow)[0, 0, 0], torch.tensor([2.5, 3.5, 4.5, 5.5, 6.5, 7, 7, 7]), atol=1e-5)
