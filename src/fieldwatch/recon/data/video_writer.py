"""Frames to an mp4 file."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

import av
import torch
from av.codec.codec import UnknownCodecError
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional

from fieldwatch.files import whole_file
from fieldwatch.recon.data.clip_error import ClipError

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

CODECS = ("libx264", "mpeg4")
"""Encoders in the order in which they are tried."""


def write_video(
    path: Path | str, frames: Iterable[UInt8[Tensor, "3 height width"]], *, rate: float = 24.0, quality: int = 18
) -> Path:
    """Write frames to an mp4 file: H.264 where FFmpeg has it, else MPEG-4; all of it or nothing.

    Odd sizes get one more row or column (a copy of the last), because 4:2:0 chroma needs even ones.

    Args:
        path: ends in `.mp4`; replaced when it exists.
        frames: one by one; any iterable, so that a long video is never in memory.
        rate: frames per second.
        quality: H.264's constant rate factor: 0 lossless .. 51, 18 is visually clean.

    Raises:
        ClipError: no frame, or frames of different sizes.
    """
    path = Path(path)
    with (
        whole_file(path) as draft,
        av.open(str(draft), "w", format="mp4", options={"movflags": "faststart"}) as container,
    ):
        _encode(container, frames, rate, quality, path)
    return path


def _encode(
    container: "OutputContainer",
    frames: Iterable[UInt8[Tensor, "3 height width"]],
    rate: float,
    quality: int,
    path: Path,
) -> None:
    stream = None
    size = (0, 0)
    for number, frame in enumerate(frames):
        here = (int(frame.shape[1]), int(frame.shape[2]))
        if stream is None:
            size = here
            stream = _stream(container, size, rate, quality)
        if here != size:
            msg = f"frame {number} for {path} is {here[0]}_{here[1]}, the first was {size[0]}_{size[1]} (height_width)"
            raise ClipError(msg)
        picture = av.VideoFrame.from_ndarray(_even(frame).permute(1, 2, 0).contiguous().numpy(), format="rgb24")
        container.mux(stream.encode(picture))
    if stream is None:
        msg = f"no frame was given for {path}: a video needs at least one"
        raise ClipError(msg)
    container.mux(stream.encode(None))


def _stream(container: "OutputContainer", size: tuple[int, int], rate: float, quality: int) -> "VideoStream":
    name = next((name for name in CODECS if _can_encode(name)), CODECS[-1])
    options = {"crf": str(quality), "preset": "medium"} if name == "libx264" else {"q:v": "2"}
    # the return type follows from literal codec names only; these two are both video
    stream = cast("VideoStream", container.add_stream(name, Fraction(rate).limit_denominator(1001), options))
    stream.height = size[0] + size[0] % 2
    stream.width = size[1] + size[1] % 2
    stream.pix_fmt = "yuv420p"
    return stream


def _can_encode(name: str) -> bool:
    try:
        return av.Codec(name, "w").is_encoder
    except UnknownCodecError:
        return False


def _even(frame: UInt8[Tensor, "3 height width"]) -> UInt8[Tensor, "3 even_height even_width"]:
    """Repeat the last row and column where the height or width is odd, on the host."""
    frame = frame.to("cpu", torch.uint8)
    bottom = frame.shape[1] % 2
    right = frame.shape[2] % 2
    if not bottom and not right:
        return frame
    return functional.pad(frame[None].float(), (0, right, 0, bottom), mode="replicate")[0].byte()
