"""Comparison with general-purpose compressors on the same quantized symbols."""

import lzma
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .codec import CodecOptions
from .entropy import SymbolWriter
from .tensors import code_tensor


@dataclass(frozen=True, kw_only=True)
class CompressedSizes:
    """Bytes of the same quantized weights, without tables and headers.

    Attributes:
        plain: uncompressed symbols, one byte each (two above 8 bits).
        deflate: zlib at level 9.
        lzma: lzma at preset 9.
        order0: an ideal coder with free knowledge of each tensor's histogram.
        range_coder: this bitstream.
    """

    plain: int
    deflate: int
    lzma: int
    order0: int
    range_coder: int


def compare_compressors(state: Mapping[str, Tensor], options: CodecOptions) -> CompressedSizes:
    """Compress the symbols of all quantized tensors, concatenated in the order of the state dict."""
    coded = [code_tensor(name, tensor, options.of(name)) for name, tensor in state.items()]
    symbols = [tensor.quantized.symbols.ravel() for tensor in coded if tensor.quantized is not None]
    # General-purpose compressors do better on bytes than on words that are half empty.
    kind = np.dtype("u1" if all(part.max() < 256 for part in symbols) else "<u2")
    plain = b"".join(part.astype(kind).tobytes() for part in symbols)
    writer = SymbolWriter()
    for tensor in coded:
        tensor.write(writer)
    return CompressedSizes(
        plain=len(plain),
        deflate=len(zlib.compress(plain, 9)),
        lzma=len(lzma.compress(plain, preset=9)),
        order0=round(sum(_entropy(part) for part in symbols) / 8),
        range_coder=len(writer.payload()),
    )


def _entropy(symbols: np.ndarray) -> float:
    """Return the bits of the symbols under their own histogram."""
    counts = np.bincount(symbols)
    # 0 log 0 is 0, but NumPy gives NaN.
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / symbols.size)).sum())
