"""Where the Gaussians of a triangle lie in it, and how large they begin (SuGaR, section 4.3, and its public code)."""

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

PerTriangle = Literal[1, 3, 4, 6]
FirstSize = Literal["area", "shortest"]

Barycentric = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """The Gaussians of one triangle.

    Attributes:
        centres: barycentric coordinates; each sums to 1.
        radius: standard deviation at the start, in shares of the shortest side: of so many equal circles in an
            equilateral triangle of side 1, the largest that fit without overlap.
    """

    centres: tuple[Barycentric, ...]
    radius: float

    def __len__(self) -> int:
        return len(self.centres)


_MIDDLE: Barycentric = (1 / 3, 1 / 3, 1 / 3)


def _around(first: float, other: float) -> tuple[Barycentric, ...]:
    """The three points with one coordinate `first`, the two others `other`."""
    # Sorted, as a set has no fixed order: the rows of checkpoints follow this one.
    points = sorted(set(permutations((first, other, other))), reverse=first > other)
    return tuple((a, b, c) for a, b, c in points)


PATTERNS: dict[PerTriangle, Pattern] = {
    1: Pattern(centres=(_MIDDLE,), radius=1 / (2 * math.sqrt(3))),
    3: Pattern(centres=_around(1 / 2, 1 / 4), radius=1 / (2 * (math.sqrt(3) + 1))),
    4: Pattern(centres=(_MIDDLE, *_around(2 / 3, 1 / 6)), radius=1 / (4 * math.sqrt(3))),
    6: Pattern(centres=(*_around(2 / 3, 1 / 6), *_around(1 / 6, 5 / 12)), radius=1 / (4 + 2 * math.sqrt(3))),
}
"""By their number."""
