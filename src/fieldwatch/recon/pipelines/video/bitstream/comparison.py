"""How small the general-purpose compressors make the same quantised symbols."""

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
    """Bytes of the same quantised weights, tables and headers left out everywhere.

    Attributes:
        plain: the symbols as they are, one byte each (two above 8 bits).
        deflate: by zlib at level 9.
        lzma: by lzma at preset 9.
        order0: by an ideal coder that knows each tensor's histogram for nothing.
        range_coder: by this bitstream.
    """

    plain: int
    deflate: int
    lzma: int
    order0: int
    range_coder: int


def compare_compressors(state: Mapping[str, Tensor], options: CodecOptions) -> CompressedSizes:
    """Compress the symbols of all quantised tensors, joined in the order of the state dict."""
    coded = [code_tensor(name, tensor, options.of(name)) for name, tensor in state.items()]
    symbols = [tensor.quantized.symbols.ravel() for tensor in coded if tensor.quantized is not None]
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
    """Bits of the symbols under their own histogram."""
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / symbols.size)).sum())
