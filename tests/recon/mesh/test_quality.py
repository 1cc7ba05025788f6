"""Figures of meshes against closed forms, and what they must not depend on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from fieldwatch.recon.mesh import MeshError, Triangles, grade_mesh, mesh_quality, write_mesh
from fieldwatch.recon.mesh.quality import aspect_ratios


def test_the_figures_of_an_icosphere(forms):
    found = mesh_quality(forms.icosphere())
    assert (found.n_vertices, found.n_faces, found.n_edges) == (642, 1280, 1920)
    assert found.avg_vertex_valence == pytest.approx(2 * 1920 / 642)
    assert (found.min_vertex_valence, found.max_vertex_valence, found.n_isolated_vertices) == (5, 6, 0)
    assert (found.n_boundary_edges, found.n_duplicate_vertices, found.n_flipped_normals) == (0, 0, 0)
    assert (found.is_watertight, found.is_winding_consistent, found.faces_outward) == (True, True, True)
    assert found.surface_area == pytest.approx(4 * np.pi, rel=0.01)
    assert found.bbox_diagonal == pytest.approx(2 * 3**0.5, rel=0.01)
    assert found.file_size_mb is None
    assert grade_mesh(found).word == "EXCELLENT"
    assert grade_mesh(found).reasons == ()


def test_triangles_of_known_form():
    places = np.array([[0.0, 0, 0], [2, 0, 0], [1, 3**0.5, 0], [0, 2, 0], [4, 0, 0]])
    mesh = Triangles(vertices=places, faces=np.array([[0, 1, 2], [0, 1, 3], [0, 1, 4], [4, 4, 4]]))
    assert aspect_ratios(mesh) == pytest.approx([1, 4 * 3**0.5 * 2 / 16, 0, 0])
    found = mesh_quality(mesh)
    assert (found.n_degenerate_triangles, found.n_low_quality_triangles) == (2, 2)
    assert (found.min_triangle_area, found.max_triangle_area) == pytest.approx((0, 2))


def test_sharp_edges_are_not_flipped(forms):
    found = mesh_quality(forms.cone(64, height=0.2))
    assert found.avg_normal_consistency < 1
    assert (found.n_flipped_normals, found.is_watertight) == (0, True)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_a_scaled_sphere_has_the_same_grade(forms, scale):
    found = mesh_quality(forms.icosphere(radius=scale))
    assert found.n_degenerate_triangles == 0
    assert grade_mesh(found) == grade_mesh(mesh_quality(forms.icosphere()))
    assert found.surface_area == pytest.approx(scale**2 * 4 * np.pi, rel=0.01)


def test_a_seamed_sphere_is_closed_and_its_repeats_are_counted(forms):
    found = mesh_quality(forms.torn(forms.icosphere()))
    assert (found.is_watertight, found.n_boundary_edges, found.n_duplicate_vertices) == (True, 0, 3840 - 642)
    assert grade_mesh(found).score == 100


def test_an_open_patch_says_why_it_is_not_better(forms):
    found = mesh_quality(forms.patch(5))
    assert (found.n_edges, found.n_boundary_edges, found.faces_outward) == (85, 20, None)
    assert found.bbox_aspect_ratio == np.inf
    grade = grade_mesh(found)
    assert (grade.score, grade.word) == (70, "FAIR")
    assert [reason[:3] for reason in grade.reasons] == ["-20", "-10"]
    assert "20 edges" in grade.reasons[0]
    assert grade_mesh(found, should_close=False).score == 100


def test_flipped_faces_are_counted_as_faces(forms):
    which = np.zeros(1280, np.bool_)
    which[[10, 500]] = True
    found = mesh_quality(forms.icosphere().turned(which))
    assert (found.n_flipped_normals, found.is_winding_consistent, found.is_watertight) == (2, False, True)
    assert any("2 of 1280 faces" in reason for reason in grade_mesh(found).reasons)


def test_inside_out_costs_points(forms):
    grade = grade_mesh(mesh_quality(forms.icosphere().turned()))
    assert (grade.score, grade.reasons[0][:4]) == (90, "-10:")


def test_two_pieces_and_an_unused_vertex(forms):
    mesh = forms.joined(forms.icosphere(1), forms.cone(8))
    more = Triangles(vertices=np.concatenate([mesh.vertices, [[9.0, 9, 9]]]), faces=mesh.faces)
    found = mesh_quality(more)
    assert (found.n_pieces, found.n_isolated_vertices) == (2, 1)
    assert found.bbox_extent_x == pytest.approx(2)  # the unused vertex is outside


def test_a_folded_sheet_has_normals_that_cancel():
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    mesh = Triangles(vertices=places, faces=np.array([[0, 1, 2], [0, 2, 1]]))
    assert mesh_quality(mesh).n_degenerate_normals == 3


def test_the_tags_are_those_of_the_tools(forms):
    metrics = mesh_quality(forms.icosphere(1)).metrics
    counts = {group: sum(tag.startswith(f"Mesh/{group}/") for tag in metrics) for group in
              ("Topology", "Quality", "Geometry", "Surface")}  # fmt: skip
    assert counts == {"Topology": 6, "Quality": 12, "Geometry": 4, "Surface": 4}
    assert metrics["Mesh/Topology/n_edges"] == 120
    assert metrics["Mesh/Topology/is_watertight"] == 1


def test_the_size_is_in_mib(forms, tmp_path):
    path = write_mesh(tmp_path / "a.ply", forms.icosphere())
    assert mesh_quality(forms.icosphere(), file=path).file_size_mb == path.stat().st_size / 2**20


def test_nothing_has_no_quality():
    with pytest.raises(MeshError, match="without faces"):
        mesh_quality(Triangles(vertices=np.zeros((2, 3)), faces=np.zeros((0, 3), np.int64)))


SAME = ("n_edges", "is_watertight", "avg_aspect_ratio", "std_aspect_ratio", "edge_length_uniformity",
        "avg_normal_consistency", "n_flipped_normals", "n_degenerate_triangles", "n_degenerate_normals")  # fmt: skip


@settings(max_examples=20)
@given(turn=st.integers(0, 2**31), power=st.integers(-4, 4), shift=st.floats(-3, 3))
def test_neither_turning_nor_scaling_nor_moving_changes_the_form(turn, power, shift):
    places = np.random.default_rng(turn).normal(size=(12, 3))
    faces = np.random.default_rng(turn + 1).permuted(np.tile(np.arange(12), (20, 1)), axis=1)[:, :3].copy()
    rotation = Rotation.random(rng=turn).as_matrix()
    one = Triangles(vertices=places, faces=faces)
    other = Triangles(vertices=10.0**power * (places @ rotation.T + shift), faces=faces)
    first = mesh_quality(one)
    second = mesh_quality(other)
    assert [getattr(second, name) for name in SAME] == pytest.approx([getattr(first, name) for name in SAME], abs=1e-9)
    assert second.surface_area == pytest.approx(100.0**power * first.surface_area)
