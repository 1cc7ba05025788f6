"""Columns that follow from others: what a term adds to the total, its share of it, and where a curve is going."""

import functools
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import tags
from fieldwatch.record.row import Block
from fieldwatch.record.series import Series


def derive_block(block: Block) -> Block:
    """Add ``Loss/weighted_<term>`` (raw value times weight) and ``Loss/share_<term>`` (weighted / total) to a block.

    For every term with both ``Loss/component_<term>`` and ``Loss/weight_<term>``; shares only where ``Loss/total`` is
    there too. A column cannot be absent in a single row of a block, so the share is NaN in rows whose total is 0 or not
    finite. Columns that the block already has are left as they are. Bit for bit the same on every call.
    """
    derived = _derived_columns(block.columns)
    if not derived.columns:
        return block
    values = block.values
    # All terms at once: one gather per operand instead of a loop over terms for every block.
    weighted = values[:, derived.components] * values[:, derived.weights]
    pieces = [values, weighted[:, derived.new_weighted]]
    if derived.total is not None:
        total = values[:, derived.total : derived.total + 1]
        # Dividing by 0 or infinity would warn, and give infinities and zeros that look like shares.
        usable = np.isfinite(total) & (total != 0)
        shares = np.full_like(weighted, np.nan)
        np.divide(weighted, total, out=shares, where=usable)
        pieces.append(shares[:, derived.new_shares])
    return replace(block, columns=(*block.columns, *derived.columns), values=np.concatenate(pieces, axis=1))


class _DerivedColumns:
    """Which columns of a layout derived ones are made of.

    Args:
        columns: the columns of the block.
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


def _index(column_of: Iterable[int]) -> NDArray[np.intp]:
    return np.array(list(column_of), np.intp)


# A run has few sets of columns and many blocks; the lookup of columns is done once per set.
@functools.lru_cache(maxsize=1024)
def _derived_columns(columns: tuple[str, ...]) -> _DerivedColumns:
    return _DerivedColumns(columns)


def trend(series: Series, window: int) -> float:
    """Return the relative change of the median of the last ``window`` values against the ``window`` before.

    -0.03 means that the median fell by 3 %. Non-finite values are left out. NaN where there are fewer than two windows,
    where a window has no finite value, or where the earlier median is 0.

    Raises:
        ValueError: the window is not positive.
    """
    if window < 1:
        raise ValueError(f"trend over a window of {window} values: wanted at least 1")
    if len(series) < 2 * window:
        return math.nan
    recent = series.last(2 * window).values
    before, after = (part[np.isfinite(part)] for part in (recent[:window], recent[window:]))
    if not len(before) or not len(after):
        return math.nan
    start = float(np.median(before))
    return (float(np.median(after)) - start) / abs(start) if start else math.nan
