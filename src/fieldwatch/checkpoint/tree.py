"""Packing of trees of plain values and tensors into JSON and raw arrays, without pickle.

Values that JSON represents exactly are stored as such. All others are objects with a ``"$"`` key that names their kind:
``tuple``, ``bytes``, ``int`` (beyond 64 bits), ``float`` (not finite), ``dict`` / ``ordered`` / ``counter`` (pairs),
and ``tensor`` / ``ndarray`` / ``scalar`` (index of a stored array).
"""

import base64
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fieldwatch.checkpoint.array import Array, ArraySource, source_of
from fieldwatch.checkpoint.incident import CheckpointError
from fieldwatch.checkpoint.layout import METADATA

MAX_DEPTH = 50
MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
Path = tuple[object, ...]
"""Path of a value: the name of the tree, then a key or an index for each level."""
_KEY_TYPES = (str, int, float, bool, type(None), tuple)
_ADVICE = (
    "a checkpoint can store tensors, numpy arrays, numbers, str, bytes, None, tuple, list and dict; convert it in "
    "state_dict(), e.g. list(a_set), dict(a_defaultdict), an_enum.value, or the name of an object"
)


class Packer:
    """Converts values to JSON and collects their arrays without copying; shared tensors are stored once.

    Attributes:
        sources: collected arrays.
        names: unique name of each array: the keys of its path, joined by dots.
    """

    def __init__(self) -> None:
        # Keeps the arrays alive, so that no memory address is reused while tensors are compared by address.
        self.sources: list[ArraySource] = []
        self.names: list[str] = []
        self._array_numbers: dict[Hashable, int] = {}
        self._uses = Counter[str]()

    @property
    def arrays(self) -> list[Array]:
        """The collected arrays in host memory, shared with the sources if possible."""
        return [source.array() for source in self.sources]

    def pack(self, value: object, path: Path, depth: int = 0) -> Any:
        """Return the JSON representation of a tree.

        Args:
            value: tree to pack.
            path: path of the value, such as ``("items", "model")``.
            depth: nesting depth of the value.

        Raises:
            CheckpointError: if the tree contains an unsupported value or itself; the message contains its path.
        """
        _check_depth(path, depth)
        if isinstance(value, Tensor):
            return {"$": "tensor", "at": self._tensor(value, path)}
        if isinstance(value, np.ndarray | np.generic):
            at = self._add(source_of(cast("np.generic", value), format_path(path)), path)
            return {"$": "scalar" if isinstance(value, np.generic) else "ndarray", "at": at}
        # Exact types only: a subclass would come back as its base class.
        if type(value) in MAPPINGS:
            return self._mapping(cast("Mapping[object, object]", value), path, depth)
        if type(value) in (list, tuple, torch.Size):
            members = self._members(cast("Sequence[object]", value), path, depth)
            return members if type(value) is list else {"$": "tuple", "items": members}
        return _plain(value, path)

    def _members(self, values: Sequence[object], path: Path, depth: int) -> list[Any]:
        # Python's random state has 625 integers, and every checkpoint holds it.
        if depth < MAX_DEPTH and set(map(type, values)) == {int}:
            numbers = cast("Sequence[int]", values)
            if min(numbers) >= -(2**63) and max(numbers) < 2**63:
                return list(numbers)
        return [self.pack(value, (*path, i), depth + 1) for i, value in enumerate(values)]

    def _mapping(self, mapping: Mapping[object, object], path: Path, depth: int) -> dict[str, Any]:
        kind = MAPPINGS[type(mapping)]
        values = [self.pack(value, (*path, key), depth + 1) for key, value in mapping.items()]
        # A plain dict with string keys is stored as a JSON object, without a tag.
        if kind == "dict" and "$" not in mapping and all(type(key) is str for key in mapping):
            return dict(zip(cast("Mapping[str, object]", mapping), values, strict=True))
        keys = [self._key(key, path, depth) for key in mapping]
        node: dict[str, Any] = {"$": kind, "pairs": [list(pair) for pair in zip(keys, values, strict=True)]}
        # nn.Module.state_dict() stores the versions of the modules in this attribute.
        metadata = getattr(mapping, "_metadata", None)
        if metadata is not None:
            node["metadata"] = self.pack(dict(metadata), (*path, "_metadata"), depth + 1)
        return node

    def _key(self, key: object, path: Path, depth: int) -> Any:
        _check_depth(path, depth)
        if type(key) not in _KEY_TYPES:
            expected = "str, int, float, bool, None or a tuple of these"
            raise CheckpointError(
                f"{format_path(path)} has the key {key!r} of type {type(key).__qualname__}: use {expected}"
            )
        if type(key) is tuple:
            members = cast("tuple[object, ...]", key)
            return {"$": "tuple", "items": [self._key(member, path, depth + 1) for member in members]}
        return _plain(key, path, "a key of ")

    def _tensor(self, tensor: Tensor, path: Path) -> int:
        key = _identity(tensor)
        if key is not None and key in self._array_numbers:
            return self._array_numbers[key]
        at = self._add(source_of(tensor, format_path(path)), path)
        if key is not None:
            self._array_numbers[key] = at
        return at

    def _add(self, source: ArraySource, path: Path) -> int:
        """Collect an array and return its index."""
        self.sources.append(source)
        self.names.append(self._distinct(_dotted(path)))
        return len(self.sources) - 1

    def _distinct(self, name: str) -> str:
        """Return the name, with a number appended if it is already used.

        For example, ``{"a.b": x, "a": {"b": y}}`` contains two arrays named ``a.b``.
        """
        self._uses[name] += 1
        return name if self._uses[name] == 1 else self._distinct(f"{name}~{self._uses[name]}")


def format_path(path: Path) -> str:
    """Format a path for error messages, such as ``items['model']['weight']``."""
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def _dotted(path: Path) -> str:
    """Return a path as the name of an array, such as ``model.weight``, without a leading ``items``."""
    keys = path[1:] if path[0] == "items" else path
    name = ".".join(map(str, keys))
    # A lone surrogate is not valid text for other programs.
    name = name.encode(errors="replace").decode()
    return f"{name}~" if name == METADATA else name


def _check_depth(path: Path, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise CheckpointError(
            f"{format_path(path)[:120]}... is nested more than {MAX_DEPTH} deep: does it contain itself?"
        )


def _identity(tensor: Tensor) -> Hashable:
    """Return a key that is equal for tensors with the same memory and view; None if they cannot be compared."""
    if tensor.layout != torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return None
    # Two views of the same memory are the same tensor only if they have the same elements.
    view = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (str(tensor.device), tensor.data_ptr(), view)


def _plain(value: object, path: Path, what: str = "") -> Any:
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        # Not all JSON parsers support integers beyond 64 bits.
        return value if -(2**63) <= value < 2**63 else {"$": "int", "hex": hex(value)}
    if type(value) is float:
        # The bits also preserve the payload of a NaN.
        return value if math.isfinite(value) else {"$": "float", "bits": struct.pack(">d", value).hex()}
    if type(value) is bytes:
        return {"$": "bytes", "base64": base64.b64encode(value).decode("ascii")}
    raise CheckpointError(
        f"{what}{format_path(path)} is a {type(value).__module__}.{type(value).__qualname__}: {_ADVICE}"
    )
