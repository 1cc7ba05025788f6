"""One tensor to symbols, table and header entry, and back: the choices per tensor stand here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldwatch import InputError

from .entropy import Prior, SymbolReader, SymbolWriter, code_length, fit_priors
from .quantize import QuantizedTensor, quantize, zero_points

FEWEST = 3
"""Tensors with fewer elements cost less as they are than as a table and symbols."""
FEWEST_TO_PREDICT = 4096
"""Tensors with fewer elements are not searched for an axis to predict along: the saving is noise."""


@dataclass(frozen=True, kw_only=True)
class CodedTensor:
    """A tensor ready to be written.

    Attributes:
        entry: its entry in the header (name, shape, type, and how to read it).
        table: bytes for the tables section.
        residuals: symbols for the range coder, int64; None for a tensor that is stored as it is.
        quantized: what the residuals stand for; None for a tensor that is stored as it is.
    """

    entry: dict[str, Any]
    table: bytes
    residuals: np.ndarray | None = None
    quantized: QuantizedTensor | None = None

    def write(self, writer: SymbolWriter) -> dict[str, Any]:
        """Append the symbols; returns the header entry with the bytes that this added."""
        if self.residuals is None:
            return self.entry
        r, b = self.entry["prior"]
        return self.entry | {"bytes": writer.write(self.residuals, 2 ** self.entry["bits"], (r, b))}


def code_tensor(name: str, tensor: Tensor, bits: int) -> CodedTensor:
    """Quantise a tensor and choose its predictor and its model.

    Integers, and tensors of fewer than `FEWEST` elements, are stored as they are.

    Raises:
        InputError: the tensor holds values that are not finite, or float64 values beyond float32.
    """
    tensor = tensor.detach().cpu().contiguous()
    entry = {"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if not tensor.is_floating_point() or tensor.numel() < FEWEST:
        return CodedTensor(entry=entry, table=tensor.view(-1).view(torch.uint8).numpy().tobytes())
    if not bool(torch.isfinite(tensor.float()).all()):
        count = int((~torch.isfinite(tensor.float())).sum())
        msg = f"{count} of {tensor.numel()} values of {name} are not finite in float32: write a sound checkpoint"
        raise InputError(msg)
    quantised = quantize(tensor, bits)
    delta, prior, residuals = _predict(quantised)
    kind = "half" if quantised.minimum.dtype == np.float16 else "single"
    table = b"".join(
        part.astype(part.dtype.newbyteorder("<")).tobytes() for part in (quantised.minimum, quantised.scale)
    )
    entry |= {"bits": bits, "axis": quantised.axis, "table": kind, "delta": delta, "prior": list(prior)}
    return CodedTensor(entry=entry, table=table, residuals=residuals, quantized=quantised)


def read_tensor(entry: Mapping[str, Any], tables: memoryview, reader: SymbolReader) -> tuple[Tensor, int]:
    """The tensor of a header entry, and how many bytes of the tables it used."""
    shape = tuple(entry["shape"])
    dtype = getattr(torch, entry["dtype"])
    if "bits" not in entry:
        length = math.prod(shape) * dtype.itemsize
        raw = torch.frombuffer(bytearray(tables[:length]), dtype=torch.uint8) if length else torch.empty(0)
        return (raw.view(dtype) if length else raw.to(dtype)).view(shape), length
    r, b = entry["prior"]
    alphabet = 2 ** entry["bits"]
    residuals = reader.read(math.prod(shape), alphabet, (r, b)).reshape(shape)
    sizes = [size if axis == entry["axis"] else 1 for axis, size in enumerate(shape)]
    kind = np.dtype("<f2" if entry["table"] == "half" else "<f4")
    length = math.prod(sizes) * kind.itemsize
    minimum, scale = (np.frombuffer(tables[i * length : (i + 1) * length], kind).reshape(sizes) for i in (0, 1))
    symbols = _restore(residuals, zero_points(minimum, scale), alphabet, entry["delta"])
    quantised = QuantizedTensor(symbols=symbols, minimum=minimum, scale=scale, bits=entry["bits"], axis=entry["axis"])
    return values_of(quantised, dtype), 2 * length


def values_of(quantised: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    """Dequantised tensor in the type that the model had."""
    return torch.from_numpy(quantised.dequantize()).to(dtype)


def _predict(quantised: QuantizedTensor) -> tuple[int | None, Prior, np.ndarray]:
    """Axis to predict along (None: predict the value 0), decay and residuals that take the fewest bits."""
    shape = quantised.symbols.shape
    alphabet = 2**quantised.bits
    axes: list[int | None] = [None]
    if quantised.symbols.size >= FEWEST_TO_PREDICT:
        axes += [axis for axis, size in enumerate(shape) if size > 1]
    residuals = {axis: _residuals(quantised, alphabet, axis) for axis in axes}
    choices = [
        # `i` decides between equal lengths, so that None is never compared with a number.
        (code_length(values, alphabet, prior), i, axis, prior)
        for i, (axis, values) in enumerate(residuals.items())
        for prior in fit_priors(values, alphabet)
    ]
    _, _, axis, prior = min(choices)
    return axis, prior, residuals[axis]


def _residuals(quantised: QuantizedTensor, alphabet: int, axis: int | None) -> np.ndarray:
    """Symbols less the zero point, or less the previous slice along `axis`, modulo the alphabet, around its half."""
    centred = quantised.symbols - quantised.zero_points()
    if axis is not None:
        centred = np.diff(centred, axis=axis, prepend=0)
    # Differences span nearly two alphabets, but modulo one of them each still has one symbol: `_restore` reduces
    # likewise.
    return ((centred + alphabet // 2) % alphabet).ravel()


def _restore(residuals: np.ndarray, zeros: np.ndarray, alphabet: int, axis: int | None) -> np.ndarray:
    """Inverse of `_residuals`: symbols of the tensor's shape."""
    centred = residuals - alphabet // 2
    if axis is not None:
        centred = np.cumsum(centred, axis=axis)
    return (centred + zeros) % alphabet
