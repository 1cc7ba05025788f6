"""How much memory an extraction may take, and the shares of it."""

import ctypes
import math
from collections.abc import Callable

import psutil

from fieldwatch import InputError

GIBIBYTE = 1 << 30
_MIN_LEFT = 128 << 20
_NO_LIMIT = 16 * GIBIBYTE
_BYTES_PER_RAY = 12 << 10  # of its neighbours and samples, at the most
_BYTES_PER_POINT = 160  # of a surface point while those of all views are put together
_BYTES_PER_FACE = 700  # of a mesh while it is cleaned
_MIN_RAYS = 256
_MAX_RAYS = 1 << 11  # more are no faster: they leave the processor's cache


def _find_malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


_malloc_trim = _find_malloc_trim()


def _rounded_up(gibibytes: float) -> float:
    """Return hundredths, one more than are needed."""
    return math.ceil(gibibytes * 100 + 1) / 100


class MemoryBudget:
    """The memory that this process may take during an extraction.

    Args:
        limit: GiB of resident memory, libraries and Gaussians included; None sets no limit.

    Raises:
        InputError: so much is taken already that next to nothing could be done.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = None if limit is None else int(limit * GIBIBYTE)
        if self._limit is not None and self.left() < _MIN_LEFT:
            taken = psutil.Process().memory_info().rss / GIBIBYTE
            raise InputError(
                f"--memory {limit} GiB: {taken:.2f} GiB are taken by the program and the Gaussians already; give at "
                f"least {_rounded_up(taken + _MIN_LEFT / GIBIBYTE):.2f}"
            )

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._limit is not None

    def left(self) -> int:
        """Bytes that may still be taken; a large number without a limit."""
        if self._limit is None:
            return _NO_LIMIT
        self.release_freed()
        return self._limit - psutil.Process().memory_info().rss

    def release_freed(self) -> None:
        """Have the C library return freed memory to the system; it would keep it, and count as taken, otherwise.

        Does nothing without a limit, nor where the library is not glibc.
        """
        if self.limited and _malloc_trim is not None:
            _malloc_trim(0)

    def check_points(self, count: int) -> None:
        """Refuse more surface points than there is memory for.

        Raises:
            InputError: says how many fit.
        """
        room = self.share(0.5) // _BYTES_PER_POINT
        if self.limited and count > room:
            limit = (self._limit or 0) / GIBIBYTE
            # Twice, as `room` is half of what is left.
            short = (count - room) * _BYTES_PER_POINT * 2 / GIBIBYTE
            raise InputError(
                f"--memory {limit:.3g} GiB leaves room for {room} surface points, and there may be {count}: give "
                f"--points {room // 1000 * 1000}, or --memory {_rounded_up(limit + short):.2f}"
            )

    def share(self, part: float) -> int:
        """Bytes that are a part of what is left; never below 0."""
        return max(int(self.left() * part), 0)

    def check_faces(self, count: int, resolution: int) -> None:
        """Refuse a mesh that there is no memory to clean for.

        Raises:
            InputError: says what is needed, and which resolution fits.
        """
        needed = count * _BYTES_PER_FACE
        left = self.left()
        if self.limited and needed > left:
            limit = (self._limit or 0) / GIBIBYTE
            # Faces grow with the square of the resolution.
            fitting = int(resolution * math.sqrt(max(left, 0) / needed))
            raise InputError(
                f"--memory {limit:.3g} GiB leaves {left >> 20} MiB for a mesh of {count} faces, which takes "
                f"{needed >> 20}: a resolution of {fitting} fits, or --memory "
                f"{_rounded_up(limit + (needed - left) / GIBIBYTE):.2f}"
            )

    def rays(self) -> int:
        """Number of rays whose density may be computed at once."""
        return min(max(self.share(0.25) // _BYTES_PER_RAY, _MIN_RAYS), _MAX_RAYS)
