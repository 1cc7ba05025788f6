"""No file makes the reader run code, use up memory, or raise anything but a SnapshotError."""

import io
import os
import pickle
import struct
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fieldwatch.report.snapshot import SnapshotError, read_snapshot
from fieldwatch.report.snapshot.opcodes import check_opcodes

SEGMENT = {"address": 512, "total_size": 1024, "stream": 0, "segment_type": "small", "blocks": []}


class Calls:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


class PersistentPickler(pickle.Pickler):
    def persistent_id(self, obj):
        return "somewhere else" if obj == "load me" else None


def persistent(protocol=2):
    file = io.BytesIO()
    PersistentPickler(file, protocol).dump(["load me"])
    return file.getvalue()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("place", ["top", "segment", "key", "frame"])
def test_a_call_is_refused_by_name_and_not_made(dump, tmp_path, protocol, place):
    canary = tmp_path / "canary"
    call = Calls(f"touch {canary}")
    value = {
        "top": call,
        "segment": {"segments": [SEGMENT, call], "device_traces": []},
        "key": {"segments": [SEGMENT], (call,): 1},
        "frame": {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "frames": [call]}]]},
    }[place]
    with pytest.raises(SnapshotError, match=r"refused.*GLOBAL would import (posix|nt)\.system"):
        read_snapshot(dump(value, protocol=protocol))
    assert not canary.exists()


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (b"\x80\x02cos\nsystem\n(X\x05\x00\x00\x00touchtR.", "GLOBAL would import os.system"),
        (b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93.", "STACK_GLOBAL would import os.system"),
        (b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94]h\x00h\x01\x93.", "STACK_GLOBAL would import os.system"),
        (b"\x80\x02(X\x05\x00\x00\x00touchios\nsystem\n.", "INST would import os.system"),
        (b"\x80\x02\x82\x01.", "EXT1 would create or load an object"),
        (b"\x80\x02\x83\x01\x00.", "EXT2 would create or load an object"),
        (b"\x80\x02\x84\x01\x00\x00\x00.", "EXT4 would create or load an object"),
        (b"\x80\x02Psomewhere\n.", "PERSID would create or load an object"),
        (persistent(), "BINPERSID would create or load an object"),
        (b"\x80\x02}}b.", "BUILD would create or load an object"),
        (b"\x80\x02K\x01K\x02R.", "REDUCE would create or load an object"),
        (b"\x80\x02(K\x01o.", "OBJ would create or load an object"),
        (b"\x80\x02})\x81.", "NEWOBJ would create or load an object"),
        (b"\x80\x04})}\x92.", "NEWOBJ_EX would create or load an object"),
        (pickle.dumps({1, 2}), "EMPTY_SET does not occur"),
        (pickle.dumps([b"bytes"]), "SHORT_BINBYTES does not occur"),
        (b"\x80\x02\xff.", "is not an opcode"),
    ],
)
def test_every_opcode_that_makes_objects_is_refused(dump, code, named):
    with pytest.raises(SnapshotError, match="refused") as refused:
        read_snapshot(dump(code))
    assert named in str(refused.value)


def test_a_name_that_came_through_the_scan_is_still_not_imported(dump, tmp_path, monkeypatch):
    monkeypatch.setattr("fieldwatch.report.snapshot.pickled.check_opcodes", lambda _: None)
    canary = tmp_path / "canary"
    with pytest.raises(SnapshotError, match=r"would import posix\.system"):
        read_snapshot(dump(Calls(f"touch {canary}"), "call.pickle"))
    with pytest.raises(SnapshotError, match=r"persistent\.pickle: refused.*\(str\)"):
        read_snapshot(dump(persistent(), "persistent.pickle"))
    assert not canary.exists()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (b"\x80\x02]r\xff\xff\xff\xff.", "memo index 4,294,967,295"),
        (b"\x80\x02" + b"}" * 100_000 + b".", "made to exhaust memory"),
        (b"\x80\x02}" + b"K\x01" + b"\x85" * 100_000 + b"K\x01s.", "TUPLE1 does not occur"),
        (b"\x80\x02}K\x01\x85K\x01\x86K\x01s.", "TUPLE2 does not occur"),
        (b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".", "LONG1 does not occur"),
        (b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b".", "LONG4 does not occur"),
        (b"\x80\x02X" + struct.pack("<I", 1 << 31) + b"a.", "truncated"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"a.", "truncated"),
        (b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"].", "truncated"),
        (b"\x80\x02" + b"(" * 1000 + b".", "the pickle is damaged"),
        (b"\x80\x02}]K\x01s.", "unhashable"),
        (b"\x80\x02h\x05.", "the pickle is damaged"),
        (b"\x80\x02.", "the pickle is damaged"),
    ],
)
def test_bombs_are_refused_before_they_go_off(dump, code, reason):
    with pytest.raises(SnapshotError, match=reason):
        read_snapshot(dump(code))


def test_lists_nested_ten_thousand_deep_are_no_snapshot(dump):
    code = b"\x80\x02" + b"]" * 4000 + b"a" * 3999 + b"."
    with pytest.raises(SnapshotError, match=r"segments\[0\] .*dict, got list"):
        read_snapshot(dump(code))


def test_a_list_that_holds_itself_is_no_snapshot(dump):
    loop = []
    loop.append(loop)
    with pytest.raises(SnapshotError, match=r"segments\[0\] .*dict, got list"):
        read_snapshot(dump(loop))


@pytest.mark.parametrize("shared", ["blocks", "frames", "events"])
def test_a_file_that_repeats_itself_by_reference_is_not_followed(dump, shared):
    block = {"size": 512, "address": 512, "state": "inactive"}
    frame = {"filename": "a.py", "line": 1, "name": "f"}
    blocks = [block] * 2000
    lists = [[frame] * 2000 for _ in range(3)]
    value = {
        "blocks": {"segments": [SEGMENT | {"blocks": blocks}] * 2000},
        "frames": {"segments": [SEGMENT | {"blocks": [block | {"frames": many} for many in lists]}] * 2000},
        "events": {"device_traces": [[{"action": "alloc", "addr": 1, "size": 1}] * 20_000] * 900},
    }[shared]
    if shared == "frames":
        assert len(read_snapshot(dump(value)).stacks) == 2  # the same lists are looked at once
        return
    with pytest.raises(SnapshotError, match=r"more entries than .*bytes"):
        read_snapshot(dump(value))


def archive():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        written.writestr("archive/data.pkl", b"\x80\x02}.")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (archive(), "zip archive, such as torch.save writes"),
        (b"\x1f\x8bxxxx", "gzip"),
        (b'{"segments": []}', "JSON or text"),
        (b"<!doctype html>", "HTML"),
        (b"\x7fELF\x02", "a pickle of protocol 2 to 5, got a file that begins with 7f 45 4c 46"),
        (b"\x80", "a pickle of protocol"),
        (b"\x80\x09].", "a pickle of protocol"),
        (pickle.dumps({"a": 1}), "not a memory snapshot"),
        (pickle.dumps(3), "got a int that is not a memory snapshot"),
    ],
)
def test_other_files_are_named_for_what_they_are(dump, content, reason):
    with pytest.raises(SnapshotError, match=reason) as refused:
        read_snapshot(dump(content))
    assert "_dump_snapshot" in str(refused.value)


def test_a_missing_file_a_folder_and_a_large_file_are_refused(dump, tmp_path):
    for path in (tmp_path / "none.pickle", tmp_path):
        with pytest.raises(SnapshotError, match="does not exist"):
            read_snapshot(path)
    path = dump([SEGMENT])
    with pytest.raises(SnapshotError, match=r"at most 16 bytes.*raise max_bytes"):
        read_snapshot(path, max_bytes=16)
    assert len(read_snapshot(path, max_bytes=path.stat().st_size).devices) == 1


def test_a_file_cut_anywhere_is_refused(dump, make_training):
    whole = pickle.dumps(make_training(steps=1))
    for size in [*range(1, 300), *range(300, len(whole), 97)]:
        with pytest.raises(SnapshotError):
            read_snapshot(dump(whole[:size]))


SMALL = pickle.dumps(
    {
        "segments": [
            SEGMENT
            | {"segment_pool_id": (0, 1), "blocks": [{"size": 512, "address": 512, "state": "inactive", "frames": []}]}
        ],
        "device_traces": [[{"action": "alloc", "addr": 512, "size": 5, "time_us": 1 << 50, "user_metadata": "a"}]],
        "external_annotations": [{"name": "x", "stage": "START", "time_us": 5, "device": 0}],
        "allocator_settings": {"expandable_segments": True},
    }
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(dump, changes):
    data = bytearray(SMALL)
    for place, byte in changes:
        data[place] = byte
    try:
        read_snapshot(dump(bytes(data)))
    except SnapshotError as error:
        assert len(str(error)) > 40  # noqa: PT017  either outcome is right


@settings(max_examples=200)
@given(code=st.binary(max_size=60))
def test_whatever_the_scan_lets_through_imports_nothing(code):
    data = b"\x80\x02" + code + b"."
    try:
        check_opcodes(data)
    except SnapshotError:
        return

    class Watching(pickle.Unpickler):
        def find_class(self, module, name):
            raise AssertionError(module, name)

    try:
        Watching(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, TypeError, ValueError, AttributeError, EOFError, IndexError, KeyError):
        return


@pytest.mark.parametrize("key", ["segments", "device_traces", "external_annotations", "allocator_settings"])
@pytest.mark.parametrize("value", [3, "text", None, {1: 2}, [None], [{"a": 1}], [[3]], [[{"action": 5}]]])
def test_wrong_types_are_refused_with_their_place(dump, key, value):
    if key == "allocator_settings" and isinstance(value, dict):
        return
    if key == "external_annotations" and value == [{"a": 1}]:
        return
    with pytest.raises(SnapshotError, match=key):
        read_snapshot(dump({"segments": [SEGMENT]} | {key: value}))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (
            {"blocks": [{"size": "big", "state": "inactive"}]},
            r"segments\[1\]\.blocks\[0\]\.size to be .* got str 'big'",
        ),
        ({"blocks": [{"size": -4, "state": "inactive"}]}, r"segments\[1\]\.blocks\[0\]\.size to be .* got int '-4'"),
        ({"blocks": [{"size": 1 << 63, "state": "inactive"}]}, r"integer from 0 to 9223372036854775807"),
        ({"blocks": [{"size": True, "state": "inactive"}]}, r"blocks\[0\]\.size to be .* got bool"),
        ({"blocks": [{"size": 4, "state": "odd"}]}, r"blocks\[0\]\.state to be one of active_allocated.* got str .odd"),
        ({"blocks": [{"size": 4}]}, r"blocks\[0\]\.state to be .* got NoneType"),
        ({"blocks": [{"state": "inactive"}]}, r"blocks\[0\] to have an integer 'size'"),
        ({"blocks": [{"size": 4, "state": "inactive", "frames": "x"}]}, r"blocks\[0\]\.frames to be .* got str"),
        ({"blocks": [{"size": 4, "state": "inactive", "frames": [7]}]}, r"blocks\[0\]\.frames\[0\] to be .* got int"),
        (
            {"blocks": [{"size": 4, "state": "inactive", "frames": [{"filename": [], "line": 1, "name": ""}]}]},
            r"frames\[0\]\.filename to be .* got list",
        ),
        ({"segment_pool_id": "0,1"}, r"segments\[1\]\.segment_pool_id to be .* got str"),
        ({"segment_pool_id": (0, -1)}, r"segments\[1\]\.segment_pool_id to be .* got tuple"),
        ({"total_size": None}, r"segments\[1\]\.total_size to be .* got NoneType"),
        ({"total_size": (1 << 62) - 1}, "expected sizes of a real device"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(dump, change, place):
    with pytest.raises(SnapshotError, match=place):
        read_snapshot(dump([SEGMENT, SEGMENT | change]))


def test_an_event_without_its_address_is_refused(dump):
    with pytest.raises(SnapshotError, match=r"device_traces\[1\]\[0\] .*integer 'addr'"):
        read_snapshot(dump({"segments": [], "device_traces": [[], [{"action": "alloc", "size": 4}]]}))
