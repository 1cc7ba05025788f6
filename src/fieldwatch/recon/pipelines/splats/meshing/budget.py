"""How much memory an extraction may take, and how it is shared out."""

import ctypes
import math
from collections.abc import Callable

import psutil

from fieldwatch import InputError

GIBIBYTE = 1 << 30
_LEAST = 128 << 20
_NO_LIMIT = 16 * GIBIBYTE
_RAY = 12 << 10  # bytes that one ray's neighbours and samples take at the most
_POINT = 160  # bytes that one surface point takes while those of all views are put together
_FACE = 700  # bytes that a mesh takes per face while it is cleaned
_MOST_RAYS = 1 << 11  # more are no faster: they leave the processor's cache


def _found_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


_trim = _found_trim()


def _rounded_up(gibibytes: float) -> float:
    """Return hundredths, one more than are needed."""
    return math.ceil(gibibytes * 100 + 1) / 100


class Budget:
    """Memory of this process that an extraction may come to take in all.

    Args:
        limit: GiB of resident memory, libraries and Gaussians included; None sets no limit.

    Raises:
        InputError: so much is taken already that next to nothing could be done.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = None if limit is None else int(limit * GIBIBYTE)
        if self._limit is not None and self.left() < _LEAST:
            taken = psutil.Process().memory_info().rss / GIBIBYTE
            raise InputError(
                f"--memory {limit} GiB: {taken:.2f} GiB are taken by the program and the Gaussians already; give at "
                f"least {_rounded_up(taken + _LEAST / GIBIBYTE):.2f}"
            )

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._limit is not None

    def left(self) -> int:
        """Bytes that may still be taken; a large number without a limit."""
        if self._limit is None:
            return _NO_LIMIT
        self.give_back()
        return self._limit - psutil.Process().memory_info().rss

    def give_back(self) -> None:
        """Have the C library return to the system what was freed; it would keep it for later, beside what comes then.

        Does nothing without a limit, nor where the library cannot (it is glibc's).
        """
        if self.limited and _trim is not None:
            _trim(0)

    def check_points(self, count: int) -> None:
        """Refuse more surface points than there is memory for.

        Raises:
            InputError: says how many fit.
        """
        room = self.share(0.5) // _POINT
        if self.limited and count > room:
            limit = (self._limit or 0) / GIBIBYTE
            short = (count - room) * _POINT * 2 / GIBIBYTE
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
        needed = count * _FACE
        left = self.left()
        if self.limited and needed > left:
            limit = (self._limit or 0) / GIBIBYTE
            fitting = int(resolution * math.sqrt(max(left, 0) / needed))
            raise InputError(
                f"--memory {limit:.3g} GiB leaves {left >> 20} MiB for a mesh of {count} faces, which takes "
                f"{needed >> 20}: a resolution of {fitting} fits, or --memory "
                f"{_rounded_up(limit + (needed - left) / GIBIBYTE):.2f}"
            )

    def rays(self) -> int:
        """Rays whose density may be looked at at once."""
        return min(max(self.share(0.25) // _RAY, 256), _MOST_RAYS)
