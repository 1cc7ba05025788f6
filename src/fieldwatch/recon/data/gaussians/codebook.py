"""Codebooks for quantities that a format stores as indices: of single numbers, and of vectors."""

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.data.gaussians.quantization import Floats

_BINS = 4096
_ROUNDS = 4
_UNIFORM = 1.0
_POWER_STEPS = 2
_WORTH_SPLITTING = 0.25  # of the mean energy of the groups


def codebook_of(values: Floats, size: int) -> Floats:
    """Choose `size` numbers, ascending, that represent `values` with a small mean squared error (Lloyd 1982).

    The numbers start with the density that is optimal for fine quantizers, the cube root of that of the values (Panter
    and Dite 1951), plus a uniform one: otherwise the rarest values would be far from the nearest number.
    """
    ordered = np.sort(values, axis=None).astype(np.float64)
    distinct = np.unique(ordered)
    if len(distinct) <= size:
        return np.concatenate([distinct, np.full(size - len(distinct), distinct[-1])])
    counts, edges = np.histogram(ordered, _BINS)
    density = np.cbrt(counts)
    density += _UNIFORM * density.mean()
    cumulated = np.concatenate([[0.0], np.cumsum(density)])
    book = np.interp((np.arange(size) + 0.5) / size * cumulated[-1], cumulated, edges)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    for _ in range(_ROUNDS):
        places = np.concatenate([[0], np.searchsorted(ordered, (book[1:] + book[:-1]) / 2), [len(ordered)]])
        members = np.diff(places)
        # A number that represents nothing stays where it is.
        book = np.where(members > 0, np.diff(sums[places]) / np.maximum(members, 1), book)
    return np.sort(book)


def nearest_codes(values: Floats, book: Floats) -> NDArray[np.uint8]:
    """Return the index of the nearest number of an ascending codebook of at most 256, in the shape of `values`."""
    return np.searchsorted((book[1:] + book[:-1]) / 2, values).astype(np.uint8)


def palette_of(rows: Floats, size: int) -> tuple[Floats, NDArray[np.intp]]:
    """Choose at most `size` vectors that represent `rows`, and the vector of each row.

    Up to `size` different rows are represented exactly. More are divided by a tree: the groups with the largest squared
    deviation are split in two at their mean, across their principal axis, until there are `size` groups.

    Args:
        rows: vectors, shape (n, dimensions).
        size: largest number of vectors.

    Returns:
        Vectors of shape (at most size, dimensions), and indices of shape (n,).
    """
    if len(rows) <= size:
        entries, indices = np.unique(rows, axis=0, return_inverse=True)
        return entries, indices.reshape(-1)
    groups = np.zeros(len(rows), np.intp)
    count = 1
    while True:
        members = np.maximum(np.bincount(groups, minlength=count), 1)
        means = _sums(rows, groups, count) / members[:, None]
        if count == size:
            return means.astype(np.float32), groups
        deviations = rows - means[groups].astype(np.float32)
        spread = _sums(np.square(deviations), groups, count)
        energy = spread.sum(1)
        chosen = np.flatnonzero(energy > _WORTH_SPLITTING * energy.mean())
        if not len(chosen):
            return means.astype(np.float32), groups
        chosen = chosen[np.argsort(-energy[chosen], kind="stable")][: size - count]
        beyond = _along_principal_axes(deviations, spread, groups, count) > 0
        numbers = np.full(count, -1)
        numbers[chosen] = np.arange(count, count + len(chosen))
        moved = beyond & (numbers[groups] >= 0)
        groups[moved] = numbers[groups[moved]]
        count += len(chosen)


def _sums(rows: Floats, groups: NDArray[np.intp], count: int) -> NDArray[np.float64]:
    """Return the sums of the rows of each group, shape (count, dimensions)."""
    return np.array([np.bincount(groups, rows[:, i], count) for i in range(rows.shape[1])], np.float64).T


def _along_principal_axes(
    deviations: Floats, spread: NDArray[np.float64], groups: NDArray[np.intp], count: int
) -> Floats:
    """Return the coordinate of every row along the principal axis of its group, by power iteration."""
    axes = np.eye(deviations.shape[1])[spread.argmax(1)]
    for _ in range(_POWER_STEPS):
        along = np.einsum("nd,nd->n", deviations, axes[groups].astype(np.float32))
        axes = _sums(deviations * along[:, None], groups, count)
        axes /= np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return np.einsum("nd,nd->n", deviations, axes[groups].astype(np.float32))
