"""Thinning of series for charts: each bucket keeps its extremes, and isolated spikes are kept."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
_SAMPLE = 16_384
"""Number of values from which the height of a spike is estimated."""
SPIKES = 4
"""Reciprocal of the fraction of points reserved for values that stand out from both neighbors."""


def chosen_points(values: Floats, most: int) -> Places:
    """Return the rows to keep, ascending; all rows if there are at most ``most``.

    The rows are divided into buckets of equal length. Each bucket keeps its smallest and largest finite value and its
    first non-finite one; the first and the last row are always kept. A quarter of the points is reserved for the rows
    that stand out most from both neighbors, so that of two spikes in one bucket the smaller one is kept as well.

    Args:
        values: ``[n]`` values in order of step; NaN and infinity are allowed.
        most: maximum number of rows, at least 16; usually somewhat fewer are kept.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    # A bucket keeps its minimum and maximum, and its first non-finite value if there are any.
    each = 2 if np.isfinite(values).all() else 3
    buckets = max((most - most // SPIKES - 2) // each, 1)
    # Rounded up, so that there is never a bucket too many.
    length = -(-count // buckets)
    kept = [_extremes(values, length), _spikes(values, most // SPIKES), np.array([0, count - 1], np.intp)]
    return np.unique(np.concatenate(kept))


def _extremes(values: Floats, length: int) -> Places:
    """Return the rows of the lowest, the highest and the first non-finite value of each bucket."""
    # Padded to a whole table with one bucket per row, which numpy reduces at once.
    padding = -len(values) % length
    finite = np.isfinite(values)
    starts = np.arange(0, len(values), length)
    kept: list[Places] = []
    # Padding and non-finite values become the value that cannot win.
    for empty, pick in ((np.inf, np.argmin), (-np.inf, np.argmax)):
        table = np.pad(np.where(finite, values, empty), (0, padding), constant_values=empty).reshape(-1, length)
        places = pick(table, axis=1)
        # A bucket without a finite value has no extreme.
        known = np.isfinite(table[np.arange(len(table)), places])
        kept.append((starts + places)[known])
    if not finite.all():
        bad = np.pad(~finite, (0, padding)).reshape(-1, length)
        kept.append((starts + bad.argmax(axis=1))[bad.any(axis=1)])
    return np.concatenate(kept)


def _spikes(values: Floats, most: int) -> Places:
    """Return at most ``most`` rows that stand out most above or below both of their neighbors."""
    # inf - inf is NaN, which is dropped below.
    with np.errstate(invalid="ignore", over="ignore"):
        middle = values[1:-1]
        before = values[:-2]
        after = values[2:]
        above = middle - np.maximum(before, after)
        below = np.minimum(before, after) - middle
        height = np.maximum(above, below)
    height[~np.isfinite(height)] = 0.0
    most = min(most, len(height))
    if most < 1:
        return np.empty(0, np.intp)
    places = _candidates(height, most)
    places = places[np.argpartition(height[places], len(places) - most)[-most:]]
    return 1 + places[height[places] > 0]


def _candidates(height: Floats, most: int) -> Places:
    """Return rows that certainly include the ``most`` highest; for a long series a small part, found by sampling.

    Partitioning a million numbers takes longer than the rest of the thinning.
    """
    sample = height[:: max(len(height) // _SAMPLE, 1)]
    # Four times the expected rank in the sample, so that the threshold is very rarely too high.
    expected = 4 * most * len(sample) // len(height) + 8
    if expected < len(sample) // 2:
        threshold = np.partition(sample, len(sample) - expected)[len(sample) - expected]
        places = np.flatnonzero(height >= threshold)
        if len(places) >= most:
            return places
    # All rows: the series is short, or the sample was misleading.
    return np.arange(len(height))


def fair_shares(lengths: list[int], total: int, least: int) -> list[int]:
    """Distribute points among series: series shorter than an equal share keep all rows, the others share the rest.

    Args:
        lengths: number of rows of each series.
        total: number of points of all series together.
        least: minimum number of points of each series, if it has that many rows.
    """
    shares = [0] * len(lengths)
    # Shortest first: what they leave of an equal share goes to the longer ones.
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    remaining = total
    for place, index in enumerate(order):
        equal = max(remaining // (len(order) - place), least)
        shares[index] = min(lengths[index], equal)
        remaining -= shares[index]
    return shares
