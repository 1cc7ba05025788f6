"""Choose the pairs of photos that are matched: neighbors in time, photos that look alike, or all."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from PIL import Image

from fieldwatch.files import decoding
from fieldwatch.recon.data.capture.settings import Matching

MOST_EXHAUSTIVE = 150
"""Largest number of photos of which all pairs are matched."""
_OVERLAP = 10  # neighbors in a film that every frame is matched with
_ALIKE_IN_FILM = 3  # photos that look most alike, besides the neighbors
_ALIKE = 20
_NEAR_IN_TIME = 5
_SIDE = 64  # pixels
_CELLS = 4
_DIRECTIONS = 8


def pairs_to_match(descriptors: Float32[np.ndarray, "photos values"], kind: Matching) -> list[tuple[int, int]]:
    """Return sorted pairs (i, j), i < j, of photos to match.

    Args:
        descriptors: unit descriptors of the photos (`describe`), in the order in which they were taken.
        kind: "sequential" pairs every photo with the next 10, with those at distances 16, 32, 64, ..., and with the 3
            that look most alike, which closes loops; "similar" with the 20 that look most alike and the next 5;
            "exhaustive" with all others.
    """
    count = len(descriptors)
    if kind == "exhaustive":
        return [(i, j) for i in range(count) for j in range(i + 1, count)]
    sequential = kind == "sequential"
    distances = list(range(1, (_OVERLAP if sequential else _NEAR_IN_TIME) + 1))
    if sequential:
        # COLMAP's quadratic overlap: few pairs, but some at every distance.
        distances += [1 << power for power in range(4, count.bit_length())]
    pairs = {(i, i + distance) for distance in distances for i in range(count - distance)}
    return sorted(pairs | _alike(descriptors, _ALIKE_IN_FILM if sequential else _ALIKE, pairs))


def matching_of(kind: str, count: int, wanted: Matching) -> Matching:
    """Return which pairs "auto" means: neighbors in a film, all of few photos, those that look alike of many."""
    if wanted != "auto":
        return wanted
    if kind == "film":
        return "sequential"
    return "exhaustive" if count <= MOST_EXHAUSTIVE else "similar"


def describe(paths: Sequence[Path]) -> Float32[np.ndarray, "photos values"]:
    """Return unit descriptors of photos whose dot product tells how alike they look.

    A descriptor consists of histograms of gradient directions in 4 x 4 cells (Dalal and Triggs 2005) and of the mean
    colors of the cells, both relative to their mean.
    """
    return np.stack([_descriptor(path) for path in paths])


def _descriptor(path: Path) -> Float32[np.ndarray, " values"]:
    with decoding(), Image.open(path) as image:
        image.draft("RGB", (_SIDE, _SIDE))
        small = np.asarray(image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX), np.float32)
    down, across = np.gradient(small.mean(-1))
    # Directions modulo 180 degrees: an edge is the same whether it is bright on the left or on the right.
    direction = (np.arctan2(down, across) % np.pi) / np.pi * _DIRECTIONS
    weights = np.hypot(down, across)
    size = _SIDE // _CELLS
    cell = np.arange(_SIDE) // size
    place = (cell[:, None] * _CELLS + cell[None, :]) * _DIRECTIONS + np.minimum(direction.astype(int), _DIRECTIONS - 1)
    edges = np.bincount(place.ravel(), weights.ravel(), _CELLS * _CELLS * _DIRECTIONS)
    colors = small.reshape(_CELLS, size, _CELLS, size, 3).mean((1, 3)).ravel()
    return (np.concatenate([_unit(np.sqrt(edges)), 0.5 * _unit(colors - colors.mean())]) / 1.25**0.5).astype(np.float32)


def _unit(values: np.ndarray) -> np.ndarray:
    length = float(np.linalg.norm(values))
    # A uniform photo has no gradients.
    return values / length if length > 0 else values


def _alike(
    descriptors: Float32[np.ndarray, "photos values"], most: int, known: set[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Return pairs of every photo with those that look most alike, except the known pairs."""
    found: set[tuple[int, int]] = set()
    for i in range(len(descriptors)):
        likeness = descriptors @ descriptors[i]
        ranked = [int(j) for j in np.argsort(-likeness, kind="stable") if j != i]
        others = [pair for j in ranked if (pair := (min(i, j), max(i, j))) not in known]
        found.update(others[:most])
    return found
