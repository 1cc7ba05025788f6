"""HNeRV: a frame's own embedding -> the frame (baseline), with a CLIP embedding per patch."""

import math
from typing import ClassVar

from torch import nn

from fieldwatch import InputError

from .blocks import OutputMap, build_decoder, clip_head
from .encoder import Encoder, embedding_channels
from .interface import Prediction, Query, Unit, VideoGeometry, VideoModel
from .options import ModelOptions
from .sizing import derive_strides, solve_width


class HNeRV(VideoModel):
    """ConvNeXt encoder -> embedding grid -> stem -> upsampling stages -> RGB head and CLIP head.

    (HNeRV, Chen et al. 2023.) The encoder reads the frame that is to be drawn, a held-out one too: its validation
    score says how well it compresses unseen frames, not how well it guesses them.
    """

    unit: ClassVar[Unit] = "frame"
    needs_frames: ClassVar[bool] = True

    def __init__(self, geometry: VideoGeometry, options: ModelOptions) -> None:
        super().__init__()
        enc_strds, dec_strds, start = _plan(geometry, options)
        cells = geometry.frames * (geometry.height // math.prod(enc_strds)) * (geometry.width // math.prod(enc_strds))
        width, channels = embedding_channels(options.enc_dim, options.modelsize, cells=cells)
        self.encoder = Encoder(enc_strds, width=width, embedding=channels, blocks=options.blocks[0])
        fc_dim = options.fc_dim or 512
        if options.modelsize is not None:
            # the released solver counts nine weights per embedding channel although the stem is 1x1
            stem = 9 * channels * start[0] * start[1]
            # The embeddings of all frames belong to the compressed video, so they are paid from the same budget.
            fc_dim = solve_width(options.modelsize * 1e6 - channels * cells, stem, dec_strds, options)
        self.decoder, last = build_decoder(channels, fc_dim, start, dec_strds, options)
        self.rgb_head = nn.Conv2d(last, 3, 3, padding=1)
        self.clip_head = clip_head(last, options.clip_dim, rows=geometry.rows, columns=geometry.columns)
        self.output = OutputMap(options.out_bias)

    def forward(self, query: Query, *, embed: bool = True) -> Prediction:
        """One frame per row of `query`, drawn from the embedding of `query.frames`."""
        if query.frames is None:
            raise ValueError("the hnerv model draws frames from their own embeddings: pass Query(frames=...)")
        features = self.encoder(query.frames.to(self.rgb_head.weight.dtype))
        for layer in self.decoder:
            features = layer(features)
        embedding = self.clip_head(features) if embed else None
        return Prediction(rgb=self.output(self.rgb_head(features)), embedding=embedding)

    def groups(self) -> dict[str, nn.Module]:
        """Encoder with stem and stages, and the two heads."""
        shared = nn.ModuleList([self.encoder, self.decoder])
        return {"decoder": shared, "rgb_head": self.rgb_head, "clip_head": self.clip_head}


def _plan(geometry: VideoGeometry, options: ModelOptions) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]:
    """Encoder strides, decoder strides, and the block of pixels that one embedding becomes in the stem."""
    size = (geometry.height, geometry.width)
    enc_strds = options.enc_strds or options.dec_strds or derive_strides(*size, start=2)
    dec_strds = options.dec_strds or enc_strds
    down = math.prod(enc_strds)
    up = math.prod(dec_strds)
    if down % up or size[0] % down or size[1] % down:
        msg = (
            f"encoder strides {enc_strds} (product {down}) and decoder strides {dec_strds} (product {up}) do not draw "
            f"{size[0]} x {size[1]} pixels: the encoder's product must divide both sides, and the decoder's product "
            "the encoder's; choose other strides, leave both open, or crop the video"
        )
        raise InputError(msg)
    return enc_strds, dec_strds, (down // up, down // up)
