"""Positions and initial sizes of the Gaussians on a triangle (SuGaR, section 4.3, and its public code)."""

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

PerTriangle = Literal[1, 3, 4, 6]
FirstSize = Literal["area", "shortest"]

Barycentric = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Arrangement of the Gaussians on a triangle.

    Attributes:
        centers: barycentric coordinates of the centers; each sums to 1.
        radius: initial standard deviation as a fraction of the side: the radius of the largest equal circles that fit
            into an equilateral triangle of side 1 without overlap.
    """

    centers: tuple[Barycentric, ...]
    radius: float

    def __len__(self) -> int:
        return len(self.centers)


_MIDDLE: Barycentric = (1 / 3, 1 / 3, 1 / 3)


def _around(first: float, other: float) -> tuple[Barycentric, ...]:
    """Return the three points with one coordinate `first` and two coordinates `other`."""
    # Sorted, because a set has no fixed order and the rows of checkpoints depend on it.
    points = sorted(set(permutations((first, other, other))), reverse=first > other)
    return tuple((a, b, c) for a, b, c in points)


PATTERNS: dict[PerTriangle, Pattern] = {
    1: Pattern(centers=(_MIDDLE,), radius=1 / (2 * math.sqrt(3))),
    3: Pattern(centers=_around(1 / 2, 1 / 4), radius=1 / (2 * (math.sqrt(3) + 1))),
    4: Pattern(centers=(_MIDDLE, *_around(2 / 3, 1 / 6)), radius=1 / (4 * math.sqrt(3))),
    # Three near the corners, three near the middles of the sides.
    6: Pattern(centers=(*_around(2 / 3, 1 / 6), *_around(1 / 6, 5 / 12)), radius=1 / (4 + 2 * math.sqrt(3))),
}
"""Patterns by the number of Gaussians per triangle."""
