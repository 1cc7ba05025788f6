"""What follows from places and faces: edges, pieces, winding, volume, welding."""

import numpy as np
import pytest

from fieldwatch.recon.mesh import MeshError, Triangles


def test_an_icosphere_has_each_edge_once(forms):
    mesh = forms.icosphere()
    assert (len(mesh.vertices), len(mesh.faces), len(mesh.edges)) == (642, 1280, 1920)
    assert mesh.closed
    assert mesh.consistently_wound
    assert mesh.outward is True
    assert not mesh.misoriented.any()
    assert mesh.areas.sum() == pytest.approx(4 * np.pi, rel=0.01)
    assert mesh.signed_volume == pytest.approx(4 / 3 * np.pi, rel=0.02)
    middles = mesh.corners.mean(1)
    assert (np.einsum("ij,ij->i", mesh.normals, middles) > 0.9).all()


def test_a_cone_has_the_volume_of_its_polygon(forms):
    mesh = forms.cone(sides=64, height=2.0)
    assert mesh.signed_volume == pytest.approx(64 / 2 * np.sin(2 * np.pi / 64) * 2.0 / 3)
    assert mesh.outward is True


def test_far_from_the_origin_the_volume_stays(forms):
    mesh = forms.icosphere()
    moved = Triangles(vertices=mesh.vertices + 1e6, faces=mesh.faces)
    assert moved.signed_volume == pytest.approx(mesh.signed_volume, rel=1e-6)


def test_a_patch_has_a_rim_and_neighbors(forms):
    mesh = forms.patch(5)
    edges = mesh.edges
    assert (len(edges), len(edges.boundary), len(edges.interior)) == (85, 20, 65)
    assert mesh.outward is None
    shared = [set(mesh.faces[a]) & set(mesh.faces[b]) for a, b in edges.neighbors]
    assert shared == [set(ends) for ends in edges.ends[edges.interior]]


def test_turned_faces_are_found_and_can_be_turned_back(forms):
    mesh = forms.icosphere()
    which = np.zeros(1280, np.bool_)
    which[[3, 4, 700]] = True
    wrong = mesh.turned(which)
    assert not wrong.consistently_wound
    assert wrong.outward is None
    assert np.array_equal(wrong.misoriented, which)
    assert wrong.turned(wrong.misoriented).outward is True


def test_inside_out_is_consistent_and_faces_inwards(forms):
    mesh = forms.icosphere().turned()
    assert mesh.outward is False
    assert not mesh.misoriented.any()
    assert mesh.signed_volume < 0


def test_a_moebius_strip_cannot_be_turned_right(forms):
    mesh = forms.mobius()
    assert len(mesh.pieces) == len(mesh.faces)
    assert not mesh.consistently_wound
    assert mesh.misoriented.any()
    assert not mesh.turned(mesh.misoriented).consistently_wound


def test_pieces_are_numbered_by_size(forms):
    mesh = forms.joined(forms.cone(8), forms.icosphere(1))
    assert np.array_equal(mesh.pieces, [1] * 16 + [0] * 80)
    largest = mesh.chosen(mesh.pieces == 0)
    assert np.array_equal(largest.vertices, forms.icosphere(1).vertices)
    assert np.array_equal(largest.faces, forms.icosphere(1).faces)


def test_three_faces_at_an_edge_are_no_manifold():
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]])
    mesh = Triangles(vertices=places, faces=np.array([[0, 1, 2], [1, 0, 3], [0, 1, 4]]))
    assert mesh.edges.ends[mesh.edges.non_manifold].tolist() == [[0, 1]]
    assert not mesh.closed


def test_welding_closes_a_seam_and_keeps_the_order(forms):
    mesh = forms.icosphere()
    seamed = forms.torn(mesh)
    assert len(seamed.edges.boundary) == 3840
    whole = seamed.welded()
    assert (len(whole.vertices), len(whole.edges)) == (642, 1920)
    assert whole.closed
    assert np.array_equal(whole.corners, mesh.corners)
    assert np.array_equal(whole.vertices[0], seamed.vertices[0])
    assert whole.welded() is whole


def test_minus_zero_is_the_same_place():
    mesh = Triangles(vertices=np.array([[0.0, 0, 0], [-0.0, 0, 0]]), faces=np.zeros((0, 3), np.int64))
    assert len(mesh.welded().vertices) == 1


def test_a_face_that_names_a_vertex_twice_has_no_edges(forms):
    mesh = forms.icosphere(1)
    more = Triangles(vertices=mesh.vertices, faces=np.concatenate([mesh.faces, [[0, 0, 1], [2, 2, 2]]]))
    assert more.closed
    assert np.array_equal(more.normals[-2:], np.zeros((2, 3)))


def test_a_mesh_without_faces_is_open_and_empty():
    mesh = Triangles(vertices=np.zeros((0, 3)), faces=np.zeros((0, 3), np.int64))
    assert (mesh.closed, mesh.outward, mesh.signed_volume, len(mesh.pieces)) == (False, None, 0.0, 0)
    assert mesh.welded().misoriented.shape == (0,)


@pytest.mark.parametrize(
    ("vertices", "faces", "said"),
    [
        ([[0.0, 0, 0]], [[0, 0, 1]], r"face 0 references vertices \[0, 0, 1\], but there are 1"),
        ([[0.0, 0, 0]], [[0, 0, -1]], r"face 0 references vertices \[0, 0, -1\]"),
        ([[0.0, 0, 0], [0, np.nan, 0]], [[0, 0, 0]], r"1 of 2 rows are not finite, the first is row 1"),
    ],
)
def test_values_that_make_no_mesh_are_refused(vertices, faces, said):
    with pytest.raises(MeshError, match=said):
        Triangles(vertices=np.array(vertices), faces=np.array(faces))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "parts",
    [
        {"vertices": np.zeros((3, 2))},
        {"vertices": np.zeros((3, 3), np.float32)},
        {"faces": np.zeros((1, 4), np.int64)},
        {"colors": np.zeros((2, 3), np.uint8)},
        {"uvs": np.zeros((3, 2))},
    ],
)
def test_a_wrong_form_is_refused(parts):
    good = {"vertices": np.zeros((3, 3)), "faces": np.array([[0, 1, 2]])}
    with pytest.raises(MeshError, match=f"{next(iter(parts))} must be .*, got"):
        Triangles(**{**good, **parts})
