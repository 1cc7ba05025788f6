"""Range coder for symbols, with integer probabilities that adapt to the symbols already coded.

The model of a tensor starts from a symmetric decay around its center (Laplace or Gauss, two integers in the header) and
counts symbols block by block. The decoder has the same counts, so no probability table is stored. Probabilities are
integers over 2^24, so they are identical on all machines.
"""

import math
from typing import Any

import constriction
import numpy as np

Prior = tuple[int, int]
"""p(1)/p(0), and the factor by which p(d+1)/p(d) shrinks per step d away from the center; both times 2^32."""

_STREAM: Any = constriction.stream  # pyright: ignore[reportAttributeAccessIssue] - a compiled module without stubs
_ONE = 1 << 32
_TOTAL = 1 << 24  # precision of the range coder
_UNIT = 256  # weight of one counted symbol; the prior's counts are finer
_PRIOR_SYMBOLS = 400  # weight of the prior, in counted symbols
_FIRST_BLOCK = 128
_LARGEST_BLOCK = 4096


def fit_priors(symbols: np.ndarray, alphabet: int) -> list[Prior]:
    """Return Laplace and Gauss priors with the symbols' mean distance from the center alphabet / 2.

    Args:
        symbols: int64, 0 to alphabet - 1.
        alphabet: number of symbols.
    """
    # Bounded below, so that the prior keeps a positive probability off the center.
    distance = max(float(np.abs(symbols - alphabet // 2).mean()), 0.05)
    variance = distance**2 * math.pi / 2
    # The mean of |d| under theta^|d| is 2 theta / (1 - theta^2), solved for theta here; under a Gaussian it is
    # sigma sqrt(2 / pi).
    laplace = distance / (1 + math.sqrt(1 + distance**2))
    gauss = (math.exp(-0.5 / variance), math.exp(-1 / variance))
    return [(round(laplace * _ONE), _ONE), (round(gauss[0] * _ONE), round(gauss[1] * _ONE))]


def code_length(symbols: np.ndarray, alphabet: int, prior: Prior) -> float:
    """Return the number of bits that `SymbolWriter` needs for these symbols."""
    counts = _prior_counts(prior, alphabet)
    bits = 0.0
    for first, last in _blocks(symbols.size):
        block = np.bincount(symbols[first:last], minlength=alphabet)
        # Computed from the model's probabilities, without running the coder.
        bits -= float((block * np.log2(_probabilities(counts))).sum())
        counts += _UNIT * block
    return bits


class SymbolWriter:
    """Appends tensors of symbols to a range coder."""

    def __init__(self) -> None:
        self._coder = _STREAM.queue.RangeEncoder()

    def write(self, symbols: np.ndarray, alphabet: int, prior: Prior) -> int:
        """Append the symbols (int64, 0 to alphabet - 1, one axis); return the number of bytes added."""
        before = self._coder.num_words()
        counts = _prior_counts(prior, alphabet)
        for first, last in _blocks(symbols.size):
            block = symbols[first:last]
            self._coder.encode(block.astype(np.int32), _model(counts))
            # Only after the block, because the decoder does not know these symbols before it has decoded them.
            counts += _UNIT * np.bincount(block, minlength=alphabet)
        # The coder writes words of 32 bits.
        return 4 * (self._coder.num_words() - before)

    def payload(self) -> bytes:
        """Return everything written, little-endian."""
        return self._coder.get_compressed().astype("<u4").tobytes()


class SymbolReader:
    """Reads the output of a `SymbolWriter` in the same order, with the same alphabets and priors."""

    def __init__(self, payload: bytes) -> None:
        self._coder = _STREAM.queue.RangeDecoder(np.frombuffer(payload, dtype="<u4").astype(np.uint32))

    def read(self, size: int, alphabet: int, prior: Prior) -> np.ndarray:
        """Return the next ``size`` symbols, int64."""
        counts = _prior_counts(prior, alphabet)
        symbols = np.empty(size, dtype=np.int64)
        for first, last in _blocks(size):
            symbols[first:last] = self._coder.decode(_model(counts), last - first)
            counts += _UNIT * np.bincount(symbols[first:last], minlength=alphabet)
        return symbols


def _prior_counts(prior: Prior, alphabet: int) -> np.ndarray:
    """Return the decay around alphabet / 2 as integer counts that sum to about _PRIOR_SYMBOLS * _UNIT."""
    center = alphabet // 2
    weights = []
    weight = _ONE
    ratio = prior[0]
    for _ in range(center + 1):
        weights.append(weight)
        # Fixed point, because floating-point powers may differ between machines by a bit, which breaks decoding.
        weight = weight * ratio >> 32
        ratio = ratio * prior[1] >> 32
    total = sum(weights[abs(symbol - center)] for symbol in range(alphabet))
    scaled = [weight * _PRIOR_SYMBOLS * _UNIT // total for weight in weights]
    return np.array([scaled[abs(symbol - center)] + 1 for symbol in range(alphabet)], dtype=np.int64)


def _blocks(size: int) -> list[tuple[int, int]]:
    """Return first and one past the last symbol of each block; blocks double in length up to the largest."""
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
    """Return multiples of 2^-24 that sum to 1, none of them 0: exact in float64, as are all partial sums."""
    # The 1 keeps symbols codable that have not occurred; the remainder of the division goes to the likeliest symbol.
    shares = 1 + counts * (_TOTAL - counts.size) // counts.sum()
    shares[np.argmax(shares)] += _TOTAL - shares.sum()
    return shares / _TOTAL


def _model(counts: np.ndarray) -> Any:
    # Probabilities are exact multiples of the coder's precision already, so no optimal rounding is needed.
    return _STREAM.model.Categorical(_probabilities(counts), perfect=False)
