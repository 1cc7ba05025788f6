"""Clips: a folder of images or a video file as 8-bit frames, in memory or decoded on demand."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import torch
from jaxtyping import UInt8
from torch import Tensor

from fieldwatch.recon.data.background_thread import BackgroundThread
from fieldwatch.recon.data.clip_error import ClipError
from fieldwatch.recon.data.framing import Framing
from fieldwatch.recon.data.image_folder import FrameSelection, ImageFolder
from fieldwatch.recon.data.video_file import VideoFile

GIBIBYTE = 1 << 30


@runtime_checkable
class FrameSource(Protocol):
    """Where frames come from: one full pass first, single frames afterwards."""

    notes: list[str]

    @property
    def names(self) -> Sequence[str]:
        """Names of the frames, complete after `scan`."""
        ...

    def scan(self) -> Iterator[UInt8[Tensor, "3 height width"]]:
        """Decode every frame once, in order."""
        ...

    def read(self, index: int) -> UInt8[Tensor, "3 height width"]:
        """Decode one frame; only ever called from one thread at a time."""
        ...

    def close(self) -> None:
        """Let go of open files."""
        ...


class FrameStream:
    """Frames decoded on demand by one thread, with the last used ones kept and the next one fetched ahead.

    Args:
        source: where the frames come from; only the decoding thread touches it.
        capacity: how many decoded frames are kept.
    """

    def __init__(self, source: FrameSource, capacity: int) -> None:
        self._source = source
        self._capacity = max(capacity, 2)
        self._thread = BackgroundThread("fieldwatch-frames")
        self._lock = threading.Lock()
        self._frames: OrderedDict[int, Future[Tensor]] = OrderedDict()

    def fetch(self, index: int) -> Future[Tensor]:
        """Begin to decode a frame, or return the one at hand."""
        with self._lock:
            # Removed and inserted again, so that the dictionary's order is the order of use.
            future = self._frames.pop(index, None)
            # A frame that failed to decode is tried again instead of raising forever.
            if future is None or (future.done() and future.exception() is not None):
                future = self._thread.submit(self._source.read, index)
            self._frames[index] = future
            while len(self._frames) > self._capacity:
                self._frames.popitem(last=False)
            return future

    def result(self, future: Future[Tensor]) -> Tensor:
        """Wait for a frame.

        Raises:
            RuntimeError: the decoding thread is no more.
        """
        return self._thread.result(future)

    def close(self) -> None:
        """Stop decoding and let go of open files."""
        self._thread.close()
        self._source.close()


class Clip:
    """Frames of one size, with their names and a digest of what they show.

    A clip in memory is one tensor; a larger one decodes on demand. `clip[i]` and `clip.batch(indices)` give the same
    values either way.

    Attributes:
        names: one per frame.
        height: pixels.
        width: pixels.
        digest: sha256 of the framing and of every pixel: equal digests mean equal frames.
        source: where it came from, for people.
        notes: what was done on the way (files ignored, alpha composited, ...).
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
        """Make a clip of frames at hand."""
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
        """All frames in one tensor; a streaming clip decodes them all (frames * 3 * height * width bytes)."""
        return self._frames if isinstance(self._frames, Tensor) else self.batch(range(len(self)))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 height width"]:
        """Return one frame (negative indices count from the end); a streaming clip begins to decode the next."""
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            msg = f"frame {index} of a clip of {len(self)}: indices run from {-len(self)} to {len(self) - 1}"
            raise IndexError(msg)
        if isinstance(self._frames, Tensor):
            return self._frames[position]
        frame = self._frames.fetch(position)
        if position + 1 < len(self):
            self._frames.fetch(position + 1)
        return self._frames.result(frame)

    def __iter__(self) -> Iterator[UInt8[Tensor, "3 height width"]]:
        return (self[i] for i in range(len(self)))

    def batch(self, indices: Iterable[int]) -> UInt8[Tensor, "batch 3 height width"]:
        """Return the frames with these indices, in this order."""
        positions = list(indices)
        if isinstance(self._frames, Tensor):
            return self._frames[positions]
        # Only the first: each access prefetches the next frame.
        self.prefetch(positions[:1])
        return torch.stack([self[i] for i in positions])

    def prefetch(self, indices: Iterable[int]) -> None:
        """Begin to decode frames that will be asked for next; nothing to do for a clip in memory."""
        if isinstance(self._frames, FrameStream):
            for index in indices:
                self._frames.fetch(index % len(self))

    def close(self) -> None:
        """Stop decoding; frames of a streaming clip can no longer be read."""
        if isinstance(self._frames, FrameStream):
            self._frames.close()


class _Digest:
    """sha256 over the framing and the pixels, so that caches know equal clips."""

    def __init__(self, framing: Framing) -> None:
        self._hash = hashlib.sha256(f"clip 1, crop {framing.crop}, resize {framing.resize}".encode())

    def add(self, frame: UInt8[Tensor, "3 height width"]) -> None:
        # The shape separates frames whose bytes would concatenate to the same stream.
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

    Every frame is decoded once, so damaged frames are found now and not in the middle of a training.

    Args:
        path: folder of images (png, jpg, bmp, tif, webp; natural order; other files are ignored) or video file.
        crop: centre crop `H_W`, `H_W_last` (after the resize) or `-1`.
        resize: `H_W`, one number for the shorter side, or `-1`.
        start: index of the first frame used.
        count: at most so many frames; None for all.
        stride: every so many-th frame is used.
        memory_budget: bytes of 8-bit frames held in memory; a larger clip decodes on demand, with this much as cache.

    Raises:
        ClipError: the path is missing, holds no frames, or they cannot be read, cropped or brought to one size.
    """
    path = Path(path).expanduser()
    framing = Framing(crop=crop, resize=resize)
    selection = FrameSelection(start, count, stride)
    if not path.exists():
        msg = f"{path} does not exist: give a folder of images or a video file"
        raise ClipError(msg)
    reader = ImageFolder if path.is_dir() else VideoFile
    source: FrameSource = reader(path, framing, selection)
    digest = _Digest(framing)
    total = 0
    size = (0, 0)
    in_memory: list[Tensor] | None = []
    for frame in source.scan():
        digest.add(frame)
        total = total + frame.numel()
        size = (frame.shape[1], frame.shape[2])
        # Over budget, frames seen so far are released at once; the pass goes on for the digest.
        if total > memory_budget:
            in_memory = None
        if in_memory is not None:
            in_memory.append(frame)
    frames = (
        FrameStream(source, capacity=memory_budget * len(source.names) // total)
        if in_memory is None
        else _joined(in_memory)
    )
    if in_memory is not None:
        source.close()
    return Clip(frames, names=source.names, size=size, digest=digest.hexdigest(), source=str(path), notes=source.notes)


def _joined(frames: list[Tensor]) -> UInt8[Tensor, "frames 3 height width"]:
    """Stack frames, letting each go once copied, so that memory holds them about once."""
    stacked = frames[0].new_empty((len(frames), *frames[0].shape))
    # Popping from the end frees each frame right after it was copied.
    for position in reversed(range(len(stacked))):
        stacked[position] = frames.pop()
    return stacked
