"""Write frames to an mp4 file."""

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
"""Encoders in order of preference."""


def write_video(
    path: Path | str, frames: Iterable[UInt8[Tensor, "3 height width"]], *, rate: float = 24.0, quality: int = 18
) -> Path:
    """Write frames atomically to an mp4 file, as H.264 if FFmpeg has an encoder for it, else as MPEG-4.

    Odd heights and widths are padded by repeating the last row or column, because 4:2:0 chroma requires even sizes.

    Args:
        path: destination ending in `.mp4`; replaced if it exists.
        frames: RGB frames, 8 bit. Any iterable works, so long videos need not fit into memory.
        rate: frames per second.
        quality: constant rate factor of H.264, from 0 (lossless) to 51; 18 is visually lossless. Ignored for MPEG-4.

    Raises:
        ClipError: if there are no frames or their sizes differ.
    """
    path = Path(path)
    with (
        whole_file(path) as draft,
        # faststart moves the index to the front, so that browsers play the video while it loads.
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
        frame_size = (int(frame.shape[1]), int(frame.shape[2]))
        if stream is None:
            size = frame_size
            stream = _stream(container, size, rate, quality)
        if frame_size != size:
            msg = (
                f"frame {number} for {path} is {frame_size[0]}_{frame_size[1]}, expected {size[0]}_{size[1]} "
                "(height_width) as in the first frame"
            )
            raise ClipError(msg)
        picture = av.VideoFrame.from_ndarray(_even(frame).permute(1, 2, 0).contiguous().numpy(), format="rgb24")
        container.mux(stream.encode(picture))
    if stream is None:
        msg = f"no frames for {path}: a video needs at least one frame"
        raise ClipError(msg)
    # Encoding None flushes the frames that the encoder buffers for B-frames.
    container.mux(stream.encode(None))


def _stream(container: "OutputContainer", size: tuple[int, int], rate: float, quality: int) -> "VideoStream":
    name = next((name for name in CODECS if _can_encode(name)), CODECS[-1])
    options = {"crf": str(quality), "preset": "medium"} if name == "libx264" else {"q:v": "2"}
    # PyAV's stubs infer the stream type only from literal codec names; both codecs here are video.
    stream = cast("VideoStream", container.add_stream(name, Fraction(rate).limit_denominator(1001), options))
    stream.height = size[0] + size[0] % 2
    stream.width = size[1] + size[1] % 2
    # yuv420p is the only chroma format that all players decode.
    stream.pix_fmt = "yuv420p"
    return stream


def _can_encode(name: str) -> bool:
    try:
        return av.Codec(name, "w").is_encoder
    except UnknownCodecError:
        return False


def _even(frame: UInt8[Tensor, "3 height width"]) -> UInt8[Tensor, "3 even_height even_width"]:
    """Pad a frame to even height and width on the CPU by repeating the last row and column."""
    frame = frame.to("cpu", torch.uint8)
    bottom = frame.shape[1] % 2
    right = frame.shape[2] % 2
    if not bottom and not right:
        return frame
    return functional.pad(frame[None].float(), (0, right, 0, bottom), mode="replicate")[0].byte()
