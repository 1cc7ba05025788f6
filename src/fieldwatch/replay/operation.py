"""Where an operation ran, and the first operations that produced values that are not finite."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fieldwatch.replay.places import CodeLine, RawStack, frames_of

PhaseName = Literal["forward", "backward", "optimizer"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation ran.

    Attributes:
        phase: part of the step. Everything outside of the backward pass and the optimizer is "forward".
        module: path of the innermost module; in the backward pass that of the forward operation.
        stack: stack of the operation; in the backward pass that of the forward operation.
        node: name of the autograd node in the backward pass, such as ``SqrtBackward0``; else empty.
    """

    phase: PhaseName
    module: str
    stack: RawStack
    node: str = ""

    @property
    def line(self) -> tuple[str, int, str]:
        """File, line and function of the innermost frame; empty if no frame of the user is known."""
        if not self.stack:
            return "", 0, ""
        code, line = self.stack[0]
        return code.co_filename, line, code.co_qualname


@dataclass(kw_only=True)
class BadValue:
    """An operation that produced a value that is not finite from inputs that are finite.

    Attributes:
        number: position among all operations of the step, from 0.
        operation: name of the operation, such as ``aten.log``; or a description of what is no operation of torch.
        place: where it ran.
        result: description of the result, see :func:`describe`.
        inputs: descriptions of the inputs.
        on_purpose: whether one of the arguments is itself a number that is not finite, such as a mask of -inf.
        reached: losses, terms and gradients that this value made not finite.
    """

    number: int
    operation: str
    place: Place
    result: dict[str, Any]
    inputs: list[dict[str, Any]]
    on_purpose: bool = False
    reached: list[str] = field(default_factory=list[str])

    def plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "number": self.number,
            "operation": self.operation,
            "phase": self.place.phase,
            "module": self.place.module,
            "node": self.place.node,
            "stack": plain_frames(frames_of(self.place.stack)),
            "result": self.result,
            "inputs": self.inputs,
            "on_purpose": self.on_purpose,
            "reached": self.reached,
        }


def plain_frames(frames: Sequence[CodeLine]) -> list[dict[str, Any]]:
    """Return frames as plain values."""
    return [{"file": f.file, "line": f.line, "function": f.function, "text": f.text} for f in frames]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in the arguments or results of an operation, which may be lists of tensors."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from tensors_in(entry)
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)


def numbers_in(value: Any) -> Iterator[float]:
    """Yield the numbers in the arguments of an operation."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from numbers_in(entry)
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from numbers_in(entry)


def can_be_checked(tensor: Tensor) -> bool:
    """Return whether a tensor holds numbers that may be not finite, and that can be read."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout is not torch.strided:
        return False
    # Tensors of 8 bits have no `isfinite`; meta tensors have no values.
    return tensor.element_size() > 1 and tensor.device.type != "meta" and tensor.numel() > 0


def is_finite(tensor: Tensor) -> bool:
    """Return whether all entries are finite; synchronizes with the device."""
    return bool(torch.isfinite(tensor).all())


def describe(tensor: Tensor, at: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Describe a tensor: shape, dtype, range of its finite values, number of NaN and infinities.

    Args:
        tensor: tensor to describe.
        at: index whose value is included; None for none.
    """
    facts: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if tensor.is_complex() or not tensor.numel() or tensor.layout is not torch.strided:
        return facts
    values = tensor.detach()
    if can_be_checked(tensor):
        finite = values[torch.isfinite(values)]
        facts |= {"nan": int(torch.isnan(values).sum()), "inf": int(torch.isinf(values).sum())}
    else:
        finite = values.reshape(-1)
    if finite.numel() and finite.dtype is not torch.bool:
        facts |= {"least": number_of(finite.min()), "largest": number_of(finite.max())}
    if at is not None:
        facts["value"] = number_of(values[at])
    return facts


def describe_inputs(arguments: Any, shape: torch.Size, at: tuple[int, ...]) -> list[dict[str, Any]]:
    """Describe the tensors and numbers among the arguments of an operation.

    Args:
        arguments: positional and keyword arguments.
        shape: shape of the result.
        at: index of the first entry of the result that is not finite; inputs that broadcast to the result include
            their value there.
    """
    described = [describe(tensor, _place_in(tensor, shape, at)) for tensor in tensors_in(arguments)]
    return described + [{"number": number_of(number)} for number in numbers_in(arguments)]


def first_bad_index(tensor: Tensor) -> tuple[int, ...]:
    """Return the index of the first entry that is not finite."""
    flat = int(torch.nonzero(~torch.isfinite(tensor).reshape(-1))[0, 0])
    return tuple(int(place) for place in torch.unravel_index(torch.tensor(flat), tensor.shape)) if tensor.ndim else ()


def number_of(value: Tensor | float) -> float | str:
    """Return a scalar as a number, or its name if JSON has none for it: nan, inf, -inf."""
    number = float(value)
    return number if number - number == 0 else str(number)


def _place_in(tensor: Tensor, shape: torch.Size, at: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the index of an input that corresponds to an index of the result; None if it does not broadcast to it."""
    offset = len(shape) - tensor.ndim
    if offset < 0 or any(size not in (1, shape[offset + k]) for k, size in enumerate(tensor.shape)):
        return None
    return tuple(0 if size == 1 else at[offset + k] for k, size in enumerate(tensor.shape))
