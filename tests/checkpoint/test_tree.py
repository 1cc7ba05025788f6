"""Trees of values are restored bit for bit, or refused with the path of the value."""

import json
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from enum import IntEnum

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwatch.checkpoint import CheckpointError
from fieldwatch.checkpoint.array import NUMPY_DTYPES, TORCH_DTYPES
from fieldwatch.checkpoint.tree import Packer
from fieldwatch.checkpoint.unpack import Unpacker


def through_json(value):
    packer = Packer()
    text = json.dumps(packer.pack(value, ("value",)), allow_nan=False)
    return Unpacker(packer.arrays).unpack(json.loads(text))


def bits(value):
    return struct.pack(">d", value)


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_every_torch_dtype_returns_bit_for_bit(name):
    dtype = TORCH_DTYPES[name]
    raw = torch.arange(5 * 3 * dtype.itemsize, dtype=torch.uint8) % 2
    tensor = raw.view(dtype).reshape(5, 3)

    back = through_json(tensor)

    assert back.dtype == dtype
    assert back.shape == (5, 3)
    assert torch.equal(back.reshape(-1).view(torch.uint8), raw)


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_every_numpy_dtype_returns_bit_for_bit(name):
    array = (np.arange(15 * np.dtype(name).itemsize) % 2).astype(np.uint8).view(name).reshape(5, 3)
    back = through_json(array)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.empty(0, 5),
        torch.empty(0),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(20)[3::4],
        torch.tensor(1.0).expand(3, 4),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j]).imag,
        torch.tensor([1 + 2j]).conj().imag,
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor([math.nan, -0.0, math.inf, 1e-45]),
    ],
    ids=[
        "0-dim",
        "empty rows",
        "empty",
        "transposed",
        "strided",
        "expanded",
        "conj",
        "imag",
        "neg",
        "parameter",
        "special",
    ],
)
def test_tensors_of_any_layout_return_equal(tensor):
    back = through_json(tensor)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert not back.requires_grad
    torch.testing.assert_close(back, tensor.detach(), rtol=0, atol=0, equal_nan=True)


def test_numpy_arrays_of_any_layout_return_equal():
    for array in (np.arange(6).reshape(2, 3).T, np.array(2.5), np.empty((0, 3), np.int16), np.arange(4, dtype=">i4")):
        back = through_json(array)
        assert back.shape == array.shape
        assert np.array_equal(back, array)


def test_numpy_scalars_stay_numpy_scalars():
    back = through_json([np.float32(0.1), np.int64(-3), np.bool_(1), np.float64(0.1)])
    assert [type(one) for one in back] == [np.float32, np.int64, np.bool_, np.float64]
    assert back == [np.float32(0.1), -3, True, 0.1]


def test_a_tensor_with_two_names_is_stored_once_and_returns_as_one():
    shared = torch.arange(10.0)
    packer = Packer()
    node = packer.pack({"a": shared, "b": shared, "view": shared.view(10), "part": shared[:5]}, ("value",))
    assert len(packer.arrays) == 2  # the whole, and the part
    back = Unpacker(packer.arrays).unpack(node)
    assert back["a"] is back["b"]
    assert torch.equal(back["part"], shared[:5])


def test_two_short_lived_tensors_at_one_address_are_not_confused():
    packer = Packer()
    nodes = [packer.pack(torch.full((1000,), float(i)), ("value",)) for i in range(20)]
    back = Unpacker(packer.arrays)
    assert [float(back.unpack(node)[0]) for node in nodes] == [float(i) for i in range(20)]


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
_KEYS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.tuples(st.integers(), st.text())
)
_TREES = st.recursive(
    _SCALARS | st.just("$"),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(_KEYS, inner)
        | st.dictionaries(st.text("$a"), inner)
    ),
    max_leaves=20,
)


def same(one, two):
    if type(one) is not type(two):
        return False
    if isinstance(one, float):
        return bits(one) == bits(two)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one.items(), two.items(), strict=True))
    return one == two


@given(_TREES)
@settings(max_examples=200, deadline=None)
def test_any_tree_of_plain_values_returns_with_its_types(tree):
    assert same(through_json(tree), tree)


@pytest.mark.parametrize(
    "value", [math.nan, -math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2, 1.7976931348623157e308]
)
def test_floats_return_bit_for_bit(value):
    assert bits(through_json(value)) == bits(value)


def test_generator_states_with_integers_beyond_64_bit_return():
    state = np.random.default_rng(7).bit_generator.state
    assert through_json(state) == state
    assert through_json(random.Random(7).getstate()) == random.Random(7).getstate()
    assert through_json(-(10**5000)) == -(10**5000)


def test_mappings_keep_their_kind_and_a_modules_versions():
    module = torch.nn.BatchNorm1d(2)
    back = through_json({"steps": Counter([5, 5, 9]), "order": OrderedDict(b=1, a=2), "module": module.state_dict()})
    assert back["steps"] == Counter({5: 2, 9: 1})
    assert type(back["steps"]) is Counter
    assert list(back["order"]) == ["b", "a"]
    assert back["module"]._metadata == module.state_dict()._metadata


def itself():
    tree: dict = {}
    tree["self"] = tree
    return tree


class Flag(IntEnum):
    ON = 1


@pytest.mark.parametrize(
    ("value", "named", "wanted"),
    [
        ({"a": [1, {2, 3}]}, r"items\['x'\]\['a'\]\[1\] is a builtins\.set", r"list\(a_set\)"),
        ({"a": object()}, r"\['a'\] is a builtins\.object", "convert it in state_dict"),
        (lambda: 0, "is a builtins.function", "the name of an object"),
        (defaultdict(list), "is a collections.defaultdict", r"dict\(a_defaultdict\)"),
        (deque([1]), "is a collections.deque", "list"),
        (Flag.ON, "Flag", r"an_enum\.value"),
        (torch.float32, "is a torch.dtype", "name"),
        ({b"k": 1}, "has the key b'k' of type bytes", "use str, int"),
        ({(1, frozenset()): 1}, "has the key frozenset", "tuple of these"),
        (itself(), "nested more than 50 deep", "contain itself"),
        (torch.empty(2, device="meta"), "on meta", "dense tensors"),
        (torch.eye(2).to_sparse(), "sparse_coo", "convert it in state_dict"),
        (np.array(["a"]), "numpy array of dtype <U1", "supported dtypes are bool"),
        (np.array([object()]), "dtype object", "supported dtypes are bool"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_path(value, named, wanted):
    with pytest.raises(CheckpointError, match=f"(?s){named}.*{wanted}"):
        Packer().pack(value, ("items", "x"))


def test_a_tensor_subclass_and_a_quantized_tensor_are_refused():
    class Marked(torch.Tensor):
        pass

    with pytest.raises(CheckpointError, match=r"is a Marked.*torch\.strided"):
        Packer().pack(torch.ones(2).as_subclass(Marked), ("x",))
    with pytest.raises(CheckpointError, match="no plain bytes"):
        Packer().pack(torch.empty(4, dtype=torch.int4), ("x",))
