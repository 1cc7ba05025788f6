"""Memory budget of an extraction."""

import ctypes
import math
from collections.abc import Callable

import psutil

from fieldwatch import InputError

GIBIBYTE = 1 << 30
_MIN_LEFT = 128 << 20
_NO_LIMIT = 16 * GIBIBYTE
_BYTES_PER_RAY = 12 << 10  # upper bound, for the neighbors and samples of a ray
_BYTES_PER_POINT = 160  # of a surface point while the points of all views are joined
_BYTES_PER_FACE = 850  # of a face while its mesh is cleaned; 760 to 790 were measured
_MIN_RAYS = 256
_MAX_RAYS = 1 << 11  # more rays are not faster, because they exceed the processor's cache


def _find_malloc_trim() -> Callable[[int], int] | None:
    # Only glibc has it: None with musl or on macOS.
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


_malloc_trim = _find_malloc_trim()


def _rounded_up(gibibytes: float) -> float:
    """Round up to hundredths, plus one hundredth as a reserve."""
    return math.ceil(gibibytes * 100 + 1) / 100


class MemoryBudget:
    """Memory that this process may use during an extraction.

    Args:
        limit: maximum resident memory, GiB, including libraries and Gaussians; None for no limit.

    Raises:
        InputError: The process already uses nearly all of it.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = None if limit is None else int(limit * GIBIBYTE)
        if self._limit is not None and self.left() < _MIN_LEFT:
            used = psutil.Process().memory_info().rss / GIBIBYTE
            raise InputError(
                f"--memory {limit} GiB: the program and the Gaussians already use {used:.2f} GiB; give at least "
                f"{_rounded_up(used + _MIN_LEFT / GIBIBYTE):.2f}"
            )

    @property
    def limited(self) -> bool:
        """Whether memory is limited."""
        return self._limit is not None

    def left(self) -> int:
        """Return the remaining memory, bytes; a large number without a limit."""
        if self._limit is None:
            return _NO_LIMIT
        self.release_freed()
        return self._limit - psutil.Process().memory_info().rss

    def release_freed(self) -> None:
        """Return freed memory to the system; otherwise the C library keeps it and it counts as used.

        Do nothing without a limit or if the C library is not glibc.
        """
        if self.limited and _malloc_trim is not None:
            _malloc_trim(0)

    def check_points(self, count: int) -> None:
        """Check that the surface points fit into memory.

        Raises:
            InputError: They do not; the message says how many fit.
        """
        room = self.share(0.5) // _BYTES_PER_POINT
        if self.limited and count > room:
            limit = (self._limit or 0) / GIBIBYTE
            # Doubled, because `room` is half of the remaining memory.
            short = (count - room) * _BYTES_PER_POINT * 2 / GIBIBYTE
            raise InputError(
                f"--memory {limit:.3g} GiB leaves room for {room} surface points, but there may be {count}: give "
                f"--points {room // 1000 * 1000}, or --memory {_rounded_up(limit + short):.2f}"
            )

    def share(self, part: float) -> int:
        """Return a fraction of the remaining memory, bytes, at least 0."""
        return max(int(self.left() * part), 0)

    def check_faces(self, count: int, resolution: int) -> None:
        """Check that there is enough memory to clean a mesh.

        Raises:
            InputError: There is not; the message says how much is needed and which resolution fits.
        """
        needed = count * _BYTES_PER_FACE
        left = self.left()
        if self.limited and needed > left:
            limit = (self._limit or 0) / GIBIBYTE
            # The number of faces grows with the square of the resolution.
            fitting = int(resolution * math.sqrt(max(left, 0) / needed))
            raise InputError(
                f"--memory {limit:.3g} GiB leaves {left >> 20} MiB for a mesh of {count} faces, which needs "
                f"{needed >> 20} MiB: a resolution of {fitting} fits, or --memory "
                f"{_rounded_up(limit + (needed - left) / GIBIBYTE):.2f}"
            )

    def rays(self) -> int:
        """Return the number of rays whose density can be computed at once."""
        return min(max(self.share(0.25) // _BYTES_PER_RAY, _MIN_RAYS), _MAX_RAYS)
