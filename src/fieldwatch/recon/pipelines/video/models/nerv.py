"""NeRV: the time of a frame -> the frame (baseline), with a CLIP embedding per patch."""

from typing import ClassVar

from torch import nn

from .blocks import OutputMap, build_decoder, clip_head
from .encoding import PositionalEncoding
from .interface import Prediction, Query, Unit, VideoGeometry, VideoModel
from .options import ModelOptions
from .sizing import solve_width, strides_and_start


class NeRV(VideoModel):
    """Positional encoding of t -> stem -> upsampling stages -> RGB head and CLIP head (NeRV, Chen et al. 2021)."""

    unit: ClassVar[Unit] = "frame"
    needs_frames: ClassVar[bool] = False

    def __init__(self, geometry: VideoGeometry, options: ModelOptions) -> None:
        super().__init__()
        self.encoding = PositionalEncoding.parse(options.embed)
        # A larger first feature map than that of the patch model, because frames are larger than patches.
        strides, start = strides_and_start(geometry.height, geometry.width, options, start=8)
        code = self.encoding.channels(1)
        fc_dim = options.fc_dim or 512
        if options.modelsize is not None:
            fc_dim = solve_width(options.modelsize * 1e6, code * start[0] * start[1], strides, options)
        self.decoder, width = build_decoder(code, fc_dim, start, strides, options)
        self.rgb_head = nn.Conv2d(width, 3, 3, padding=1)
        self.clip_head = clip_head(width, options.clip_dim, rows=geometry.rows, columns=geometry.columns)
        self.output = OutputMap(options.out_bias)

    def forward(self, query: Query, *, embed: bool = True) -> Prediction:
        """Render one frame per row of ``query``; only its times are used."""
        # Encoded in float64, then cast to the type of the weights.
        features = self.encoding(query.t[:, None]).to(self.rgb_head.weight.dtype)[:, :, None, None]
        for layer in self.decoder:
            features = layer(features)
        embedding = self.clip_head(features) if embed else None
        return Prediction(rgb=self.output(self.rgb_head(features)), embedding=embedding)

    def groups(self) -> dict[str, nn.Module]:
        """Return stem and stages, and the two heads."""
        return {"decoder": self.decoder, "rgb_head": self.rgb_head, "clip_head": self.clip_head}
