"""Snapshots: copies of a run's state in host memory, so that training continues while they are written."""

import mmap
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from jaxtyping import UInt8
from torch import Tensor

from fieldwatch.checkpoint.array import Array, ArraySource
from fieldwatch.checkpoint.incident import CheckpointError
from fieldwatch.checkpoint.layout import aligned

GROWTH_FACTOR = 1.25
"""Factor by which more memory is allocated than needed, because the number of primitives grows."""
FULL_SHARE = 0.8
"""Fraction of the memory in use above which more is allocated in advance."""
SPARE_BYTES = 512 * 2**20
"""Memory in bytes that a snapshot leaves free for other uses."""
_HUGE_PAGE_BYTES = 2 * 2**20
_WIPE_ON_FORK = 18  # MADV_WIPEONFORK of linux/mman.h, since Linux 4.14; the mmap module has no name for it


class ShortOfMemoryError(CheckpointError):
    """There is not enough memory for a second copy of the state; the message contains the sizes."""


class HostBuffers:
    """Reusable host memory that snapshots are copied into, one at a time.

    Arrays on a GPU are copied into pinned memory on a side stream: the host does not wait, but later work on the GPU's
    current stream does.

    Args:
        available_bytes: function that returns the memory in bytes that the process may still allocate.
    """

    def __init__(self, available_bytes: Callable[[], int]) -> None:
        self._available_bytes = available_bytes
        self._memory: Tensor = torch.empty(0, dtype=torch.uint8)
        self._pinned = False
        self._used = 0
        self._copying: list[torch.cuda.Event] = []

    @property
    def capacity(self) -> int:
        """Size of the allocated memory in bytes."""
        return self._memory.numel()

    def copy_arrays(self, sources: Sequence[ArraySource]) -> list[Array]:
        """Copy arrays; the sources may change as soon as this returns.

        The copies of arrays on a GPU are complete after :meth:`wait`.

        Args:
            sources: arrays to copy.

        Returns:
            The copies, valid until the next call.

        Raises:
            ShortOfMemoryError: if there is not enough memory.
        """
        devices = {
            source.value.device for source in sources if isinstance(source.value, Tensor) and source.value.is_cuda
        }
        # Aligned to 64 bytes, so that views of any dtype are possible.
        self._make_room(sum(aligned(source.nbytes) for source in sources), pinned=bool(devices))
        targets = list[Tensor]()
        offset = 0
        for source in sources:
            targets.append(self._memory[offset : offset + source.nbytes])
            offset += aligned(source.nbytes)
        pairs = list(zip(sources, targets, strict=True))
        copies: dict[int, Array] = {}
        # One side stream per device; None stands for arrays on the host.
        for device in (None, *devices):
            indices = [k for k, (source, _) in enumerate(pairs) if _device(source) == device]
            with _SideStream(device, self._copying):
                copies |= {k: pairs[k][0].copied_to(pairs[k][1]) for k in indices}
        return [copies[k] for k in range(len(pairs))]

    def wait(self) -> None:
        """Wait until all copies are complete; may be called from any thread."""
        for event in self._copying:
            event.synchronize()
        self._copying.clear()

    def make_room_ahead(self) -> None:
        """Allocate more memory if the last snapshot nearly filled it.

        Called on the writer's thread after the snapshot was written. A failure is ignored, because the next snapshot
        tries again.
        """
        if self._used > FULL_SHARE * self.capacity:
            with suppress(ShortOfMemoryError):
                self._allocate(int(self._used * GROWTH_FACTOR / FULL_SHARE), pinned=self._pinned)

    def _make_room(self, nbytes: int, *, pinned: bool) -> None:
        self._used = nbytes
        if nbytes > self.capacity or (pinned and not self._pinned):
            try:
                # With room to grow if possible, else the exact size.
                self._allocate(int(nbytes * GROWTH_FACTOR), pinned=pinned)
            except ShortOfMemoryError:
                self._allocate(nbytes, pinned=pinned)

    def _allocate(self, nbytes: int, *, pinned: bool) -> None:
        # torch's pinned allocator rounds up to powers of two: check the size that it will really allocate.
        needed = 1 << max(nbytes - 1, 1).bit_length() if pinned else -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        free = self._available_bytes() + self.capacity
        if needed + SPARE_BYTES > free:
            raise ShortOfMemoryError(
                f"a snapshot needs {needed:,} bytes of memory and {SPARE_BYTES:,} to spare, {free:,} are free: "
                "training waits while it is saved; free memory to save in the background"
            )
        # The old memory is released before the new one is allocated.
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._memory = (_pinned if pinned else _pages)(needed)
        self._pinned = pinned


class _SideStream:
    """Context in which copies from one GPU run on a side stream; later work on the current stream waits for them."""

    def __init__(self, device: torch.device | None, events: list[torch.cuda.Event]) -> None:
        self._device = device
        self._events = events

    def __enter__(self) -> None:
        if self._device is not None:
            self._current = torch.cuda.current_stream(self._device)
            self._side = torch.cuda.Stream(self._device)
            # The copy must come after the work that the current stream has queued so far.
            self._side.wait_stream(self._current)
            self._context = torch.cuda.stream(self._side)
            self._context.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if self._device is not None:
            self._context.__exit__(kind, error, at)
            event = torch.cuda.Event()
            event.record(self._side)
            # Later work may change the arrays in place, so it waits for the copy on the device.
            self._current.wait_event(event)
            self._events.append(event)


def _device(source: ArraySource) -> torch.device | None:
    on_gpu = isinstance(source.value, Tensor) and source.value.is_cuda
    return source.value.device if on_gpu and isinstance(source.value, Tensor) else None


def _pinned(nbytes: int) -> UInt8[Tensor, "nbytes"]:
    try:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        raise ShortOfMemoryError(f"{nbytes:,} bytes of pinned memory cannot be allocated: {error}") from error


def _pages(nbytes: int) -> UInt8[Tensor, "nbytes"]:
    """Allocate memory directly with mmap, so that forked workers do not share it and it is returned as a whole."""
    try:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ShortOfMemoryError(f"{nbytes:,} bytes of memory cannot be allocated: {error}") from error
    if sys.platform == "linux":
        # A forked worker would otherwise share the pages, and the next snapshot would copy each of them on write. It
        # keeps the addresses: with MADV_DONTFORK, something else could lie there, and its copy of the mmap object would
        # unmap that. Old systems share, and not all have huge pages.
        for advice in (_WIPE_ON_FORK, *([mmap.MADV_HUGEPAGE] if nbytes >= _HUGE_PAGE_BYTES else [])):
            with suppress(OSError):
                pages.madvise(advice)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    # Touch the pages now, so that page faults do not slow down a snapshot.
    memory.numpy().fill(0)
    return memory
