"""Variables of a loop that hold the weights of a module: a copy of earlier ones, or only a view of the current ones."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from fieldwatch.record.source_code import is_installed

_MOST_NAMES = 4096
"""Number of variables above which none is looked at."""


def kept_weights(frame: FrameType, modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Any]]:
    """Yield the variables that hold all weights of a tracked module.

    Found are mappings as ``state_dict()`` returns them, as variables, as values of mappings, and as attributes of the
    user's objects, such as one that stops early.

    Args:
        frame: frame of the loop.
        modules: tracked modules by name.

    Yields:
        ``name`` of the variable, ``item`` of the module, and whether it is ``shared`` with it or holds the ``same``
        values; both are False for a copy of other weights.
    """
    weights = {item: dict(module.named_parameters()) for item, module in modules.items()}
    for name, state in _states(frame):
        for item, parameters in weights.items():
            if not parameters or not parameters.keys() <= state.keys():
                continue
            pairs = [(parameter, state[key]) for key, parameter in parameters.items()]
            if all(isinstance(kept, Tensor) and kept.shape == own.shape for own, kept in pairs):
                yield {"name": name, "item": item, "shared": _is_shared(pairs), "same": _is_same(pairs)}


def _states(frame: FrameType) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and content of the mappings that a frame reaches directly."""
    variables = dict(frame.f_locals)
    if len(variables) > _MOST_NAMES:
        return
    for name, value in variables.items():
        if isinstance(value, Mapping):
            yield name, cast("Mapping[str, Any]", value)
            for key, inner in list(cast("Mapping[Any, Any]", value).items()):
                if isinstance(inner, Mapping):
                    yield f"{name}[{key!r}]", cast("Mapping[str, Any]", inner)
        elif _is_of_user(value):
            for key, inner in list(cast("dict[str, object]", vars(value)).items()):
                if isinstance(inner, Mapping):
                    yield f"{name}.{key}", cast("Mapping[str, Any]", inner)


def _is_of_user(value: object) -> bool:
    """Return whether a value is an object of a class of the user's program."""
    if isinstance(value, nn.Module | ModuleType | type) or not hasattr(value, "__dict__"):
        return False
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    return isinstance(file, str) and not is_installed(Path(file))


def _is_shared(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    return all(own.data_ptr() == kept.data_ptr() and own.numel() > 0 for own, kept in pairs)


def _is_same(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    return all(own.device == kept.device and torch.equal(own, kept) for own, kept in pairs)
