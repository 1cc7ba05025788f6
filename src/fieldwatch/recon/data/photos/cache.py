"""Decoded photos within a memory budget, and photos decoded ahead of the loop that wants them."""

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
    """Reads pictures and keeps them until the budget is full; those that came first stay.

    Training draws photos in a new order every epoch. A cache that drops the least recently used photo then hits almost
    never; one that keeps any fixed part of them hits for just that part.

    Args:
        read: decodes the picture with an index; may be called from several threads at once.
        budget: bytes of decoded pictures that are kept.
    """

    def __init__(self, read: Read, budget: int) -> None:
        self._read = read
        self._budget = budget
        self._photos: dict[int, PhotoPixels] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the pictures that are kept."""
        return self._nbytes

    def contains(self, index: int) -> bool:
        """Tell whether a picture is at hand without decoding."""
        return index in self._photos

    def get(self, index: int) -> PhotoPixels:
        """Return a picture, decoded now unless it is kept."""
        cached = self._photos.get(index)
        if cached is not None:
            return cached
        picture = self._read(index)
        # Decoding runs outside the lock: two threads may decode one photo, but neither waits.
        with self._lock:
            # Another thread may have stored it meanwhile; never count its bytes twice.
            if index not in self._photos and self._nbytes + picture.nbytes <= self._budget:
                self._photos[index] = picture
                self._nbytes += picture.nbytes
        return picture


class PhotoStream:
    """Photos in a given order, the next ones decoded by a thread while the loop is busy with this one.

    An iterator and a context manager. What goes wrong while decoding is raised where the photo is asked for, and names
    its file. Leaving the context (also by Ctrl-C) stops the thread after the photo it is at.

    Args:
        get: returns the photo with an index.
        order: indices, possibly without end.
        ahead: how many photos are decoded ahead.
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
        """Stop decoding; photos that were waiting are dropped."""
        self._pending.clear()
        # A closed stream ends instead of submitting to a pool that is shut down.
        self._order = iter(())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
