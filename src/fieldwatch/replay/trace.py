"""`OperationTrace`: looks at every operation of a step, forward and backward."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwatch.replay.allocations import LineAllocations, storage_key
from fieldwatch.replay.module_paths import ModulePaths
from fieldwatch.replay.operation import (
    BadValue,
    PhaseName,
    Place,
    can_be_checked,
    describe,
    describe_inputs,
    first_bad_index,
    is_finite,
    numbers_in,
    tensors_in,
)
from fieldwatch.replay.places import take_stack

MOST_BAD_VALUES = 2000
"""Number of bad values that are kept."""
SHOWN_BAD_VALUES = 30
"""Number of bad values in the result besides the first."""
_UNINITIALIZED = ("aten::empty", "aten::new_empty", "aten::resize_", "aten::set_")
"""Beginnings of the names of operations whose result holds whatever the memory held before."""
_current_node: Any = torch._C._current_autograd_node  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]  the node that autograd runs
_next_node_number: Any = torch._C._autograd._get_sequence_nr  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]  torch's profiler links forward and backward by it


class OperationTrace(TorchDispatchMode):
    """Dispatch mode that finds the operations that produce values that are not finite, and allocations by line.

    Autograd numbers its nodes as the forward pass creates them. By that number, an operation of the backward pass is
    attributed to the line and the module of its forward operation.

    Args:
        paths: paths of running modules.
        names: names of the tensors that exist before the step, by the identity of their storage.
    """

    def __init__(self, paths: ModulePaths, names: Mapping[int, str]) -> None:
        super().__init__()
        self.allocations = LineAllocations()
        self.bad_values: list[BadValue] = []
        self.operations = 0
        self.phase: PhaseName = "forward"
        self.paths = paths
        self._names = names
        self._paused = 0
        # Place of the forward operation by the number of its autograd node.
        self._forward: dict[int, Place] = {}
        # Cause of the values that are not finite, by storage.
        self._causes: dict[int, BadValue] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and look at its result."""
        result = func(*args, **(kwargs or {}))
        if not self._paused:
            self._look(func, (args, kwargs or {}), result)
        return result

    @contextmanager
    def paused(self) -> Generator[None]:
        """Look away inside this context, such as during an evaluation."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def reached(self, what: str, tensor: Tensor) -> None:
        """Note that a loss or a gradient is not finite, if it is not."""
        with self.paused():
            if not can_be_checked(tensor) or is_finite(tensor):
                return
            cause = self._causes.get(storage_key(tensor))
            if cause is None:
                cause = self._unseen(tensor, Place("forward", "", ()))
            if what not in cause.reached:
                cause.reached.append(what)

    def first(self) -> BadValue | None:
        """Return the first operation whose value made a loss or a gradient not finite; None if all are finite."""
        return min((bad for bad in self.bad_values if bad.reached), key=lambda bad: bad.number, default=None)

    def plain(self) -> dict[str, Any]:
        """Return what was found as plain values."""
        self.allocations.close()
        first = self.first()
        # Those that reached a loss or a gradient are worth more than a mask of -inf.
        others = sorted(
            (bad for bad in self.bad_values if bad is not first), key=lambda bad: (not bad.reached, bad.on_purpose)
        )
        return {
            "operations": self.operations,
            "first": None if first is None else first.plain(),
            "others": [bad.plain() for bad in others[:SHOWN_BAD_VALUES]],
            "others_in_all": len(others),
            "memory": self.allocations.plain(),
        }

    def _look(self, func: Any, arguments: Any, result: Any) -> None:
        place = self._place()
        inputs = list(tensors_in(arguments))
        known = {storage_key(tensor) for tensor in inputs if tensor.layout is torch.strided}
        for tensor in tensors_in(result):
            if tensor.layout is not torch.strided:
                continue
            self.allocations.note(tensor, place, known)
            # A view shows values that another operation made.
            if func.is_view or func._schema.name.startswith(_UNINITIALIZED):  # noqa: SLF001  an operation's only name
                continue
            if can_be_checked(tensor) and not is_finite(tensor):
                self._trace_back(func, arguments, inputs, tensor, place)
        self.operations += 1

    def _place(self) -> Place:
        node = _current_node()
        created = _next_node_number() - 1
        if node is None:
            place = Place(self.phase, self.paths.innermost, take_stack())
        else:
            forward = self._forward.get(node._sequence_nr())  # noqa: SLF001  torch's profiler uses it
            module = "" if forward is None else forward.module
            stack = take_stack() if forward is None else forward.stack
            place = Place("backward", module, stack, node.name())
        # The node of an operation is created just before it runs; operations without a node come later.
        self._forward.setdefault(created, place)
        return place

    def _trace_back(self, func: Any, arguments: Any, inputs: Iterable[Tensor], result: Tensor, place: Place) -> None:
        key = storage_key(result)
        # An operation in place has overwritten its input: whether that was finite is known from before.
        cause = self._causes.get(key) if any(storage_key(tensor) == key for tensor in inputs) else None
        others = (tensor for tensor in inputs if storage_key(tensor) != key and can_be_checked(tensor))
        for tensor in others:
            if cause is None and not is_finite(tensor):
                cause = self._causes.get(storage_key(tensor)) or self._unseen(tensor, place)
        if cause is None:
            index = first_bad_index(result)
            cause = BadValue(
                number=self.operations,
                operation=str(func._schema.name).replace("::", "."),  # noqa: SLF001  an operation's only name
                place=place,
                result=describe(result, index) | {"index": list(index)},
                inputs=describe_inputs(arguments, result.shape, index),
                on_purpose=any(number - number != 0 for number in numbers_in(arguments)),
            )
            self._add(cause)
        self._causes[key] = cause

    def _unseen(self, tensor: Tensor, place: Place) -> BadValue:
        """Return the cause of values that no operation has produced: data, parameters, native code."""
        key = storage_key(tensor)
        allocated = self.allocations.line_of(key)
        if allocated:
            what = f"native code that wrote into the tensor allocated at {allocated}"
        else:
            what = f"{self._names.get(key, 'a tensor')} was not finite when the step began"
        index = first_bad_index(tensor)
        facts = describe(tensor, index) | {"index": list(index)}
        cause = BadValue(number=self.operations, operation=what, place=place, result=facts, inputs=[])
        self._add(cause)
        self._causes[key] = cause
        return cause

    def _add(self, bad: BadValue) -> None:
        if len(self.bad_values) < MOST_BAD_VALUES:
            self.bad_values.append(bad)
