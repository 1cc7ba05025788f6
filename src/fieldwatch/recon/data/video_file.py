"""Read a clip from a video file, decoded by FFmpeg through PyAV."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import av
from av.error import FFmpegError
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from fieldwatch.recon.data.clip_error import ClipError
from fieldwatch.recon.data.framing import Framing
from fieldwatch.recon.data.image_folder import FrameSelection, image_tensor
from fieldwatch.recon.data.image_names import IMAGE_SUFFIXES

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_QUARTER_TURNS = {
    90: Image.Transpose.ROTATE_90,
    180: Image.Transpose.ROTATE_180,
    -180: Image.Transpose.ROTATE_180,
    -90: Image.Transpose.ROTATE_270,
}
_READ_AHEAD = 48  # frames: up to this distance, decoding forward is preferred to seeking


@dataclass
class VideoFile:
    """Reads the frames of the first video stream of a file, with the stored rotation applied.

    `scan` must run once to the end before `read`: it records the time stamps by which `read` seeks.

    Raises:
        ClipError: if the file is not a video, has no video stream, is truncated, or changes its frame size.
    """

    path: Path
    framing: Framing
    selection: FrameSelection
    notes: list[str] = field(default_factory=list)
    _indices: list[int] = field(default_factory=list)
    _stamps: list[int] = field(default_factory=list)
    _cursor: "_Cursor | None" = None

    def __post_init__(self) -> None:
        """Check that there is a video stream."""
        _Cursor(self.path).close()

    @property
    def names(self) -> Sequence[str]:
        """Frame names by index in the file, such as `frame_00012`."""
        return [f"frame_{index:05d}" for index in self._indices]

    def scan(self) -> Iterator[UInt8[Tensor, "3 height width"]]:
        """Decode every selected frame once, in order."""
        self._indices = []
        self._stamps = []
        cursor = _Cursor(self.path)
        size = None
        while not self.selection.ends_before(cursor.decoded) and (frame := cursor.next()) is not None:
            index = cursor.decoded - 1
            size = size or (frame.height, frame.width)
            # Streams may change their resolution midway, which a clip of equal frames cannot represent.
            if size != (frame.height, frame.width):
                raise ClipError(_size_change(self.path, index, size, frame))
            if self.selection.includes(index):
                self._indices.append(index)
                # -1 marks a missing time stamp, which disables seeking for the whole file.
                self._stamps.append(-1 if frame.pts is None else frame.pts)
                yield self._finish(frame)
        self.selection.refuse_nothing(len(self._indices), cursor.decoded, self.path)
        cursor.close()

    def read(self, index: int) -> UInt8[Tensor, "3 height width"]:
        """Decode one frame by seeking to the preceding key frame, or by decoding forward if it is close."""
        frame_index = self._indices[index]
        stamp = self._stamps[index]
        if self._cursor is None:
            self._cursor = _Cursor(self.path)
        # Seeking by time requires unique, ascending, nonnegative time stamps.
        seekable = all(a < b for a, b in zip(self._stamps, self._stamps[1:], strict=False)) and self._stamps[0] >= 0
        frame = self._cursor.seek(frame_index, stamp) if seekable else None
        if frame is None:  # without usable time stamps, frames are counted from the beginning
            self._cursor.close()
            self._cursor = _Cursor(self.path)
            while self._cursor.decoded <= frame_index:
                frame = self._cursor.next()
        if frame is None:
            msg = f"frame {frame_index} of {self.path} no longer exists: the file was changed during use; start again"
            raise ClipError(msg)
        return self._finish(frame)

    def close(self) -> None:
        """Close the file."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _finish(self, frame: "VideoFrame") -> UInt8[Tensor, "3 height width"]:
        image = frame.to_image()
        turn = _QUARTER_TURNS.get(frame.rotation)
        image = image if turn is None else image.transpose(turn)
        return image_tensor(self.framing.apply(image, str(self.path)))


class _Cursor:
    """An open video with a read position.

    Attributes:
        decoded: index of the next frame; after a seek only as accurate as the time stamps.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.container, self.stream = _open(path)
        self.decoded = 0
        self._packets = 0
        self._end = 0.0
        self._frames = self._decode()

    def close(self) -> None:
        self.container.close()

    def next(self) -> "VideoFrame | None":
        frame = next(self._frames, None)
        self.decoded += frame is not None
        return frame

    def seek(self, frame_index: int, stamp: int) -> "VideoFrame | None":
        """Return the frame with this index and time stamp, or None if it cannot be found by its time stamp."""
        if not 0 <= frame_index - self.decoded <= _READ_AHEAD:
            # Seeking lands on the key frame at or before the time stamp; decoding continues from there.
            self.container.seek(stamp, stream=self.stream, backward=True)
            self._frames = self._decode(checked=False)
        for frame in self._frames:
            # Beyond the time stamp: the time stamps of this file are not reliable for seeking.
            if frame.pts is None or frame.pts > stamp:
                return None
            if frame.pts == stamp:
                self.decoded = frame_index + 1
                return frame
        return None

    def _decode(self, *, checked: bool = True) -> "Iterator[VideoFrame]":
        """Yield frames; if `checked`, raise at the end of a truncated or damaged file.

        Raises:
            ClipError: if the file is truncated or damaged.
        """
        problem = ""
        try:
            # container.decode would hide which packets FFmpeg marks as corrupt.
            for packet in self.container.demux(self.stream):
                # PyAV ends with an empty packet that flushes the decoder.
                self._packets += packet.size > 0
                if packet.is_corrupt:
                    problem = "a damaged packet"
                for frame in packet.decode():
                    self._end = max(self._end, (frame.time or 0.0))
                    yield frame
        except FFmpegError as error:
            problem = error.strerror or type(error).__name__
        # A file cut at a packet boundary decodes without errors; only its header reveals the missing frames.
        problem = problem or self._missing()
        if checked and problem:
            raise ClipError(_cut_short(self.path, self.decoded, problem))

    def _missing(self) -> str:
        """Describe the frames that the header states but the file lacks; '' if none are missing."""
        if self.stream.frames > self._packets:
            return f"the header states {self.stream.frames} frames"
        stated_seconds = (self.container.duration or 0) / av.time_base
        only_stream = len(self.container.streams) == 1
        # The duration covers all streams, so it says nothing about the video if there is a longer audio stream. Stated
        # durations are often rounded, so 10 % and one frame are tolerated.
        if (
            only_stream
            and self.stream.frames == 0
            and self._end < 0.9 * stated_seconds - 1.0 / float(self.stream.average_rate or 1)
        ):
            return f"the header states {stated_seconds:.2f} s, the last frame is at {self._end:.2f} s"
        return ""


def _open(path: Path) -> "tuple[InputContainer, VideoStream]":
    if path.suffix.lower() in IMAGE_SUFFIXES:
        msg = f"{path} is a single image, not a clip: pass the folder of the frames, or a video file"
        raise ClipError(msg)
    try:
        container = av.open(str(path))
    except (FFmpegError, OSError) as error:
        msg = (
            f"{path} cannot be opened as a video ({error.strerror}): it is cut short or in a format that FFmpeg does "
            "not support; copy it again, or extract its frames to a folder of PNG files and pass the folder"
        )
        raise ClipError(msg) from error
    if not container.streams.video:
        kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
        container.close()
        msg = f"{path} has no video stream (found: {kinds}): pass a video file"
        raise ClipError(msg)
    stream = container.streams.video[0]
    # AUTO lets FFmpeg decode frames in parallel if the codec supports it; PyAV's default is slices only.
    stream.thread_type = "AUTO"
    return container, stream


def _cut_short(path: Path, decoded: int, problem: str) -> str:
    if decoded == 0:
        return f"no frames of {path} can be decoded ({problem}): copy or encode the file again"
    return (
        f"{path} is cut short or damaged after {decoded} frames, the last intact frame is {decoded - 1} ({problem}): "
        f"copy or encode the file again, or read only the intact part with count={decoded} (at stride 1)"
    )


def _size_change(path: Path, index: int, size: tuple[int, int], frame: "VideoFrame") -> str:
    return (
        f"the frame size of {path} changes at frame {index}, from {size[0]}_{size[1]} to {frame.height}_{frame.width} "
        f"(height_width): read the first part with count={index}, or encode the file at one size"
    )
