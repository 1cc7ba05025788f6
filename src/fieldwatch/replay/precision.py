"""`Precision`: computes forward and backward of a step in another floating point type."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64}
"""Methods that convert a tensor to a floating point type."""
_DRAWN_LIKE = ("rand_like", "randn_like")
_IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__ifloordiv__", "__imod__")
_LEFT_ALONE = frozenset({
    "__get__", "__set__", "__delete__", "backward", "detach", "requires_grad_", "retain_grad", "register_hook", "size",
    "stride", "dim", "numel", "is_contiguous", "untyped_storage", "element_size", "is_floating_point",
    "is_complex", "get_device", "storage_offset", "__getitem__", "view", "view_as", "reshape", "expand", "expand_as",
    "transpose", "t", "permute", "unsqueeze", "squeeze", "narrow", "select", "chunk", "split", "unbind", "flatten",
    "unflatten", "as_strided", "diagonal", "movedim", "swapaxes", "__len__", "__hash__", "__repr__", "__format__",
})  # fmt: skip
"""Functions that read no values, or whose results share memory with a tensor that a later operation may change."""


class NativeCodeError(RuntimeError):
    """Raised if native code would read tensors of another type than the one that it was written for."""


class Precision(TorchFunctionMode):
    """Mode that converts the operands of every function of torch to one floating point type.

    Tensors that exist, such as parameters, keep their types; their gradients are converted back. Random numbers are
    drawn in float32, so that they stay the same.

    Args:
        dtype: type to compute in.

    Attributes:
        paused: whether the mode does nothing, such as during the steps of the optimizers.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.paused = False
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with converted operands."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if self.paused or name in _LEFT_ALONE or "out" in kwargs or not _has_float(args, kwargs):
            return func(*args, **kwargs)
        # It would take the bytes of one type for those of another.
        if name == "data_ptr":
            raise NativeCodeError(
                f"native code reads the tensors of this step, so the step cannot be computed in {self._dtype}: choose "
                "the implementation in plain torch, if there is one"
            )
        if name in _CASTS:
            return args[0].to(self._dtype)
        if name in _DRAWN_LIKE:
            kwargs.setdefault("dtype", torch.float32)
            return func(*args, **kwargs)
        in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        # The first operand of an operation in place is its result, and keeps its type.
        first = args[:1] if in_place else self._converted(args[:1])
        rest = self._converted(args[1:])
        return func(*first, *rest, **{key: self._converted(value) for key, value in kwargs.items()})

    def _converted(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._dtype) if value.dtype in _FLOATS and value.dtype != self._dtype else value
        if isinstance(value, torch.dtype):
            return self._dtype if value in _FLOATS else value
        # Named tuples, such as the result of torch.max, are made from positional arguments.
        if type(value) in (list, tuple):
            return type(value)(map(self._converted, value))
        return value


def _has_float(args: Any, kwargs: Any) -> bool:
    """Return whether a floating point tensor is among the arguments."""
    entries = [*args, *kwargs.values()]
    nested = [entry for entry in entries if isinstance(entry, list | tuple)]
    flat = [*entries, *(inner for entry in nested for inner in entry)]
    return any(isinstance(entry, Tensor) and entry.dtype in _FLOATS for entry in flat)
