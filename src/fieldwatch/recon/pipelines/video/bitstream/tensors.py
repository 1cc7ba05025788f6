"""Coding of a single tensor: symbols, table and header entry, and the choices made per tensor."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldwatch import InputError

from .entropy import Prior, SymbolReader, SymbolWriter, code_length, fit_priors
from .quantization import QuantizedTensor, quantize, quantize_by_step, zero_points

FEWEST = 3
"""Tensors with fewer elements are stored uncoded, which is smaller than a table and symbols."""
FEWEST_TO_PREDICT = 4096
"""Tensors with fewer elements are not searched for a prediction axis, because the saving is noise."""


@dataclass(frozen=True, kw_only=True)
class CodedTensor:
    """A tensor ready to be written.

    Attributes:
        entry: its entry in the header (name, shape, type, and how to decode it).
        table: bytes for the tables section.
        residuals: symbols for the range coder, int64; None for a tensor that is stored uncoded.
        quantized: quantized tensor behind the residuals; None for a tensor that is stored uncoded.
    """

    entry: dict[str, Any]
    table: bytes
    residuals: np.ndarray | None = None
    quantized: QuantizedTensor | None = None

    def write(self, writer: SymbolWriter) -> dict[str, Any]:
        """Append the symbols; return the header entry with the number of bytes added."""
        if self.residuals is None:
            return self.entry
        r, b = self.entry["prior"]
        return self.entry | {"bytes": writer.write(self.residuals, 2 ** self.entry["bits"], (r, b))}


def code_tensor(name: str, tensor: Tensor, bits: int, step: float | None = None) -> CodedTensor:
    """Quantize a tensor and choose its predictor and its prior.

    Integer tensors, and tensors of fewer than `FEWEST` elements, are stored uncoded.

    Args:
        name: name in the state dict.
        tensor: values.
        bits: bits per symbol.
        step: quantize to multiples of this instead, with as many bits as they need.

    Raises:
        InputError: the tensor contains values that are not finite, or float64 values beyond float32.
    """
    tensor = tensor.detach().cpu().contiguous()
    entry = {"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if not tensor.is_floating_point() or tensor.numel() < FEWEST:
        return CodedTensor(entry=entry, table=tensor.view(-1).view(torch.uint8).numpy().tobytes())
    # Checked in float32, in which values are coded: large float64 values overflow.
    if not bool(torch.isfinite(tensor.float()).all()):
        count = int((~torch.isfinite(tensor.float())).sum())
        msg = (
            f"{name} must be finite in float32, got {count} of {tensor.numel()} values that are not: "
            "use another checkpoint"
        )
        raise InputError(msg)
    quantized = quantize(tensor, bits) if step is None else quantize_by_step(tensor, step)
    delta, prior, residuals = _predict(quantized)
    # The file is little-endian on all machines.
    kind = "half" if quantized.minimum.dtype == np.float16 else "single"
    table = b"".join(
        part.astype(part.dtype.newbyteorder("<")).tobytes() for part in (quantized.minimum, quantized.scale)
    )
    entry |= {"bits": quantized.bits, "axis": quantized.axis, "table": kind, "delta": delta, "prior": list(prior)}
    return CodedTensor(entry=entry, table=table, residuals=residuals, quantized=quantized)


def read_tensor(entry: Mapping[str, Any], tables: memoryview, reader: SymbolReader) -> tuple[Tensor, int]:
    """Return the tensor of a header entry, and the number of bytes read from the tables."""
    shape = tuple(entry["shape"])
    dtype = getattr(torch, entry["dtype"])
    if "bits" not in entry:
        length = math.prod(shape) * dtype.itemsize
        raw = torch.frombuffer(bytearray(tables[:length]), dtype=torch.uint8) if length else torch.empty(0)
        return (raw.view(dtype) if length else raw.to(dtype)).view(shape), length
    r, b = entry["prior"]
    alphabet = 2 ** entry["bits"]
    residuals = reader.read(math.prod(shape), alphabet, (r, b)).reshape(shape)
    # Minimum and scale broadcast against the symbols.
    sizes = [size if axis == entry["axis"] else 1 for axis, size in enumerate(shape)]
    kind = np.dtype("<f2" if entry["table"] == "half" else "<f4")
    length = math.prod(sizes) * kind.itemsize
    minimum, scale = (np.frombuffer(tables[i * length : (i + 1) * length], kind).reshape(sizes) for i in (0, 1))
    symbols = _restore(residuals, zero_points(minimum, scale), alphabet, entry["delta"])
    quantized = QuantizedTensor(symbols=symbols, minimum=minimum, scale=scale, bits=entry["bits"], axis=entry["axis"])
    return values_of(quantized, dtype), 2 * length


def values_of(quantized: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    """Return the dequantized tensor in the model's type."""
    return torch.from_numpy(quantized.dequantize()).to(dtype)


def _predict(quantized: QuantizedTensor) -> tuple[int | None, Prior, np.ndarray]:
    """Return the prediction axis (None predicts the value 0), prior and residuals with the shortest code."""
    shape = quantized.symbols.shape
    alphabet = 2**quantized.bits
    axes: list[int | None] = [None]
    # Neighboring slices are similar in grids and embeddings, so differences are often smaller.
    if quantized.symbols.size >= FEWEST_TO_PREDICT:
        axes += [axis for axis, size in enumerate(shape) if size > 1]
    residuals = {axis: _residuals(quantized, alphabet, axis) for axis in axes}
    choices = [
        # `i` breaks ties between equal lengths, so that None is never compared with a number.
        (code_length(values, alphabet, prior), i, axis, prior)
        for i, (axis, values) in enumerate(residuals.items())
        for prior in fit_priors(values, alphabet)
    ]
    _, _, axis, prior = min(choices)
    return axis, prior, residuals[axis]


def _residuals(quantized: QuantizedTensor, alphabet: int, axis: int | None) -> np.ndarray:
    """Return symbols minus the zero point, or minus the previous slice along ``axis``, reduced modulo the alphabet."""
    centered = quantized.symbols - quantized.zero_points()
    if axis is not None:
        centered = np.diff(centered, axis=axis, prepend=0)
    # Differences span nearly two alphabets, but are unique modulo one, because `_restore` reduces modulo it as well.
    return ((centered + alphabet // 2) % alphabet).ravel()


def _restore(residuals: np.ndarray, zeros: np.ndarray, alphabet: int, axis: int | None) -> np.ndarray:
    """Invert `_residuals`: return symbols of the tensor's shape."""
    centered = residuals - alphabet // 2
    if axis is not None:
        centered = np.cumsum(centered, axis=axis)
    return (centered + zeros) % alphabet
