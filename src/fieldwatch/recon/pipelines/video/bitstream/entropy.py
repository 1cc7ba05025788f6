"""Symbols to bytes and back: a range coder whose probabilities are integers, learnt from what was already coded.

The model of a tensor starts from a two-sided decay around its centre (Laplace or Gauss, two integers in the header) and
counts symbols as it goes, block by block. The decoder sees the same counts, so no probability table is stored, and
probabilities are integers over 2^24, so both sides have the same ones whatever machine they run on.
"""

import math
from typing import Any

import constriction
import numpy as np

Prior = tuple[int, int]
"""p(1)/p(0), and the factor by which p(d+1)/p(d) shrinks per step d away from the centre; both times 2^32."""

_STREAM: Any = constriction.stream  # pyright: ignore[reportAttributeAccessIssue] - a compiled module without stubs
_ONE = 1 << 32
_TOTAL = 1 << 24  # precision of the range coder
_UNIT = 256  # weight of one counted symbol; the prior's counts are finer
_PRIOR_SYMBOLS = 400  # the prior weighs as much as so many counted symbols
_FIRST_BLOCK = 128
_LARGEST_BLOCK = 4096


def fit_priors(symbols: np.ndarray, alphabet: int) -> list[Prior]:
    """Laplace and Gauss decays with the symbols' mean distance from the centre alphabet / 2.

    Args:
        symbols: int64, 0 to alphabet - 1.
        alphabet: number of symbols.
    """
    distance = max(float(np.abs(symbols - alphabet // 2).mean()), 0.05)
    variance = distance**2 * math.pi / 2
    # The mean of |d| under theta^|d| is 2 theta / (1 - theta^2), here solved for theta; under a Gauss, sigma sqrt(2 /
    # pi).
    laplace = distance / (1 + math.sqrt(1 + distance**2))
    gauss = (math.exp(-0.5 / variance), math.exp(-1 / variance))
    return [(round(laplace * _ONE), _ONE), (round(gauss[0] * _ONE), round(gauss[1] * _ONE))]


def code_length(symbols: np.ndarray, alphabet: int, prior: Prior) -> float:
    """Bits that `SymbolWriter` spends on these symbols."""
    counts = _prior_counts(prior, alphabet)
    bits = 0.0
    for first, last in _blocks(symbols.size):
        block = np.bincount(symbols[first:last], minlength=alphabet)
        bits -= float((block * np.log2(_probabilities(counts))).sum())
        counts += _UNIT * block
    return bits


class SymbolWriter:
    """Appends tensors of symbols to one range coder."""

    def __init__(self) -> None:
        self._coder = _STREAM.queue.RangeEncoder()

    def write(self, symbols: np.ndarray, alphabet: int, prior: Prior) -> int:
        """Append the symbols (int64, 0 to alphabet - 1, one axis); returns the bytes that this added."""
        before = self._coder.num_words()
        counts = _prior_counts(prior, alphabet)
        for first, last in _blocks(symbols.size):
            block = symbols[first:last]
            self._coder.encode(block.astype(np.int32), _model(counts))
            # Only after the block: the decoder does not know these symbols before it has read them.
            counts += _UNIT * np.bincount(block, minlength=alphabet)
        return 4 * (self._coder.num_words() - before)

    def payload(self) -> bytes:
        """All that was written, little-endian."""
        return self._coder.get_compressed().astype("<u4").tobytes()


class SymbolReader:
    """Reads what a `SymbolWriter` wrote, in the same order, with the same alphabets and priors."""

    def __init__(self, payload: bytes) -> None:
        self._coder = _STREAM.queue.RangeDecoder(np.frombuffer(payload, dtype="<u4").astype(np.uint32))

    def read(self, size: int, alphabet: int, prior: Prior) -> np.ndarray:
        """The next `size` symbols, int64."""
        counts = _prior_counts(prior, alphabet)
        symbols = np.empty(size, dtype=np.int64)
        for first, last in _blocks(size):
            symbols[first:last] = self._coder.decode(_model(counts), last - first)
            counts += _UNIT * np.bincount(symbols[first:last], minlength=alphabet)
        return symbols


def _prior_counts(prior: Prior, alphabet: int) -> np.ndarray:
    """The decay around alphabet / 2 as counts that sum to about _PRIOR_SYMBOLS * _UNIT, in integer arithmetic."""
    centre = alphabet // 2
    weights = []
    weight = _ONE
    ratio = prior[0]
    for _ in range(centre + 1):
        weights.append(weight)
        # Fixed point: floating-point powers may differ between machines by a bit, and then nothing decodes.
        weight = weight * ratio >> 32
        ratio = ratio * prior[1] >> 32
    total = sum(weights[abs(symbol - centre)] for symbol in range(alphabet))
    scaled = [weight * _PRIOR_SYMBOLS * _UNIT // total for weight in weights]
    return np.array([scaled[abs(symbol - centre)] + 1 for symbol in range(alphabet)], dtype=np.int64)


def _blocks(size: int) -> list[tuple[int, int]]:
    """First and one past the last symbol per block; blocks double in length until the largest."""
    blocks = []
    first = 0
    length = _FIRST_BLOCK
    while first < size:
        last = min(first + length, size)
        blocks.append((first, last))
        first = last
        length = min(2 * length, _LARGEST_BLOCK)
    return blocks


def _probabilities(counts: np.ndarray) -> np.ndarray:
    """Multiples of 2^-24 that sum to 1, none of them 0: exact in float64, so every partial sum is exact too."""
    # The leading 1 keeps symbols codable that have not been seen; what the division cuts off goes to the likeliest
    # one.
    shares = 1 + counts * (_TOTAL - counts.size) // counts.sum()
    shares[np.argmax(shares)] += _TOTAL - shares.sum()
    return shares / _TOTAL


def _model(counts: np.ndarray) -> Any:
    return _STREAM.model.Categorical(_probabilities(counts), perfect=False)
