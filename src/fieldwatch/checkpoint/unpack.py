"""Unpacking of JSON and raw arrays into trees of values; any unknown form is treated as damage."""

import base64
import struct
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.checkpoint.array import Array
from fieldwatch.checkpoint.incident import DamageError
from fieldwatch.checkpoint.tree import MAX_DEPTH

_Node = dict[str, Any]


class Unpacker:
    """Creates values from JSON; an array that is referenced twice becomes one shared tensor."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self._made: dict[tuple[str, int], Tensor | NDArray[np.generic]] = {}

    def unpack(self, node: Any, depth: int = 0) -> Any:
        """Return the value that a JSON node represents.

        Raises:
            DamageError: if the node is not in a form that ``Packer`` writes.
        """
        if depth > MAX_DEPTH + 1:
            raise DamageError(f"the manifest's values are nested more than {MAX_DEPTH} deep")
        if isinstance(node, list):
            return self._members(cast("list[Any]", node), depth)
        if not isinstance(node, dict):
            return node
        tree = cast("_Node", node)
        if "$" not in tree:
            return {key: self.unpack(value, depth + 1) for key, value in tree.items()}
        return self._tagged(tree, depth)

    def _tagged(self, node: _Node, depth: int) -> Any:
        try:
            return self._build(node, depth)
        # The parsers of the standard library raise these for malformed input.
        except (ValueError, TypeError, struct.error) as error:
            raise DamageError(f"the manifest contains a malformed {str(node['$'])[:40]}: {error}") from error

    def _build(self, node: _Node, depth: int) -> Any:
        value: Any
        match node["$"]:
            case "tuple":
                value = tuple(self._members(_field(node, "items", list), depth))
            case "bytes":
                value = base64.b64decode(_field(node, "base64", str), validate=True)
            case "int":
                value = int(_field(node, "hex", str), 16)
            case "float":
                value = struct.unpack(">d", bytes.fromhex(_field(node, "bits", str)))[0]
            case "dict":
                value = dict(self._pairs(node, depth))
            case "counter":
                value = Counter(dict(self._pairs(node, depth)))
            case "ordered":
                value = self._ordered(node, depth)
            case "tensor" | "ndarray" as kind:
                value = self._array(node, kind)
            case "scalar":
                value = self._array(node, "ndarray")[()]
            case form:
                raise DamageError(f"the manifest contains a value of the unknown kind {str(form)[:40]!r}")
        return value

    def _members(self, nodes: list[Any], depth: int) -> list[Any]:
        if depth <= MAX_DEPTH and set(map(type, nodes)) == {int}:  # a random state has hundreds
            return list(nodes)
        return [self.unpack(node, depth + 1) for node in nodes]

    def _pairs(self, node: _Node, depth: int) -> list[tuple[Any, Any]]:
        pairs = _field(node, "pairs", list)
        return [(self.unpack(key, depth + 1), self.unpack(value, depth + 1)) for key, value in pairs]

    def _ordered(self, node: _Node, depth: int) -> OrderedDict[Any, Any]:
        ordered = OrderedDict(self._pairs(node, depth))
        if "metadata" in node:
            ordered._metadata = self.unpack(node["metadata"], depth + 1)  # type: ignore[attr-defined]  # noqa: SLF001 - nn.Module reads it there
        return ordered

    def _array(self, node: _Node, kind: str) -> Any:
        at = int(_field(node, "at", int))
        if not 0 <= at < len(self._arrays):
            raise DamageError(f"the manifest refers to array {at}, but there are only {len(self._arrays)}")
        # One tensor per array, so that values that shared memory when they were packed share it again.
        if (kind, at) not in self._made:
            array = self._arrays[at]
            self._made[kind, at] = array.tensor() if kind == "tensor" else array.ndarray()
        return self._made[kind, at]


def _field(node: _Node, name: str, wanted: type) -> Any:
    value = node.get(name)
    # `type` instead of `isinstance`, because JSON's true would count as an int.
    if type(value) is not wanted:
        raise DamageError(f"the manifest's {node['$']} has no field {name!r} of type {wanted.__name__}")
    return value
