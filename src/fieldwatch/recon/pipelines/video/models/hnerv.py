"""HNeRV: the embedding of a frame -> the frame (baseline), with a CLIP embedding per patch."""

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

    (HNeRV, Chen et al. 2023.) The encoder reads the frame to be rendered, even if it is held out, so validation scores
    measure how well it compresses unseen frames, not how well it predicts them.
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
            # The released solver counts nine weights per embedding channel, although the stem is a 1x1 convolution.
            stem = 9 * channels * start[0] * start[1]
            # The embeddings of all frames are part of the compressed video, so they count toward the budget.
            fc_dim = solve_width(options.modelsize * 1e6 - channels * cells, stem, dec_strds, options)
        self.decoder, last = build_decoder(channels, fc_dim, start, dec_strds, options)
        self.rgb_head = nn.Conv2d(last, 3, 3, padding=1)
        self.clip_head = clip_head(last, options.clip_dim, rows=geometry.rows, columns=geometry.columns)
        self.output = OutputMap(options.out_bias)

    def forward(self, query: Query, *, embed: bool = True) -> Prediction:
        """Render one frame per row of ``query`` from the embedding of ``query.frames``."""
        if query.frames is None:
            raise ValueError("the hnerv model renders frames from their own embeddings: pass Query(frames=...)")
        features = self.encoder(query.frames.to(self.rgb_head.weight.dtype))
        for layer in self.decoder:
            features = layer(features)
        embedding = self.clip_head(features) if embed else None
        return Prediction(rgb=self.output(self.rgb_head(features)), embedding=embedding)

    def groups(self) -> dict[str, nn.Module]:
        """Return encoder with stem and stages, and the two heads."""
        shared = nn.ModuleList([self.encoder, self.decoder])
        return {"decoder": shared, "rgb_head": self.rgb_head, "clip_head": self.clip_head}


def _plan(geometry: VideoGeometry, options: ModelOptions) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]:
    """Return encoder strides, decoder strides, and the size of the pixel block that the stem makes of an embedding."""
    size = (geometry.height, geometry.width)
    # By default encoder and decoder have the same strides, and the stem maps one embedding to one pixel.
    enc_strds = options.enc_strds or options.dec_strds or derive_strides(*size, start=2)
    dec_strds = options.dec_strds or enc_strds
    down = math.prod(enc_strds)
    up = math.prod(dec_strds)
    if down % up or size[0] % down or size[1] % down:
        msg = (
            f"encoder strides {enc_strds} (product {down}) and decoder strides {dec_strds} (product {up}) do not fit "
            f"{size[0]} x {size[1]} pixels: the encoder's product must divide both sides, and the decoder's product "
            "must divide the encoder's; choose other strides, leave both open, or crop the video"
        )
        raise InputError(msg)
    return enc_strds, dec_strds, (down // up, down // up)
