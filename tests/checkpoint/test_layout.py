"""The layout of the tensors' file: compatibility with other readers, and forged files."""

import hashlib
import json
import os
import resource
import struct

import numpy as np
import pytest
import torch

from fieldwatch.checkpoint import CheckpointError, Checkpoints, DamageError
from fieldwatch.checkpoint.array import NUMPY_DTYPES, TORCH_DTYPES
from fieldwatch.checkpoint.folder import read_manifest
from fieldwatch.checkpoint.layout import ArrayEntry, RawLayout, SafetensorsLayout

TENSORS = "tensors.safetensors"
PAIRS = {"complex32": torch.float16, "complex64": torch.float32, "complex128": torch.float64}
KNOWN = {
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
}
"""The dtypes that safetensors has names for."""


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def of_dtype(name):
    itemsize = TORCH_DTYPES[name].itemsize
    return (torch.arange(2 * 3 * itemsize, dtype=torch.uint8) % 2).view(TORCH_DTYPES[name]).reshape(2, 3)


def header_of(path):
    """The header of a safetensors file, read as its specification says."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def saved(folder, items):
    return Checkpoints(folder).save(1, items) / TENSORS


def test_the_reference_reader_opens_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed")
    items = {name: of_dtype(name) for name in TORCH_DTYPES}
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    shared = torch.arange(4.0)
    others = {"empty": torch.empty(0, 5), "number": torch.tensor(3)}
    kept = {**items, **others, "model": model, "adam": optimizer, "one": shared, "two": shared}
    path = Checkpoints(tmp_path).save(1, kept, note={"array": np.arange(6.0).reshape(2, 3).T}) / TENSORS

    found = safetensors.load_file(path)

    for name, tensor in items.items():
        if name in PAIRS:
            assert found[name].dtype == PAIRS[name]
            assert found[name].shape == (2, 3, 2)
        else:
            assert found[name].dtype == (TORCH_DTYPES[name] if name in KNOWN else torch.uint8)
            assert found[name].shape == (2, 3)
        assert torch.equal(raw(found[name]), raw(tensor))
    assert torch.equal(found["model.weight"], model.weight)
    assert torch.equal(found["adam.state.0.exp_avg"], optimizer.state[model.weight]["exp_avg"])
    assert found["note.array"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (found["empty"].shape, found["number"].item()) == ((0, 5), 3)
    assert ("one" in found, "two" in found) == (True, False)  # stored once, under its first name


def test_the_reference_reader_opens_one_without_tensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed")
    assert safetensors.load_file(saved(tmp_path, {})) == {}


def test_arrays_follow_one_another_and_begin_at_multiples_of_their_elements(tmp_path):
    items = {name: of_dtype(name) for name in (*NUMPY_DTYPES, *TORCH_DTYPES)}
    path = saved(tmp_path, items)
    fields, data = header_of(path)
    assert (path.stat().st_size - len(data)) % 64 == 0
    fields.pop("__metadata__")
    end = 0
    for name, described in fields.items():
        start, stop = described["data_offsets"]
        assert start == end
        assert start % TORCH_DTYPES[name].itemsize == 0
        assert data[start:stop] == bytes(raw(items[name]).numpy())
        end = stop
    assert end == len(data)


def test_dtypes_that_safetensors_lacks_are_named_in_its_metadata(tmp_path):
    items = {name: of_dtype(name) for name in TORCH_DTYPES}
    fields, _ = header_of(saved(tmp_path, items))
    metadata = fields["__metadata__"]
    assert metadata.pop("format") == "pt"
    assert metadata.pop("writer") == "fieldwatch"
    assert metadata == {f"dtype of {name}": name for name in TORCH_DTYPES if name not in KNOWN}


def test_names_are_distinct_and_text_and_never_the_reserved_one(tmp_path):
    tensors = [torch.full((3,), float(i)) for i in range(6)]
    tree = {"a.b": tensors[0], "a": {"b": tensors[1], 1: tensors[2], "1": tensors[3]}, "\ud800": tensors[4]}
    items = {"tree": tree, "__metadata__": tensors[5]}
    path = saved(tmp_path, items)
    names = [entry.name for entry in read_manifest(path.parent).tensors]
    assert names == ["tree.a.b", "tree.a.b~2", "tree.a.1", "tree.a.1~2", "tree.?", "__metadata__~"]
    assert set(header_of(path)[0]) == {*names, "__metadata__"}
    back = Checkpoints(tmp_path).read()
    assert back["tree"]["a"][1].tolist() == [2, 2, 2]
    assert back["tree"]["\ud800"].tolist() == [4, 4, 4]


def test_a_tensor_in_the_note_has_a_name_too(tmp_path):
    path = Checkpoints(tmp_path).save(1, {"x": torch.ones(2)}, note={"best": torch.zeros(2)})
    assert [entry.name for entry in read_manifest(path).tensors] == ["x", "note.best"]


def reseal(path, text):
    (path / "manifest.json").write_bytes(text)
    (path / "manifest.sha256").write_text(f"{hashlib.sha256(text).hexdigest()}  manifest.json\n")


FORGED = {
    "a length beyond the file": (2**63 - 1).to_bytes(8, "little"),
    "no length": bytes(8),
    "offsets that overlap": b'{"__metadata__":{},"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}',
    "no JSON": b"\xff" * 64,
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_header_is_refused(tmp_path, name):
    path = saved(tmp_path, {"x": torch.ones(400)})
    content = bytearray(path.read_bytes())
    start = 0 if name in ("a length beyond the file", "no length") else 8
    content[start : start + len(FORGED[name])] = FORGED[name]
    path.write_bytes(content)
    with pytest.raises(DamageError, match=r"not.*header"):
        Checkpoints(tmp_path).read()


def test_a_sparse_file_that_claims_terabytes_is_refused_and_stays(tmp_path):
    path = saved(tmp_path, {"x": torch.ones(400)})
    manifest = json.loads((path.parent / "manifest.json").read_bytes())
    manifest["tensors"][0] |= {"shape": [2**40], "nbytes": 2**42}
    reseal(path.parent, json.dumps(manifest).encode())
    entry = ArrayEntry(name="x", dtype="float32", shape=(2**40,), nbytes=2**42)
    header = SafetensorsLayout().header([entry])
    path.write_bytes(header)
    os.truncate(path, len(header) + 2**42)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="4,398,046,511,104 bytes"):
        Checkpoints(tmp_path).restore({"x": torch.ones(400)})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert Checkpoints(tmp_path).steps() == [1]  # it may be sound: nothing is renamed


def test_the_first_version_pads_to_64_bytes_and_has_no_header():
    entries = [ArrayEntry(dtype="float32", shape=(3,), nbytes=12), ArrayEntry(dtype="int64", shape=(9,), nbytes=72)]
    assert RawLayout().offsets(entries) == [0, 64]
    assert RawLayout().header(entries) == b""
    assert RawLayout().padded(72) == 128
