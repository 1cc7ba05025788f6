"""Reconstruction of a model from a decoded file alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch import InputError
from fieldwatch.recon.pipelines.video.models import (
    ModelOptions,
    Prediction,
    Query,
    Unit,
    VideoGeometry,
    VideoModel,
    build_model,
)

from .codec import CLIP_HEAD, ENCODER, DecodedBitstream, read_bitstream


class Codebook(nn.Module):
    """Replaces an encoder: reads the index of a frame from a one-pixel image and returns the stored code."""

    def __init__(self, codes: Float[Tensor, "frames channels rows columns"]) -> None:
        super().__init__()
        # A buffer, so that `.to` moves it, but no optimizer trains it.
        self.codes = nn.Buffer(codes)

    def forward(self, numbers: Float[Tensor, "units 3 1 1"]) -> Float[Tensor, "units channels rows columns"]:
        """Return the codes of the frames with these indices."""
        return self.codes[numbers[:, 0, 0, 0].round().long()]


class StoredFrames(VideoModel):
    """A model of the hnerv family that renders from stored codes: it needs no frames, and can render no others.

    Attributes:
        model: decoder, with a `Codebook` as its encoder.
        frames: number of frames.
    """

    unit: ClassVar[Unit] = "frame"
    needs_frames: ClassVar[bool] = False

    def __init__(self, model: VideoModel, codes: Float[Tensor, "frames channels rows columns"]) -> None:
        super().__init__()
        self.model = model
        self.model.add_module(ENCODER.removesuffix("."), Codebook(codes))
        self.frames = len(codes)

    def forward(self, query: Query, *, embed: bool = True) -> Prediction:
        """Render the stored frame nearest to each row's time."""
        numbers = (query.t * self.frames).round().clamp(0, self.frames - 1).float()
        # The decoder passes its frames to its encoder, so the index is passed in place of a frame.
        stored = numbers[:, None, None, None].expand(-1, 3, 1, 1)
        return self.model(Query(t=query.t, x=query.x, y=query.y, frames=stored), embed=embed)

    def groups(self) -> dict[str, nn.Module]:
        """Return the decoder's groups."""
        return self.model.groups()


def model_config(name: str, geometry: VideoGeometry, options: ModelOptions, **more: Any) -> dict[str, Any]:
    """Return the config for `write_bitstream`, as `rebuild` reads it: JSON values only."""
    return {"name": name, "geometry": asdict(geometry), "options": asdict(options), **more}


@torch.no_grad()
def frame_codes(
    model: VideoModel, frames: Float[Tensor, "frames 3 height width"], *, batch: int = 2
) -> Float[Tensor, "frames channels rows columns"] | None:
    """Return the encoder's code of every frame, for `write_bitstream`; None for models without an encoder."""
    if not model.needs_frames:
        return None
    encoder = model.get_submodule(ENCODER.removesuffix("."))
    return torch.cat([encoder(part) for part in frames.split(batch)])


def load_bitstream(path: Path) -> VideoModel:
    """Read a file and rebuild its model, ready to render (`rebuild` of `read_bitstream`)."""
    return rebuild(read_bitstream(path))


def rebuild(decoded: DecodedBitstream) -> VideoModel:
    """Build the model of the config and load the decoded weights.

    If the file omits the CLIP head, embeddings are meaningless: call the model with `embed=False`.

    Raises:
        ValueError: the file's tensors do not match the model of its config.
    """
    config = decoded.config
    options = {name: _tuples(value) for name, value in config["options"].items()}
    model = build_model(config["name"], VideoGeometry(**config["geometry"]), ModelOptions(**options))
    _load(model, decoded)
    model.eval()
    # Models with codes are wrapped, because their encoder is not in the file.
    return model if decoded.embeddings is None else StoredFrames(model, decoded.embeddings)


def _load(model: VideoModel, decoded: DecodedBitstream) -> None:
    # Not strict, because parts that the file omits on purpose are missing; all others are checked below.
    missing, unexpected = model.load_state_dict(dict(decoded.state), strict=False)
    absent = (*(() if decoded.with_clip_head else (CLIP_HEAD,)), *(() if decoded.embeddings is None else (ENCODER,)))
    lacking = [name for name in missing if not name.startswith(absent or ("\0",))]
    if lacking or unexpected:
        msg = (
            f"the file does not match the {decoded.config['name']} model of its config: missing tensors "
            f"{lacking or 'none'}, unexpected tensors {unexpected or 'none'}; write it from the model of that config"
        )
        raise InputError(msg)


def _tuples(value: Any) -> Any:
    """Convert JSON arrays back to tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
