"""PLY files: tables and lists of all types and byte orders, sequential reading, and damaged files."""

from io import BytesIO

import numpy as np
import pytest

from fieldwatch.recon.formats import PlyElement, PlyError, PlyProperty, PlyReader, write_ply

TYPES = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "float": "f4",
    "double": "f8",
}
ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
MIXED = "ply\nformat {form} 1.0\nelement face 4\nproperty uchar part\nproperty list uchar short corners\nend_header\n"
FACES = [(1, [0, 1, 2]), (2, [3, 4, 5]), (3, [6, 7, 8, 9]), (4, [10])]


def reader(data):
    return PlyReader(BytesIO(data))


def read_all(data):
    ply = reader(data)
    return {element.name: ply.read(element) for element in ply.elements}


@pytest.mark.parametrize("form", ORDERS)
@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_read_in_every_order(form, name):
    values = np.array([0, 1, 100], TYPES[name])
    body = values.astype(f"{ORDERS[form]}{TYPES[name]}").tobytes()
    if form == "ascii":
        body = " ".join(map(str, values.tolist())).encode()
    head = f"ply\nformat {form} 1.0\nelement thing 3\nproperty {name} size\nend_header\n".encode()
    (table,) = read_all(head + body)["thing"]
    assert table["size"].tolist() == [0, 1, 100]
    assert table.dtype["size"].newbyteorder("=") == np.dtype(TYPES[name])


@pytest.mark.parametrize("form", ORDERS)
def test_lists_of_any_length_are_read(form):
    order = ORDERS[form]
    body = b"".join(
        np.array([(part, len(row))], f"{order}u1,{order}u1").tobytes() + np.array(row, f"{order}i2").tobytes()
        for part, row in FACES
    )
    if form == "ascii":
        body = "\n".join(" ".join(map(str, [part, len(row), *row])) for part, row in FACES).encode()
    tables = read_all(MIXED.format(form=form).encode() + body)["face"]
    rows = [(part, corners) for table in tables for part, corners in zip(table["part"], table["corners"], strict=True)]
    assert [(int(part), corners.tolist()) for part, corners in rows] == FACES
    assert all((table["corners count"] == table["corners"].shape[1]).all() for table in tables)


def test_what_is_written_is_read_again():
    generator = np.random.default_rng(0)
    vertices = np.zeros(5, [(name, f"<{code}") for name, code in TYPES.items()])
    for name in TYPES:
        vertices[name] = generator.integers(0, 100, 5)
    faces = np.zeros(3, [("corners count", "u1"), ("corners", "<i4", (3,)), ("part", "<u2")])
    faces["corners count"] = 3
    faces["corners"] = generator.integers(0, 5, (3, 3))
    file = BytesIO()
    write_ply(file, {"vertex": vertices, "face": faces})
    found = read_all(file.getvalue())
    assert found["vertex"][0].tolist() == vertices.tolist()
    assert found["face"][0].tobytes() == faces.tobytes()
    head = file.getvalue().split(b"end_header\n")[0].decode().splitlines()
    assert head[:3] == ["ply", "format binary_little_endian 1.0", "element vertex 5"]
    assert head[-3:] == ["element face 3", "property list uchar int corners", "property ushort part"]


def test_a_type_that_ply_lacks_is_not_written():
    with pytest.raises(PlyError, match=r"column x.*type.*int64"):
        write_ply(BytesIO(), {"vertex": np.zeros(2, [("x", "<i8")])})
    with pytest.raises(PlyError, match="little endian"):
        write_ply(BytesIO(), {"vertex": np.zeros(2, [("x", ">f4")])})


def test_the_header_is_described():
    ply = reader(
        b"ply\r\nformat ascii 1.0\r\ncomment by hand\r\nelement a 0\r\nproperty list uint8 int32 i\r\nend_header\r\n"
    )
    assert ply.ascii
    (element,) = ply.elements
    assert element == PlyElement(name="a", count=0, properties=(PlyProperty(name="i", kind="i4", count_kind="u1"),))
    assert element.lists == ("i",)
    assert (ply.read(element), ply.remaining()) == ([], 0)


def test_what_follows_is_counted():
    ply = reader(b"ply\nformat ascii 1.0\nelement a 1\nproperty float x\nend_header\n1 2 3\n")
    ply.read(ply.elements[0])
    assert ply.remaining() == 2


HEAD = "ply\nformat {} 1.0\n"
LIST = "element a 1\nproperty list int int i\nend_header\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plx\n", "not a PLY file"),
        (HEAD.format("ascii") + "element a 1\n", "not a PLY file"),
        ("ply\nelement a 1\nproperty float x\nend_header\n", "no format line"),
        (HEAD.format("morse") + "end_header\n", "invalid header line 'format morse 1.0'"),
        (HEAD.format("ascii") + "property float x\nend_header\n", "invalid header line"),
        (HEAD.format("ascii") + "element a 1\nproperty list float int i\nend_header\n", "invalid header line"),
        (HEAD.format("ascii") + "element a 1\nproperty int i\nproperty int i\nend_header\n", "property i .*twice"),
        (HEAD.format("ascii") + "element a 2\nend_header\n", "2 rows of element a but no property"),
        (HEAD.format("ascii") + LIST + "-1", "-1 entries"),
        (HEAD.format("ascii") + LIST + "3 1 2", "cut short"),
        (HEAD.format("ascii") + LIST + "2 1 2.5", "holds 2.5, expected int32"),
        (HEAD.format("ascii") + LIST + "2 1 4e9", "holds 4e[+]09, expected int32"),
        (HEAD.format("ascii") + LIST + "2 1 x", "something other than numbers"),
        (HEAD.format("binary_little_endian") + LIST + "abc", "cut short"),
        (HEAD.format("binary_little_endian") + LIST + "\x7f\x7f\x7f\x7f", "entries"),
    ],
)
def test_what_is_damaged_is_said(text, message):
    with pytest.raises(PlyError, match=message):
        read_all(text.encode("latin-1"))


def test_a_file_that_promises_more_than_it_holds_takes_no_memory():
    head = HEAD.format("binary_little_endian") + f"element a {10**17}\nproperty double x\nend_header\n"
    with pytest.raises(PlyError, match="cut short"):
        read_all(head.encode() + bytes(80))
