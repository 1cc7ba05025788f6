"""Clips: 8-bit frames of an image folder or video file, held in memory or decoded on demand."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import torch
from jaxtyping import UInt8
from torch import Tensor

from fieldwatch.recon.data.background_thread import BackgroundThread
from fieldwatch.recon.data.clip_error import ClipError
from fieldwatch.recon.data.framing import Framing
from fieldwatch.recon.data.image_folder import FrameSelection, ImageFolder

if TYPE_CHECKING:
    from fieldwatch.recon.data.video_file import VideoFile

GIBIBYTE = 1 << 30


@runtime_checkable
class FrameSource(Protocol):
    """Reader of a clip's frames. `scan` must run once to the end before `read` is called."""

    notes: list[str]

    @property
    def names(self) -> Sequence[str]:
        """Frame names, complete after `scan`."""
        ...

    def scan(self) -> Iterator[UInt8[Tensor, "3 height width"]]:
        """Decode every frame once, in order."""
        ...

    def read(self, index: int) -> UInt8[Tensor, "3 height width"]:
        """Decode one frame. Never called from two threads at the same time."""
        ...

    def close(self) -> None:
        """Close open files."""
        ...


class FrameStream:
    """Decodes frames on demand in one thread and keeps the most recently used ones.

    Args:
        source: reader of the frames, used only by the decoding thread.
        capacity: number of decoded frames to keep, at least 2.
    """

    def __init__(self, source: FrameSource, capacity: int) -> None:
        self._source = source
        self._capacity = max(capacity, 2)
        self._thread = BackgroundThread("fieldwatch-frames")
        self._lock = threading.Lock()
        self._frames: OrderedDict[int, Future[Tensor]] = OrderedDict()

    def fetch(self, index: int) -> Future[Tensor]:
        """Start decoding a frame, or return the future of a cached one."""
        with self._lock:
            # Removing and inserting keeps the dictionary in order of use, least recent first.
            future = self._frames.pop(index, None)
            # A frame that failed to decode is retried instead of raising the same error forever.
            if future is None or (future.done() and future.exception() is not None):
                future = self._thread.submit(self._source.read, index)
            self._frames[index] = future
            while len(self._frames) > self._capacity:
                self._frames.popitem(last=False)
            return future

    def result(self, future: Future[Tensor]) -> Tensor:
        """Wait for a frame.

        Raises:
            RuntimeError: if the decoding thread no longer exists.
        """
        return self._thread.result(future)

    def close(self) -> None:
        """Stop decoding and close open files."""
        self._thread.close()
        self._source.close()


class Clip:
    """Frames of equal size with names and a content digest.

    A small clip is held in memory as one tensor; a larger one is decoded on demand. `clip[i]` and
    `clip.batch(indices)` return the same values either way.

    Attributes:
        names: frame names.
        height: frame height in pixels.
        width: frame width in pixels.
        digest: SHA-256 of the framing and every pixel; equal digests mean equal frames.
        source: human-readable origin of the clip, such as its path.
        notes: human-readable notes about the reading (files ignored, alpha composited, ...).
    """

    def __init__(  # noqa: PLR0913 - the fields of a record; readers build it, people use read_clip
        self,
        frames: UInt8[Tensor, "frames 3 height width"] | FrameStream,
        *,
        names: Sequence[str],
        size: tuple[int, int],
        digest: str,
        source: str,
        notes: Sequence[str] = (),
    ) -> None:
        self._frames = frames
        self.names = tuple(names)
        self.height, self.width = size
        self.digest = digest
        self.source = source
        self.notes = tuple(notes)

    @classmethod
    def of(cls, frames: UInt8[Tensor, "frames 3 height width"], *, source: str, names: Sequence[str] = ()) -> Self:
        """Create a clip from a tensor of frames."""
        digest = _Digest(Framing())
        for frame in frames:
            digest.add(frame)
        names = names or [f"frame_{i:05d}" for i in range(len(frames))]
        size = (frames.shape[2], frames.shape[3])
        return cls(frames, names=names, size=size, digest=digest.hexdigest(), source=source)

    @property
    def streams(self) -> bool:
        """Whether frames are decoded on demand."""
        return isinstance(self._frames, FrameStream)

    @property
    def frames(self) -> UInt8[Tensor, "frames 3 height width"]:
        """All frames in one tensor of frames * 3 * height * width bytes; a streaming clip decodes all of them."""
        return self._frames if isinstance(self._frames, Tensor) else self.batch(range(len(self)))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 height width"]:
        """Return one frame; negative indices count from the end. A streaming clip also prefetches the next frame."""
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            msg = f"frame index {index} is out of range: expected {-len(self)} to {len(self) - 1}"
            raise IndexError(msg)
        if isinstance(self._frames, Tensor):
            return self._frames[position]
        # Most loops read frames in order, so the next one is decoded while this one is used.
        frame = self._frames.fetch(position)
        if position + 1 < len(self):
            self._frames.fetch(position + 1)
        return self._frames.result(frame)

    def __iter__(self) -> Iterator[UInt8[Tensor, "3 height width"]]:
        return (self[i] for i in range(len(self)))

    def batch(self, indices: Iterable[int]) -> UInt8[Tensor, "batch 3 height width"]:
        """Return the frames at the given indices, in that order."""
        positions = list(indices)
        if isinstance(self._frames, Tensor):
            return self._frames[positions]
        # Prefetching one frame suffices here: __getitem__ starts decoding the next one itself.
        self.prefetch(positions[:1])
        return torch.stack([self[i] for i in positions])

    def prefetch(self, indices: Iterable[int]) -> None:
        """Start decoding frames that will be needed soon; does nothing for a clip in memory."""
        if isinstance(self._frames, FrameStream):
            for index in indices:
                # The modulus maps negative indices to positions from the end.
                self._frames.fetch(index % len(self))

    def close(self) -> None:
        """Stop decoding. Frames of a streaming clip can no longer be read afterwards."""
        if isinstance(self._frames, FrameStream):
            self._frames.close()


class _Digest:
    """SHA-256 over framing and pixels, used as the key of caches."""

    def __init__(self, framing: Framing) -> None:
        # "clip 1" is the version of the digest; increment it when other data is hashed.
        self._hash = hashlib.sha256(f"clip 1, crop {framing.crop}, resize {framing.resize}".encode())

    def add(self, frame: UInt8[Tensor, "3 height width"]) -> None:
        # Hashing the shape distinguishes frames whose concatenated bytes would be equal.
        self._hash.update(f"{tuple(frame.shape)}".encode())
        self._hash.update(frame.contiguous().numpy().data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def read_clip(  # noqa: PLR0913 - one keyword per command-line option
    path: Path | str,
    *,
    crop: str = "-1",
    resize: str = "-1",
    start: int = 0,
    count: int | None = None,
    stride: int = 1,
    memory_budget: int = GIBIBYTE,
) -> Clip:
    """Read a clip from a folder of images or a video file.

    Every frame is decoded once, so that damaged frames are found now and not in the middle of a training.

    Args:
        path: video file, or folder of images (png, jpg, bmp, tif, webp) in natural order; other files are ignored.
        crop: center crop `H_W`, `H_W_last` (after the resize) or `-1` for none.
        resize: size `H_W`, one number for the shorter side, or `-1` for none.
        start: index of the first frame to use.
        count: maximum number of frames; None for all.
        stride: step between two frames to use; 1 uses every frame.
        memory_budget: maximum number of bytes of 8-bit frames in memory. A larger clip is decoded on demand, with a
            cache of this size.

    Raises:
        ClipError: if the path does not exist or contains no frames, or if the frames cannot be read, cropped or resized
            to a common size.
    """
    path = Path(path).expanduser()
    framing = Framing(crop=crop, resize=resize)
    selection = FrameSelection(start, count, stride)
    if not path.exists():
        # A run keeps the path as it was given, and may be evaluated from another folder.
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        msg = f"{path} does not exist{where}: pass a folder of images or a video file"
        raise ClipError(msg)
    reader = ImageFolder if path.is_dir() else _video_reader()
    source: FrameSource = reader(path, framing, selection)
    digest = _Digest(framing)
    total = 0
    size = (0, 0)
    in_memory: list[Tensor] | None = []
    for frame in source.scan():
        digest.add(frame)
        total = total + frame.numel()
        size = (frame.shape[1], frame.shape[2])
        # Over budget, the frames read so far are released; the scan continues for the digest and for damaged frames.
        if total > memory_budget:
            in_memory = None
        if in_memory is not None:
            in_memory.append(frame)
    # The average frame size converts the budget from bytes to frames.
    frames = (
        FrameStream(source, capacity=memory_budget * len(source.names) // total)
        if in_memory is None
        else _joined(in_memory)
    )
    # A clip in memory no longer needs its decoder; a FrameStream closes it itself.
    if in_memory is not None:
        source.close()
    return Clip(frames, names=source.names, size=size, digest=digest.hexdigest(), source=str(path), notes=source.notes)


def _joined(frames: list[Tensor]) -> UInt8[Tensor, "frames 3 height width"]:
    """Stack frames and free each one once it is copied, which keeps peak memory at about one copy."""
    stacked = frames[0].new_empty((len(frames), *frames[0].shape))
    # Popping from the end frees each frame right after it is copied.
    for position in reversed(range(len(stacked))):
        stacked[position] = frames.pop()
    return stacked


def _video_reader() -> "type[VideoFile]":
    # A folder of frames and the built-in clip need no FFmpeg.
    from fieldwatch.recon.data.video_file import VideoFile  # noqa: PLC0415  at first use

    return VideoFile
