"""Meshes in PLY, OBJ and GLB files: written and read, real ones, and all that can be wrong with them."""

import struct

import numpy as np
import pytest
import trimesh
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.recon.mesh import MeshError, Triangles, mesh_quality, read_mesh, write_mesh

SQUARE = "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\n"
PLY = "ply\nformat {form} 1.0\nelement vertex 4\nproperty float x\nproperty float y\nproperty float z\n"
FACES = "element face {count}\nproperty list uchar int vertex_indices\nend_header\n"


def square(**more):
    places = np.array([[0.1, 0, 0], [1, 0, 0], [1, 1 / 3, 0], [0, 1, 1e-17]])
    return Triangles(vertices=places, faces=np.array([[0, 1, 2], [0, 2, 3]]), **more)


def saved(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("ending", [".ply", ".obj", ".PLY"])
def test_what_is_written_is_read_again(tmp_path, ending):
    mesh = square(colors=np.array([[0, 1, 2], [255, 254, 128], [7, 8, 9], [100, 50, 25]], np.uint8))
    again = read_mesh(write_mesh(tmp_path / "deep" / f"a{ending}", mesh))
    for name in ("vertices", "faces", "colors"):
        assert np.array_equal(getattr(again, name), getattr(mesh, name))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == [f"a{ending}"]


def test_an_obj_keeps_texture_coordinates_and_no_cut(tmp_path):
    uvs = np.array([[[0, 0], [1, 0], [1, 1]], [[0.5, 0.5], [0.25, 0.5], [1 / 3, 1]]])
    again = read_mesh(write_mesh(tmp_path / "a.obj", square(uvs=uvs)))
    assert np.array_equal(again.uvs, uvs)
    assert len(again.vertices) == 4


def test_a_seamed_sphere_in_a_file_is_closed(tmp_path, forms):
    mesh = forms.torn(forms.icosphere())
    uvs = np.arange(1280 * 6.0).reshape(1280, 3, 2)
    path = write_mesh(tmp_path / "a.obj", Triangles(vertices=mesh.vertices, faces=mesh.faces, uvs=uvs))
    assert mesh_quality(read_mesh(path)).is_watertight


@pytest.mark.parametrize(
    "faces",
    ["f 1 2 3 4", "f 1/1 2/1 3/1 4/1", "f 1//1 2//1 3//1 4//1", "f 1/1/1 2/1/1 3/1/1 4/1/1", "f -4 -3 -2 -1",
     "f -4/-1/-1 2 3//1 -1/1", "o a\ng b\ns 1\nf 1 2 3\no c\nf 1 3 4 # end", "f 1 2 \\\n 3 4", "f\t1 2  3 4\r"],
)  # fmt: skip
def test_every_form_of_corner(tmp_path, faces):
    mesh = read_mesh(saved(tmp_path / "a.obj", f"# x\n{SQUARE}vt 0.5 0.5\nvn 0 0 1\n{faces}\n"))
    assert mesh.faces.tolist() == [[0, 1, 2], [0, 2, 3]]


def test_colors_stay_beside_texture_coordinates_and_faces_in_order(tmp_path):
    """Other readers drop the colors of a mesh with texture coordinates, or sort its faces by material."""
    colors = [(255, 0, 9), (1, 2, 3), (4, 5, 6), (7, 8, 90)]
    vertices = [f"{row} {r} {g} {b}" for row, (r, g, b) in zip(SQUARE.splitlines(), colors, strict=True)]
    faces = ["vt 0 0", "vt 1 1", "usemtl z", "f 1/1 2/2 3/1", "usemtl a", "f 1/2 3/1 4/2", "usemtl z", "f 4/1 3/1 2/2"]
    mesh = read_mesh(saved(tmp_path / "a.obj", "\n".join([*vertices, *faces])))
    assert mesh.colors.tolist() == [list(color) for color in colors]
    assert mesh.faces.tolist() == [[0, 1, 2], [0, 2, 3], [3, 2, 1]]
    assert mesh.uvs[..., 0].tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 1]]
    assert len(mesh.vertices) == 4


def test_numbers_from_the_end_count_from_their_line(tmp_path):
    mesh = read_mesh(saved(tmp_path / "a.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\nf -3 -2 -1\nv 5 5 5\nf -3 -2 -1\n"))
    assert mesh.faces.tolist() == [[0, 1, 2], [1, 2, 3]]


UVS = np.array([[[0, 0], [1, 0], [1, 1]], [[0.5, 0.5], [0.25, 0.5], [1 / 3, 1]]])
PICTURE = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
TEXTURED = "mtllib a.mtl\nusemtl one\n" + SQUARE + "vt 0 0\nvt 1 0\nvt 1 1\nf 1/1 2/2 3/3\n"


def test_an_obj_has_its_texture_in_files_beside_it(tmp_path):
    path = write_mesh(tmp_path / "my mesh.obj", square(uvs=UVS, texture=PICTURE))
    assert {one.name for one in tmp_path.iterdir()} == {"my mesh.obj", "my_mesh.mtl", "my_mesh.png"}
    again = read_mesh(path)
    assert np.array_equal(again.texture, PICTURE)
    assert np.array_equal(again.uvs, UVS)
    assert read_mesh(path, texture=False).texture is None


def test_trimesh_finds_the_texture_of_an_obj(tmp_path):
    path = write_mesh(tmp_path / "a.obj", square(uvs=UVS, texture=PICTURE))
    found = trimesh.load_mesh(path, process=False)
    assert np.array_equal(np.asarray(found.visual.material.image.convert("RGB")), PICTURE)
    assert np.allclose(found.visual.uv[found.faces], UVS)


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (None, "its material library .*a.mtl is missing"),
        ("newmtl one\nmap_Kd gone.png\n", "its texture .*gone.png is missing"),
        ("newmtl one\nmap_Kd a.mtl\n", "the texture .*a.mtl cannot be read as a picture"),
    ],
)
def test_a_missing_texture_is_named_and_can_be_left_out(tmp_path, library, said):
    path = saved(tmp_path / "a.obj", TEXTURED)
    if library is not None:
        saved(tmp_path / "a.mtl", library)
    with pytest.raises(MeshError, match=said):
        read_mesh(path)
    assert len(read_mesh(path, texture=False).faces) == 1


def test_several_pictures_are_refused_and_an_unused_one_is_not_missed(tmp_path):
    saved(tmp_path / "a.mtl", "newmtl one\nKd 1 0 0\nnewmtl other\nmap_Kd -s 1 1 1 gone.png\n")
    assert read_mesh(saved(tmp_path / "a.obj", TEXTURED)).texture is None
    both = TEXTURED + "usemtl other\nf 1/1 2/2 3/3\n"
    with pytest.raises(MeshError, match=r"several textures \(gone.png, none\)"):
        read_mesh(saved(tmp_path / "b.obj", both))


def test_a_texture_needs_coordinates_and_size():
    with pytest.raises(MeshError, match="texture but no uvs"):
        square(texture=PICTURE)
    with pytest.raises(MeshError, match="0 x 2 texels"):
        square(uvs=UVS, texture=PICTURE[:, :0])


def test_a_texture_stays_with_what_is_made_of_a_mesh(forms):
    mesh = square(uvs=UVS, texture=PICTURE)
    kept = mesh.chosen(np.array([False, True]))
    assert kept.texture is PICTURE
    assert np.array_equal(kept.uvs, UVS[1:])
    assert mesh.turned().texture is mesh.welded().texture is PICTURE


BODY = "0 0 0\n1 0 0\n1 1 0\n0 1 0\n"


def test_an_ascii_ply_of_triangles_and_polygons(tmp_path):
    text = PLY.format(form="ascii") + FACES.format(count=3) + BODY + "4 0 1 2 3\n3 0 1 2\n3 1 2 3\n"
    assert read_mesh(saved(tmp_path / "a.ply", text)).faces.tolist() == [[0, 1, 2], [0, 2, 3], [0, 1, 2], [1, 2, 3]]


@pytest.mark.parametrize(("form", "order"), [("binary_little_endian", "<"), ("binary_big_endian", ">")])
def test_a_binary_ply_of_mixed_faces(tmp_path, form, order):
    head = PLY.format(form=form) + "property uchar red\nproperty uchar green\nproperty uchar blue\n"
    head += FACES.format(count=4).replace("end_header", "property float q\nend_header")
    places = b"".join(struct.pack(f"{order}3f3B", *map(float, line.split()), 9, 8, 7) for line in BODY.splitlines())
    rows = [(0, 1, 2), (1, 2, 3), (0, 1, 2, 3), (0, 2, 3)]
    faces = b"".join(struct.pack(f"{order}B{len(row)}if", len(row), *row, 0.5) for row in rows)
    mesh = read_mesh(saved(tmp_path / "a.ply", head.encode() + places + faces))
    assert mesh.faces.tolist() == [[0, 1, 2], [1, 2, 3], [0, 1, 2], [0, 2, 3], [0, 2, 3]]
    assert mesh.colors.tolist() == [[9, 8, 7]] * 4


ASCII = PLY.format(form="ascii")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.stl", "solid", "ends in '.stl'"),
        ("a.ply", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
        ("a.ply", "hello", "not a PLY file"),
        ("a.ply", "", "not a PLY file"),
        ("a.ply", "ply\nelement vertex 1\nproperty float x\nend_header\n", "no format line"),
        ("a.ply", "ply\nformat ascii 1.0\nelement vertex 99999999999999999999\nend_header\n", "invalid header line"),
        ("a.ply", "ply\nformat ascii 1.0\nelement vertex 999999999999\nproperty float x\nend_header\n1\n", "cut short"),
        ("a.ply", "ply\nformat ascii 1.0\nelement thing 9\nend_header\n", "but no property"),
        ("a.ply", ASCII + "property float x\nend_header\n", "twice"),
        ("a.ply", ASCII + "end_header\n" + BODY, "no vertices with faces"),
        ("a.ply", ASCII + FACES.format(count=0) + BODY, "holds no faces"),
        ("a.ply", ASCII + FACES.format(count=2) + BODY + "3 0 1 2\n", "cut short"),
        ("a.ply", ASCII + FACES.format(count=1) + BODY + "3 0 1 9\n", "references vertices"),
        ("a.ply", ASCII + FACES.format(count=1) + BODY + "2 0 1\n", "has 2 corners"),
        ("a.ply", ASCII + FACES.format(count=1) + BODY + "3 0 1 0.5\n", "holds 0.5, expected int32"),
        ("a.ply", ASCII + FACES.format(count=1) + BODY + "3 0 1 nan\n", "holds nan, expected int32"),
        ("a.ply", ASCII + FACES.format(count=1) + BODY + "3 0 1 x\n", "something other than numbers"),
        ("a.ply", ASCII + FACES.format(count=1) + BODY.replace("1 1 0", "1 inf 0") + "3 0 1 2\n", "not finite"),
        ("a.ply", ASCII.replace(" z", " w") + FACES.format(count=1) + BODY + "3 0 1 2\n", "x, y, z and vertex_indices"),
        ("a.obj", "", "0 vertices and no faces"),
        ("a.obj", b"\x00\xff\x80 binary", "no faces"),
        ("a.obj", SQUARE, "4 vertices and no faces"),
        ("a.obj", SQUARE + "f 1 2\n", "has 2 corners"),
        ("a.obj", SQUARE + "f 1 2 0\n", "line 5 .*index 0 is out of range"),
        ("a.obj", SQUARE + "f 1 2 -5\n", "index -5 is out of range"),
        ("a.obj", SQUARE + "f 1 2 5\n", "references vertices"),
        ("a.obj", SQUARE + "f 1 2 99999999999999999999999\n", "line 5"),
        ("a.obj", SQUARE + "f 1 2 /3\n", "is not a face corner"),
        ("a.obj", SQUARE + "f 1/2 2/1 3/1\n", "references vt 2 of 0"),
        ("a.obj", "v 0 0\n", r"line 1 .*a vertex has 2 numbers"),
        ("a.obj", "v 0 0 zero\n", "line 1 .*could not convert"),
        ("a.obj", "v 0 0 nan\nf 1 1 1\n", "not finite"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, name, content, said):
    with pytest.raises(MeshError, match=said):
        read_mesh(saved(tmp_path / name, content))


def test_a_missing_file_and_an_empty_mesh_are_refused(tmp_path):
    with pytest.raises(MeshError, match="does not exist"):
        read_mesh(tmp_path / "a.ply")
    empty = Triangles(vertices=np.zeros((0, 3)), faces=np.zeros((0, 3), np.int64))
    with pytest.raises(MeshError, match=r"not written.*no faces"):
        write_mesh(tmp_path / "a.ply", empty)
    with pytest.raises(MeshError, match=r"ends in '\.stl'.*\.ply, \.obj, \.glb"):
        write_mesh(tmp_path / "a.stl", square())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_mesh(tmp_path_factory.mktemp("ply") / "a.ply", square()).read_bytes()


@given(data=st.data())
def test_a_damaged_ply_is_read_or_refused(tmp_path_factory, whole, data):
    place = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    damaged = (whole[:place] + bytes([value]) + whole[place + 1 :])[:cut]
    path = saved(tmp_path_factory.getbasetemp() / "damaged.ply", damaged)
    try:
        mesh = read_mesh(path)
    except MeshError:
        return
    assert (mesh.faces < len(mesh.vertices)).all()


def test_spot_is_closed_and_has_its_volume(real_data):
    mesh = read_mesh(real_data / "meshes" / "spot" / "spot_triangulated.obj")
    found = mesh_quality(mesh)
    assert (found.n_vertices, found.n_faces, found.n_edges) == (2930, 5856, 8784)
    assert (found.is_watertight, found.faces_outward, found.n_pieces) == (True, True, 1)
    assert mesh.signed_volume == pytest.approx(0.718, abs=0.001)
    assert mesh.uvs is not None


def test_the_control_mesh_of_spot_is_closed(real_data):
    mesh = read_mesh(real_data / "meshes" / "spot" / "spot_control_mesh.obj")
    assert mesh.closed
    assert mesh.outward is True
