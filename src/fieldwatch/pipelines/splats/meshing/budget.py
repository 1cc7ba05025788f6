"""How much memory an extraction may take, and how it is shared out."""

import psutil

GIBIBYTE = 1 << 30
_LEAST = 128 << 20
_NO_LIMIT = 16 * GIBIBYTE
_RAY = 12 << 10  # bytes that one ray's neighbours and samples take at the most
_MOST_RAYS = 1 << 11  # more are no faster: they leave the processor's cache


class Budget:
    """Memory of this process that an extraction may come to take in all.

    Args:
        limit: GiB of resident memory, libraries and Gaussians included; None sets no limit.

    Raises:
        ValueError: so much is taken already that next to nothing could be done.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = None if limit is None else int(limit * GIBIBYTE)
        if self._limit is not None and self.left() < _LEAST:
            taken = psutil.Process().memory_info().rss / GIBIBYTE
            wanted = taken + 2 * _LEAST / GIBIBYTE
            raise ValueError(
                f"--memory {limit} GiB: {taken:.2f} GiB are taken by the program and the Gaussians already; give at "
                f"least {wanted:.1f}"
            )

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._limit is not None

    def left(self) -> int:
        """Bytes that may still be taken; a large number without a limit."""
        return _NO_LIMIT if self._limit is None else self._limit - psutil.Process().memory_info().rss

    def share(self, part: float) -> int:
        """Bytes that are a part of what is left; never below 0."""
        return max(int(self.left() * part), 0)

    def rays(self) -> int:
        """Rays whose density may be looked at at once."""
        return min(max(self.share(0.25) // _RAY, 256), _MOST_RAYS)
