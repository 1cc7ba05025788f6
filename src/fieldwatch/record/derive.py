"""Derived quantities: weighted loss terms, their shares of the total loss, and the trend of a curve."""

import functools
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import tags
from fieldwatch.record.row import Block
from fieldwatch.record.series import Series


def derive_block(block: Block) -> Block:
    """Add ``Loss/weighted_<term>`` (value times weight) and ``Loss/share_<term>`` (weighted / total) to a block.

    They are added for every term with both ``Loss/component_<term>`` and ``Loss/weight_<term>``; shares also require
    ``Loss/total``. Since a column cannot be absent in a single row of a block, the share is NaN in rows whose total is
    0 or not finite. Existing columns are left unchanged. The result is bitwise reproducible.
    """
    derived = _derived_columns(block.columns)
    if not derived.columns:
        return block
    # Compute all terms at once: one gather per operand instead of a Python loop over the terms of every block.
    recorded = block.values.shape[1]
    values = np.empty((len(block), recorded + len(derived.columns)))
    values[:, :recorded] = block.values
    weighted = values[:, derived.components] * values[:, derived.weights]
    middle = recorded + len(derived.new_weighted)
    values[:, recorded:middle] = weighted[:, derived.new_weighted]
    if derived.total is not None:
        total = values[:, derived.total : derived.total + 1]
        # Dividing by 0 or infinity would warn and yield infinities or zeros that look like valid shares.
        usable = np.isfinite(total) & (total != 0)
        shares = values[:, middle:]
        shares[...] = np.nan
        np.divide(weighted[:, derived.new_shares], total, out=shares, where=usable)
    return Block(
        axis=block.axis,
        columns=derived.all_columns,
        steps=block.steps,
        seconds=block.seconds,
        positions=block.positions,
        values=values,
        samples=block.samples,
    )


class _DerivedColumns:
    """Column indices needed to compute the derived columns of a block.

    Args:
        columns: column names of the block.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        column_of = {name: i for i, name in enumerate(columns)}
        terms = [term for term in tags.COMPONENT.parts(columns) if tags.WEIGHT.tag(term) in column_of]
        self.components = _index(column_of[tags.COMPONENT.tag(term)] for term in terms)
        self.weights = _index(column_of[tags.WEIGHT.tag(term)] for term in terms)
        self.total = column_of.get(tags.TOTAL)
        new_weighted = [i for i, term in enumerate(terms) if tags.WEIGHTED.tag(term) not in column_of]
        new_shares = [i for i, term in enumerate(terms) if tags.SHARE.tag(term) not in column_of]
        self.new_weighted = _index(new_weighted)
        self.new_shares = _index(new_shares)
        self.columns: tuple[str, ...] = tuple(tags.WEIGHTED.tag(terms[i]) for i in new_weighted)
        if self.total is not None:
            self.columns += tuple(tags.SHARE.tag(terms[i]) for i in new_shares)
        self.all_columns = columns + self.columns


def _index(column_of: Iterable[int]) -> NDArray[np.intp]:
    return np.array(list(column_of), np.intp)


# A run has few sets of columns but many blocks, so the column lookup is cached per set.
@functools.lru_cache(maxsize=1024)
def _derived_columns(columns: tuple[str, ...]) -> _DerivedColumns:
    return _DerivedColumns(columns)


def trend(series: Series, window: int) -> float:
    """Return the relative change between the median of the last ``window`` values and that of the ``window`` before.

    -0.03 means that the median decreased by 3 %. Non-finite values are ignored. The result is NaN if there are fewer
    than two windows of values, if a window has no finite value, or if the earlier median is 0.

    Raises:
        ValueError: if the window is not positive.
    """
    if window < 1:
        raise ValueError(f"trend: window must be at least 1, got {window}")
    if len(series) < 2 * window:
        return math.nan
    return trends(series.last(2 * window).values.reshape(1, 2, window))[0]


def trends(windows: NDArray[np.float64]) -> list[float]:
    """Return the :func:`trend` of several series from the last two windows of each.

    Args:
        windows: ``[series, 2, window]`` values.
    """
    middle = windows.shape[2] // 2
    ranked = np.sort(windows, axis=2)
    medians = ranked[:, :, middle] if windows.shape[2] % 2 else (ranked[:, :, middle - 1] + ranked[:, :, middle]) / 2
    changes: list[float] = []
    for values, of_all in zip(windows, medians.tolist(), strict=True):
        finite = np.isfinite(values)
        start, end = of_all if finite.all() else (_median(values[part, finite[part]]) for part in (0, 1))
        # Divide by the absolute value, so that the sign of the result is the direction of the change.
        changes.append((end - start) / abs(start) if start else math.nan)
    return changes


def _median(finite: NDArray[np.float64]) -> float:
    """Return the median of finite values, NaN without any; np.median takes several times as long on short arrays."""
    if not len(finite):
        return math.nan
    ranked = np.sort(finite)
    middle = len(ranked) // 2
    return float(ranked[middle]) if len(ranked) % 2 else float((ranked[middle - 1] + ranked[middle]) / 2)
