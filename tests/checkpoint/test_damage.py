"""Damaged and malicious checkpoints: every flipped bit is detected and the previous checkpoint is used."""

import hashlib
import json
import os
import random
import resource
import shutil
from pathlib import Path

import pytest
import torch

import fieldwatch.checkpoint as room
from fieldwatch.checkpoint import CheckpointError, Checkpoints, DamageError, Retention

FILES = ("tensors.safetensors", "manifest.json", "manifest.sha256")


def filled(step):
    return {"x": torch.full((301,), float(step)), "mask": torch.ones(5, dtype=torch.bool), "n": torch.tensor(step)}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    for step in (100, 200):
        Checkpoints(folder).save(step, filled(step))
    return folder


@pytest.fixture
def copy(good, tmp_path):
    shutil.copytree(good, tmp_path / "run")
    return tmp_path / "run"


def assert_falls_back(folder, reason=""):
    checkpoints = Checkpoints(folder)
    items = filled(0)
    with pytest.raises(DamageError, match=r"step_0000000200 is damaged: .*; other steps are \[100\]"):
        checkpoints.read()
    restored = checkpoints.restore(items)
    assert restored.step == 100
    assert items["x"].eq(100).all()
    (incident,) = restored.fell_back
    assert (incident.step, incident.what, incident.path.name) == (200, "damaged", "damaged-step_0000000200")
    assert reason in incident.reason
    assert incident.path.is_dir()
    assert checkpoints.steps() == [100]
    assert checkpoints.incidents == [incident]


def positions(count):
    """Return random bits, distributed over the three files in turn."""
    draw = random.Random(2026)
    return [(FILES[i % 3], draw.random(), draw.randrange(8)) for i in range(count)]


def test_every_single_flipped_bit_is_found_and_the_one_before_used(good, tmp_path):
    for i, (name, place, bit) in enumerate(positions(60)):
        folder = tmp_path / str(i)
        shutil.copytree(good, folder)
        file = folder / "step_0000000200" / name
        content = bytearray(file.read_bytes())
        content[int(place * len(content))] ^= 1 << bit
        file.write_bytes(content)
        assert_falls_back(folder)


def test_every_truncation_is_found_and_the_one_before_used(good, tmp_path):
    for i, (name, place, _) in enumerate(positions(30)):
        folder = tmp_path / str(i)
        shutil.copytree(good, folder)
        file = folder / "step_0000000200" / name
        os.truncate(file, int(place * file.stat().st_size))
        assert_falls_back(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_zeroed_a_longer_and_a_missing_file_are_found(good, tmp_path, name):
    changes = {
        "zeroed": lambda file: file.write_bytes(bytes(file.stat().st_size)),
        "longer": lambda file: file.write_bytes(file.read_bytes() + b"\n"),
        "missing": lambda file: file.unlink(),
        "a folder": lambda file: (file.unlink(), file.mkdir()),
        "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
        "a link": lambda file: (file.rename(tmp_path / "elsewhere"), file.symlink_to(tmp_path / "elsewhere")),
    }
    for i, change in enumerate(changes.values()):
        folder = tmp_path / str(i)
        shutil.copytree(good, folder)
        change(folder / "step_0000000200" / name)
        assert_falls_back(folder)


def test_the_header_of_the_tensors_is_checked_too(copy):
    file = copy / "step_0000000200" / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[content.index(b"shape")] = ord("S")
    file.write_bytes(content)
    assert_falls_back(copy, "does not begin with the header")


def test_a_renamed_folder_is_found(copy):
    (copy / "step_0000000200").rename(copy / "step_0000000300")
    with pytest.raises(DamageError, match="contains step 200: it was renamed"):
        Checkpoints(copy).read()


def test_no_item_is_touched_while_a_hash_is_wrong(copy):
    file = copy / "step_0000000200" / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # the last tensor
    file.write_bytes(content)
    items = filled(0)
    with pytest.raises(CheckpointError, match=r"step 200.*hash.*steps \[100\] are left"):
        Checkpoints(copy).restore(items, step=200)
    assert items["x"].eq(0).all()


def test_with_all_damaged_the_error_names_each(copy):
    for step in ("100", "200"):
        (copy / f"step_0000000{step}" / "tensors.safetensors").unlink()
    wanted = r"no good checkpoint for step 'last'.*step 200: tensors\.\w+ is missing.*step 100: tensors\..*none is left"
    with pytest.raises(CheckpointError, match=wanted):
        Checkpoints(copy).restore(filled(0))


def test_best_falls_back_to_the_next_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=Retention(last=3, metric="psnr"))
    for step, psnr in ((1, 30.0), (2, 31.0), (3, 29.0)):
        checkpoints.save(step, filled(step), metrics={"psnr": psnr})
    file = tmp_path / "step_0000000002" / "tensors.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    restored = Checkpoints(tmp_path, keep=checkpoints.keep).restore(filled(0), step="best")
    assert (restored.step, restored.fell_back[0].step) == (1, 2)


def test_a_damaged_one_does_not_push_the_good_one_out(copy):
    (copy / "step_0000000200" / "manifest.json").write_bytes(b"")
    checkpoints = Checkpoints(copy, keep=Retention(last=2))
    checkpoints.save(300, filled(300))
    assert checkpoints.steps() == [100, 200, 300]
    assert checkpoints.restore(filled(0), step=100).step == 100


def test_two_damaged_of_one_step_are_both_set_aside(copy):
    for _ in range(2):
        (copy / "step_0000000200" / "manifest.json").write_bytes(b"{}")
        Checkpoints(copy).restore(filled(0))
        Checkpoints(copy).save(200, filled(200))
    assert len(list(copy.glob("damaged-step_0000000200*"))) == 2


# A hostile checkpoint has right hashes: whoever made it could compute them.


def reseal(folder, change):
    path = folder / "step_0000000200"
    fields = json.loads((path / "manifest.json").read_bytes())
    text = change(fields)
    text = text if isinstance(text, bytes) else json.dumps(fields).encode()
    (path / "manifest.json").write_bytes(text)
    (path / "manifest.sha256").write_text(f"{hashlib.sha256(text).hexdigest()}  manifest.json\n")


def put(*keys, value):
    def change(fields):
        for key in keys[:-1]:
            fields = fields[key]
        fields[keys[-1]] = value

    return change


def huge(fields):
    fields["tensors"][0] |= {"shape": [2**40], "nbytes": 2**42}


HOSTILE = {
    "another offset": (put("tensors", 1, "offset", value=0), "starts at byte 0, expected byte 1212"),
    "negative offset": (put("tensors", 0, "offset", value=-64), "offset is '-64', expected an integer"),
    "a path as offset": (
        put("tensors", 0, "offset", value="../../etc/passwd"),
        "offset is '../../etc/passwd', expected an integer",
    ),
    "a bool as offset": (put("tensors", 0, "offset", value=False), "expected an integer"),
    "a fraction": (put("tensors", 0, "nbytes", value=1204.0), "expected an integer"),
    "huge": (huge, "tensors[1] starts at byte"),
    "last one huge": (put("tensors", 2, value=None), "tensors[2] is not an object"),
    "huge shape": (put("tensors", 0, "shape", value=[2**62, 2**62]), "impossible shape"),
    "huge empty shape": (put("tensors", 0, "shape", value=[2**62, 2**62, 0]), "impossible shape"),
    "negative shape": (put("tensors", 0, "shape", value=[-1]), "shape is '-1'"),
    "100 dimensions": (put("tensors", 0, "shape", value=[1] * 100), "no shape of at most 64 sizes"),
    "another shape": (put("tensors", 0, "shape", value=[302]), "cannot take 1204 bytes"),
    "another dtype": (put("tensors", 0, "dtype", value="float64"), "cannot take 1204 bytes"),
    "unknown dtype": (put("tensors", 0, "dtype", value="object"), "unknown dtype 'object'"),
    "dtype no text": (put("tensors", 0, "dtype", value=["float32"]), "unknown dtype"),
    "name no text": (put("tensors", 0, "name", value=7), "unusable name '7'"),
    "no name": (lambda fields: fields["tensors"][0].pop("name") and None, "unusable name 'None'"),
    "a reserved name": (put("tensors", 0, "name", value="__metadata__"), "unusable name '__metadata__'"),
    "one name twice": (put("tensors", 0, "name", value="mask"), "gives two tensors the same name"),
    "another name": (put("tensors", 0, "name", value="y"), "does not begin with the header"),
    "a lone surrogate as name": (put("tensors", 0, "name", value="\ud800"), "header"),
    "no hash": (put("tensors", 0, "sha256", value=None), "no sha256"),
    "short hash": (put("tensors", 0, "sha256", value="00"), "no sha256"),
    "another array": (put("items", "x", "at", value=99), "refers to array 99, but there are only 3"),
    "negative array": (put("items", "x", "at", value=-1), "refers to array -1"),
    "array no number": (put("items", "x", "at", value="0"), "has no field 'at' of type int"),
    "unknown form": (put("items", "x", value={"$": "pickle", "data": "gASV"}), "unknown kind 'pickle'"),
    "form no text": (put("items", "x", value={"$": ["tuple"]}), "unknown kind"),
    "bad bytes": (put("items", "x", value={"$": "bytes", "base64": "?"}), "malformed bytes"),
    "bad float": (put("items", "x", value={"$": "float", "bits": "00"}), "malformed float"),
    "bad int": (put("items", "x", value={"$": "int", "hex": "zz"}), "malformed int"),
    "bad pairs": (put("items", "x", value={"$": "dict", "pairs": [[1]]}), "malformed dict"),
    "bad key": (put("items", "x", value={"$": "dict", "pairs": [[[], 1]]}), "malformed dict"),
    "metrics a list": (put("metrics", value=[]), "metrics are not an object"),
    "metrics numbers": (put("metrics", value={"psnr": 1}), "not numbers written as text"),
    "metrics no numbers": (put("metrics", value={"psnr": "high"}), "metrics are not numbers"),
    "items a list": (put("items", value=[]), "lacks its items"),
    "no time": (put("created", value=0), "created is not a time"),
    "negative step": (put("step", value=-1), "step is '-1'"),
    "huge step": (put("step", value=10**30), "expected an integer"),
    "another step": (put("step", value=100), "contains step 100"),
    "another format": (put("format", value="zip"), "does not say that it is a fieldwatch checkpoint"),
    "a list": (lambda _: b"[]", "does not say that it is"),
    "NaN": (lambda _: b'{"format": NaN}', "NaN is not JSON"),
    "not utf-8": (lambda _: b"\xff\xfe{}", "is not JSON"),
    "many digits": (lambda _: b'{"a":' + b"9" * 10_000 + b"}", "is not JSON"),
    "deep": (lambda _: b"[" * 200_000, "is not JSON"),
    "too long": (lambda _: b" " * (16 * 2**20 + 1), "at most 16,777,216"),
}


def nested(depth):
    node = 0
    for _ in range(depth):
        node = [node]
    return node


@pytest.mark.machine
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused_clearly_in_little_memory(copy, name):
    change, reason = HOSTILE[name]
    reseal(copy, change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_falls_back(copy, reason)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_a_deep_tree_is_refused(copy):
    reseal(copy, put("items", "x", value=nested(300)))
    assert_falls_back(copy, "nested more than 50 deep")


def test_a_huge_last_tensor_is_refused_before_any_memory_is_taken(copy):
    reseal(copy, lambda fields: fields["tensors"][1].update(shape=[2**40], nbytes=2**40))  # the last in the file
    assert_falls_back(copy, "expected 1,099,511,62")


def test_an_array_of_torchs_dtype_cannot_pass_for_numpys(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (100, 200):
        checkpoints.save(step, {"x": torch.full((301,), step, dtype=torch.bfloat16)})
    reseal(tmp_path, put("items", "x", "$", value="ndarray"))
    with pytest.raises(DamageError, match="torch's dtype bfloat16"):
        checkpoints.read()


def test_a_bool_that_is_neither_is_refused(copy):
    def change(fields):
        fields["tensors"][1]["sha256"] = hashlib.sha256(b"\2\1\1\1\1").hexdigest()

    file = copy / "step_0000000200" / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] = 2  # the mask comes last: its elements are the smallest
    file.write_bytes(content)
    reseal(copy, change)
    assert_falls_back(copy, "neither 0 nor 1")


def test_the_room_names_no_way_to_run_stored_code():
    sources = [file.read_text() for file in Path(room.__file__).parent.glob("*.py")]
    assert len(sources) > 10
    for word in ("import pickle", "torch.load", "torch.save", "eval(", "exec(", "allow_pickle", "marshal"):
        assert not any(word in source for source in sources)
