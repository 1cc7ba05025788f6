"""Random generators held by a data set, its transforms or the data sets that it wraps."""

import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
# Maximum depth of the search through attributes.
_MAX_DEPTH = 8
_MAX_ENTRIES = 64
"""Length of a list above which it is assumed to contain data instead of transforms."""


def generators_of(dataset: Any) -> list[Any]:
    """Return the generators held by a data set, without duplicates, in the order of its attributes."""
    return list(_walk(dataset, 0, set()))


def seed_generator(generator: Any, seed: int) -> None:
    """Seed a generator of torch, numpy or Python in place."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        # A numpy Generator cannot be seeded in place: take the state of a new bit generator of the same type.
        bit_generator: Any = type(generator.bit_generator)
        generator.bit_generator.state = bit_generator(seed).state
    else:
        # RandomState accepts 32-bit seeds only.
        generator.seed(seed % 2**32)


def generator_state(generator: Any) -> Any:
    """Return the state of a generator of torch, numpy or Python."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Restore a state that :func:`generator_state` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _walk(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    # References between data sets may form cycles.
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, _KINDS):
        yield value
    elif depth < _MAX_DEPTH:
        for member in _members(value):
            yield from _walk(member, depth + 1, seen)


def _members(value: Any) -> list[Any]:
    """Return the members of an object that may be generators or may hold generators."""
    if isinstance(value, Tensor | np.ndarray | type | ModuleType):
        return []
    if isinstance(value, dict):
        members = list(cast("dict[Any, Any]", value).values())
    elif isinstance(value, list | tuple):
        members = list(cast("list[Any]", value))
    else:
        return list(getattr(value, "__dict__", {}).values())
    return members if len(members) <= _MAX_ENTRIES else []
