"""Cache of decoded photos within a memory budget, and a stream that decodes photos ahead of use."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from fieldwatch.recon.data.background_thread import BackgroundThread
from fieldwatch.recon.data.photos.photo import Photo, PhotoPixels

Read = Callable[[int], PhotoPixels]


class PhotoCache:
    """Caches decoded photos on a first-come basis until the budget is full; nothing is evicted.

    Training visits the photos in a new order every epoch. An LRU cache would then almost never hit, while a fixed
    subset hits for exactly its fraction of the photos.

    Args:
        read: decodes the photo at an index; may be called from several threads at once.
        budget: maximum number of bytes of decoded photos.
    """

    def __init__(self, read: Read, budget: int) -> None:
        self._read = read
        self._budget = budget
        self._photos: dict[int, PhotoPixels] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the cached photos."""
        return self._nbytes

    def contains(self, index: int) -> bool:
        """Return whether a photo is cached."""
        return index in self._photos

    def get(self, index: int) -> PhotoPixels:
        """Return a photo, decoding it unless it is cached."""
        cached = self._photos.get(index)
        if cached is not None:
            return cached
        picture = self._read(index)
        # Decoding happens outside the lock: two threads may decode the same photo, but neither blocks the other.
        with self._lock:
            # Another thread may have stored the photo meanwhile; its bytes must not be counted twice.
            if index not in self._photos and self._nbytes + picture.nbytes <= self._budget:
                self._photos[index] = picture
                self._nbytes += picture.nbytes
        return picture


class PhotoStream:
    """Iterates over photos in a given order while a background thread decodes the next ones.

    An iterator and a context manager. Decoding errors are raised by the `next` call that returns the photo, and name
    its file. Leaving the context (also by Ctrl-C) stops the thread after its current photo.

    Args:
        get: returns the photo at an index.
        order: photo indices, possibly infinite.
        ahead: number of photos decoded ahead.
    """

    def __init__(self, get: Callable[[int], Photo], order: Iterable[int], ahead: int = 4) -> None:
        self._get = get
        self._order = iter(order)
        self._thread = BackgroundThread("fieldwatch-photos")
        self._pending: deque[Future[Photo]] = deque()
        self._ahead = max(ahead, 1)

    def __iter__(self) -> Iterator[Photo]:
        return self

    def __next__(self) -> Photo:
        self._fill()
        if not self._pending:
            self.close()
            raise StopIteration
        # Refilling before and after waiting keeps the thread busy while the caller uses the photo.
        photo = self._thread.result(self._pending.popleft())
        self._fill()
        return photo

    def _fill(self) -> None:
        while len(self._pending) < self._ahead:
            index = next(self._order, None)
            if index is None:
                return
            self._pending.append(self._thread.submit(self._get, index))

    def close(self) -> None:
        """Stop decoding and discard the photos decoded ahead."""
        self._pending.clear()
        # Iterating over a closed stream ends, instead of submitting to a pool that is shut down.
        self._order = iter(())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
