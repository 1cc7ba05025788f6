"""Dual-head patch HNeRV: (t, x, y) of a patch -> its colors and its CLIP embedding."""

from typing import ClassVar

import torch
from torch import nn

from .blocks import OutputMap, build_decoder, clip_head, resample
from .encoding import PositionalEncoding
from .interface import Prediction, Query, Unit, VideoGeometry, VideoModel
from .options import ModelOptions
from .sizing import parse_size, solve_width, strides_and_start

LITERAL_SIZE = "9_16"
LITERAL_STRIDES = (5, 3, 2, 2, 2)


class DualHead(VideoModel):
    """Positional encoding of a patch's (t, x, y) -> stem -> upsampling stages -> RGB head and CLIP head.

    (The dual-head HNeRV code, after Chen et al. 2023, with its parameter names.) With `options.literal` the decoder
    renders fc_hw * product(dec_strds) pixels, resampled bilinearly to the patch; otherwise it renders the patch size
    directly.
    """

    unit: ClassVar[Unit] = "patch"
    needs_frames: ClassVar[bool] = False

    def __init__(self, geometry: VideoGeometry, options: ModelOptions) -> None:
        super().__init__()
        self.patch = (geometry.patch_height, geometry.patch_width)
        self.encoding = PositionalEncoding.parse(options.embed)
        strides, start = _plan(self.patch, options)
        # One code for each of t, x and y.
        code = self.encoding.channels(3)
        fc_dim = options.fc_dim or 512
        if options.modelsize is not None:
            fc_dim = solve_width(options.modelsize * 1e6, code * start[0] * start[1], strides, options)
        self.decoder, width = build_decoder(code, fc_dim, start, strides, options)
        self.rgb_head = nn.Conv2d(width, 3, 3, padding=1)
        self.clip_head = clip_head(width, options.clip_dim)
        self.output = OutputMap(options.out_bias)

    def forward(self, query: Query, *, embed: bool = True) -> Prediction:
        """Render one patch per row of ``query``."""
        code = self.encoding(torch.stack([query.t, query.x, query.y], dim=1))
        features = code.to(self.rgb_head.weight.dtype)[:, :, None, None]
        for layer in self.decoder:
            features = layer(features)
        rgb = self.output(self.rgb_head(features))
        # Only with `literal`, whose output has a fixed size.
        if rgb.shape[-2:] != self.patch:
            rgb = resample(rgb, self.patch)
        return Prediction(rgb=rgb, embedding=self.clip_head(features) if embed else None)

    def groups(self) -> dict[str, nn.Module]:
        """Return stem and stages, and the two heads."""
        return {"decoder": self.decoder, "rgb_head": self.rgb_head, "clip_head": self.clip_head}


def _plan(patch: tuple[int, int], options: ModelOptions) -> tuple[tuple[int, ...], tuple[int, int]]:
    # The original's first feature map and strides do not depend on the size of the patch.
    if options.literal:
        return options.dec_strds or LITERAL_STRIDES, parse_size(options.fc_hw or LITERAL_SIZE)
    return strides_and_start(*patch, options, start=4)
