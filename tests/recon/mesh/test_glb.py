"""GLB files: round trips, what trimesh reads in them, what other programs write, and damage."""

import io
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import trimesh
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fieldwatch.recon.mesh import MeshError, Triangles, read_mesh, write_glb, write_mesh
from fieldwatch.recon.mesh.glb_reader import read_glb
from fieldwatch.recon.mesh.pictures import png_bytes

PICTURE = np.random.default_rng(0).integers(0, 256, (8, 4, 3), np.uint8)


def seamed(forms):
    """A closed sphere whose faces lie apart in the picture."""
    mesh = forms.icosphere(1)
    uvs = np.random.default_rng(1).random((len(mesh.faces), 3, 2))
    return replace(mesh, uvs=uvs, texture=PICTURE)


def parts_of(data):
    length = struct.unpack_from("<I", data, 12)[0]
    return json.loads(data[20 : 20 + length]), data[28 + length :]


def file_of(about, binary):
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 4)
    head = struct.pack("<4sII", b"glTF", 2, 28 + len(text) + len(binary))
    return (
        b"".join([head, struct.pack("<II", len(text), 0x4E4F534A), text, struct.pack("<II", len(binary), 0x4E4942)])
        + binary
    )


def test_a_textured_mesh_comes_back_whole(forms, tmp_path):
    mesh = seamed(forms)
    again = read_mesh(write_mesh(tmp_path / "a.glb", mesh))
    assert np.allclose(again.corners, mesh.corners, atol=1e-7)
    assert np.allclose(again.uvs, mesh.uvs, atol=1e-7)
    assert np.array_equal(again.texture, PICTURE)
    assert again.closed
    assert read_mesh(tmp_path / "a.glb", texture=False).texture is None


def test_trimesh_reads_texture_and_coordinates(forms):
    mesh = seamed(forms)
    [found] = trimesh.load_scene(io.BytesIO(write_glb(mesh)), file_type="glb", process=False).geometry.values()
    assert np.allclose(found.vertices[found.faces], mesh.corners, atol=1e-6)
    assert np.allclose(found.visual.uv[found.faces], mesh.uvs, atol=1e-6)
    assert np.array_equal(np.asarray(found.visual.material.baseColorTexture.convert("RGB")), PICTURE)
    assert len(found.vertices) == 3 * len(mesh.faces)


def test_what_trimesh_writes_is_read(forms):
    mesh = seamed(forms)
    corners = np.arange(3 * len(mesh.faces))
    visual = trimesh.visual.TextureVisuals(
        uv=mesh.uvs.reshape(-1, 2),
        material=trimesh.visual.material.PBRMaterial(baseColorTexture=Image.fromarray(PICTURE)),
    )
    other = trimesh.Trimesh(mesh.corners.reshape(-1, 3), corners.reshape(-1, 3), visual=visual, process=False)
    again = read_glb(trimesh.Scene(other).export(file_type="glb"))
    assert np.allclose(again.corners, mesh.corners, atol=1e-6)
    assert np.allclose(again.uvs, mesh.uvs, atol=1e-6)
    assert np.array_equal(again.texture, PICTURE)
    assert again.closed


def test_every_color_of_a_vertex_comes_back(forms):
    mesh = forms.patch(16)
    levels = np.arange(289 * 3).reshape(-1, 3) % 256
    mesh = replace(mesh, colors=levels.astype(np.uint8))
    assert np.array_equal(read_glb(write_glb(mesh)).colors, mesh.colors)


def test_colors_are_linear_in_the_file(forms):
    mesh = replace(forms.patch(1), colors=np.full((4, 3), 188, np.uint8))  # sRGB 188 is half of the light
    about, _ = parts_of(write_glb(mesh))
    assert about["materials"][0]["extensions"] == {"KHR_materials_unlit": {}}
    [found] = trimesh.load_scene(io.BytesIO(write_glb(mesh)), file_type="glb", process=False).geometry.values()
    assert np.allclose(found.visual.vertex_attributes["color"][:, :3] / 65535, 0.503, atol=0.001)


@pytest.mark.parametrize("up", [(0, 1, 0), (0, 0, 1), (0, -1, 0), (2, 0, 0), (1e-6, -1, 0), (0.3, -0.4, 0.5)])
def test_what_is_up_in_the_scene_is_up_in_the_file(forms, up):
    mesh = forms.cone()
    again = read_glb(write_glb(mesh, up=up))
    towards = np.array(up) / np.linalg.norm(up)
    assert np.allclose(again.vertices[:, 1], mesh.vertices @ towards, atol=1e-6)
    assert again.outward is True
    assert again.signed_volume == pytest.approx(mesh.signed_volume, rel=1e-6)


def test_no_direction_and_no_faces_are_refused(forms):
    with pytest.raises(ValueError, match="up must be"):
        write_glb(forms.cone(), up=(0, 0, 0))
    empty = Triangles(vertices=np.zeros((0, 3)), faces=np.zeros((0, 3), np.int64))
    with pytest.raises(MeshError, match="no faces"):
        write_glb(empty)
    with pytest.raises(MeshError, match=r"GLB .* 3e38"):
        write_glb(replace(forms.cone(), vertices=forms.cone().vertices * 1e39))


def test_nodes_are_placed_and_mirrored_ones_turned(forms):
    mesh = forms.icosphere(0)
    about, binary = parts_of(write_glb(mesh))
    half = 0.5**0.5
    about["nodes"] = [
        {"children": [1, 2], "translation": [0, 0, 5]},
        {"mesh": 0, "rotation": [0, 0, half, half], "scale": [2, 1, 1]},
        {"mesh": 0, "scale": [-1, 1, 1], "translation": [10, 0, 0]},
    ]
    again = read_glb(file_of(about, binary))
    first = again.corners[:20]
    second = again.corners[20:]
    x, y, z = np.moveaxis(mesh.corners, -1, 0)
    assert np.allclose(first, np.stack([-y, 2 * x, z + 5], -1), atol=1e-6)
    assert np.allclose(second[:, ::-1], np.stack([10 - x, y, z + 5], -1), atol=1e-6)
    assert again.outward is True


def with_primitive(mesh, indices, mode):
    """The file of a mesh with a second primitive: the same vertices, other indices, another mode."""
    about, binary = parts_of(write_glb(mesh))
    values = np.array(indices, np.uint32).tobytes()
    about["bufferViews"].append({"buffer": 0, "byteOffset": len(binary), "byteLength": len(values)})
    accessor = {"bufferView": len(about["bufferViews"]) - 1, "count": len(indices), "type": "SCALAR"}
    about["accessors"].append(accessor | {"componentType": 5125})
    primitives = about["meshes"][0]["primitives"]
    primitives.append(primitives[0] | {"indices": len(about["accessors"]) - 1, "mode": mode})
    about["buffers"][0]["byteLength"] += len(values)
    return about, binary + values


@pytest.mark.parametrize(
    ("mode", "indices", "faces"),
    [
        (5, [0, 1, 2, 3, 4], [[0, 1, 2], [1, 3, 2], [2, 3, 4]]),
        (5, [0, 1, 2, 2, 3, 3, 4, 5], [[0, 1, 2], [3, 5, 4]]),  # two strips, joined by faces without area
        (6, [0, 1, 2, 3, 4], [[1, 2, 0], [2, 3, 0], [3, 4, 0]]),
    ],
)
def test_strips_and_fans_are_read_with_the_triangles(forms, mode, indices, faces):
    mesh = forms.icosphere(0)
    about, binary = with_primitive(mesh, indices, mode)
    again = read_glb(file_of(about, binary))
    assert np.allclose(again.corners[:20], mesh.corners, atol=1e-6)
    assert np.allclose(again.corners[20:], mesh.vertices[faces], atol=1e-6)
    about["meshes"][0]["primitives"].pop(0)
    assert np.allclose(read_glb(file_of(about, binary)).corners, mesh.vertices[faces], atol=1e-6)


def test_trimesh_reads_the_same_strip(forms):
    about, binary = with_primitive(forms.icosphere(0), [0, 1, 2, 3, 4, 5], 5)
    about["meshes"][0]["primitives"].pop(0)
    data = file_of(about, binary)
    [found] = trimesh.load_scene(io.BytesIO(data), file_type="glb", process=False).geometry.values()
    ours = read_glb(data).corners
    assert np.allclose(np.roll(found.vertices[found.faces], 0, 1).mean(1), ours.mean(1), atol=1e-6)
    edges = [
        np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]) for corners in (ours, found.triangles)
    ]
    assert np.allclose(*edges, atol=1e-6)


def test_two_pictures_are_refused_unless_left_out(forms):
    about, binary = parts_of(write_glb(seamed(forms)))
    bare = dict(about["meshes"][0]["primitives"][0])
    del bare["material"]
    about["meshes"][0]["primitives"].append(bare)
    data = file_of(about, binary)
    with pytest.raises(MeshError, match="1 textures"):
        read_glb(data)
    assert len(read_glb(data, texture=False).faces) == 160


SQUARE_FACES = np.array([[0, 1, 2], [0, 2, 3]], np.uint16)
COMPONENTS = {"int16": 5122, "uint16": 5123, "float32": 5126}
SQUARE = np.array([[0.25, -0.5, 0.125], [1, 0, 0], [0.75, 1, -1], [0, 0.5, 0]])
SQUARE_UVS = np.array([[0.25, 0.5], [1, 0], [0.75, 1], [0, 0.125]])


def square_file(**attributes: np.ndarray) -> bytes:
    """Two triangles with a texture on the last texture coordinates given; integer attributes are normalized."""
    views = []
    accessors = []
    binary = b""
    for values in (*attributes.values(), SQUARE_FACES.reshape(-1, 1)):
        rows = np.zeros((len(values), 12), np.uint8)  # a stride of 12 bytes for all
        rows[:, : values.itemsize * values.shape[1]] = np.ascontiguousarray(values).view(np.uint8)
        views.append({"buffer": 0, "byteOffset": len(binary), "byteLength": rows.size, "byteStride": 12})
        kind = ("SCALAR", "VEC2", "VEC3")[values.shape[1] - 1]
        accessors.append(
            {"bufferView": len(views) - 1, "count": len(values), "type": kind}
            | {"componentType": COMPONENTS[values.dtype.name]}
            | {"normalized": values.dtype.kind in "iu" and values.shape[1] > 1}
        )
        binary += rows.tobytes()
    picture = png_bytes(PICTURE)
    views.append({"buffer": 0, "byteOffset": len(binary), "byteLength": len(picture)})
    binary += picture + bytes(-len(picture) % 4)
    channel = max((int(name[-1]) for name in attributes if name.startswith("TEXCOORD")), default=0)
    primitive = {"attributes": {name: i for i, name in enumerate(attributes)}, "indices": len(attributes)}
    about = {
        "asset": {"version": "2.0"}, "nodes": [{"mesh": 0}], "meshes": [{"primitives": [primitive]}],
        "buffers": [{"byteLength": len(binary)}], "bufferViews": views, "accessors": accessors,
        "images": [{"bufferView": len(views) - 1}], "textures": [{"source": 0}],
        "materials": [{"pbrMetallicRoughness": {"baseColorTexture": {"index": 0, "texCoord": channel}}}],
    }  # fmt: skip
    if any(name.startswith("TEXCOORD") for name in attributes):
        primitive["material"] = 0
    return file_of(about, binary)


def test_quantized_positions_keep_their_scale():
    data = square_file(POSITION=np.rint(SQUARE * 32767).astype(np.int16))
    assert np.allclose(read_glb(data).corners, SQUARE[SQUARE_FACES], atol=2e-5)


def test_quantized_texture_coordinates_keep_their_scale():
    data = square_file(POSITION=SQUARE.astype(np.float32), TEXCOORD_0=np.rint(SQUARE_UVS * 65535).astype(np.uint16))
    again = read_glb(data)
    assert np.allclose(again.uvs, (SQUARE_UVS * (1, -1) + (0, 1))[SQUARE_FACES], atol=1e-5)
    assert np.array_equal(again.texture, PICTURE)


def test_the_texture_names_its_coordinates():
    """A light map commonly has the first set, and the base color the second one, or the other way round."""
    others = np.zeros((4, 2), np.float32)
    uvs = SQUARE_UVS.astype(np.float32)
    again = read_glb(square_file(POSITION=SQUARE.astype(np.float32), TEXCOORD_0=others, TEXCOORD_1=uvs))
    assert np.allclose(again.uvs, (SQUARE_UVS * (1, -1) + (0, 1))[SQUARE_FACES])


@pytest.mark.parametrize("kind", [np.uint16, np.float32])
def test_dark_colors_without_a_material_keep_their_precision(kind):
    """Eight linear bits have one level for the six darkest of sRGB: a reader that rounds to them first loses these."""
    dark = np.arange(12).reshape(4, 3)
    linear = dark / 255 / 12.92
    stored = np.rint(linear * 65535).astype(np.uint16) if kind is np.uint16 else linear.astype(np.float32)
    assert np.array_equal(read_glb(square_file(POSITION=SQUARE.astype(np.float32), COLOR_0=stored)).colors, dark)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda about: about.update(extensionsRequired=["KHR_draco_mesh_compression"]), "it requires KHR_draco_mesh"),
        (lambda about: about.update(nodes=[]), "references nodes 0 of 0"),
        (lambda about: about["meshes"][0]["primitives"][0].update(mode=0), "holds no triangles"),
        (lambda about: about["meshes"][0]["primitives"][0].update(mode=7), "has mode 7"),
        (lambda about: about["accessors"][0].update(count=10**6), "rows of 12 bytes, but"),
        (lambda about: about["accessors"][0].update(type="VEC9"), "description is invalid"),
        (lambda about: about["bufferViews"][0].update(byteLength=10**9), "cut short"),
        (lambda about: about["buffers"][0].update(uri="a.bin"), "another file"),
        (lambda about: about["accessors"][0].update(sparse={}), "sparse"),
        (lambda about: about.update(nodes=[{"children": [0]}]), "two parents"),
    ],
)
def test_what_is_wrong_inside_is_said(forms, change, said):
    about, binary = parts_of(write_glb(forms.icosphere(0)))
    change(about)
    with pytest.raises(MeshError, match=said):
        read_glb(file_of(about, binary))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"hello", "not a GLB file"),
        (b"glTF" + bytes(20), "it is glTF 0"),
        (b"glTF" + struct.pack("<II", 2, 99) + bytes(8), "cut short"),
    ],
)
def test_what_is_no_glb_is_refused(tmp_path, data, said):
    (tmp_path / "a.glb").write_bytes(data)
    with pytest.raises(MeshError, match=f"a.glb cannot be read: .*{said}"):
        read_mesh(tmp_path / "a.glb")


@pytest.fixture(scope="module")
def whole():
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    mesh = Triangles(vertices=places, faces=np.array([[0, 1, 2]]), uvs=places[None, :, :2].copy(), texture=PICTURE)
    return write_glb(mesh)


@given(data=st.data())
def test_a_damaged_glb_is_read_or_refused(whole, data):
    place = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    try:
        mesh = read_glb((whole[:place] + bytes([value]) + whole[place + 1 :])[:cut])
    except MeshError:
        return
    assert (mesh.faces < len(mesh.vertices)).all()
