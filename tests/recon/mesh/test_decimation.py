from dataclasses import replace

import fast_simplification
import numpy as np
import pytest

from fieldwatch.recon.mesh import MeshError, Triangles, decimated, read_mesh


@pytest.mark.parametrize("wanted", [1000, 333, 100])
def test_at_most_so_many_triangles_and_nearly_so_many(forms, wanted):
    mesh = decimated(forms.icosphere(4), triangles=wanted)
    assert 0.9 * wanted <= len(mesh.faces) <= wanted
    assert (mesh.closed, mesh.outward) == (True, True)
    assert np.linalg.norm(mesh.vertices, axis=1).mean() == pytest.approx(1, abs=0.05)


def test_vertices_are_counted_where_vertices_are_meant(forms):
    mesh = decimated(forms.icosphere(4), vertices=500)
    assert 450 <= len(mesh.vertices) <= 500
    assert len(mesh.faces) > 800


def test_scale_and_place_do_not_matter(forms):
    ball = forms.icosphere(4)
    far = replace(ball, vertices=1e-3 * ball.vertices + 100)
    assert len(decimated(far, triangles=500).faces) == pytest.approx(len(decimated(ball, triangles=500).faces), abs=20)


def test_colors_are_those_nearby(forms):
    ball = forms.icosphere(4)
    colors = np.where(ball.vertices[:, :1] > 0, [[255, 0, 0]], [[0, 0, 255]]).astype(np.uint8)
    mesh = decimated(replace(ball, colors=colors), triangles=400)
    assert mesh.colors is not None
    clear = np.abs(mesh.vertices[:, 0]) > 0.2
    assert (mesh.colors[clear, 0] == np.where(mesh.vertices[clear, 0] > 0, 255, 0)).all()


def test_an_open_mesh_keeps_its_reach(forms):
    mesh = decimated(forms.patch(20), triangles=100)
    assert len(mesh.faces) <= 100
    assert np.ptp(mesh.vertices, axis=0)[:2] == pytest.approx([20, 20], abs=2)


def test_small_enough_or_empty_stays_as_it_is(forms):
    ball = forms.icosphere(1)
    assert decimated(ball, triangles=10_000) is ball
    empty = Triangles(vertices=np.empty((0, 3)), faces=np.empty((0, 3), np.int64))
    assert decimated(empty, vertices=10) is empty


def test_a_number_is_asked_for(forms):
    for numbers in ({}, {"triangles": 10, "vertices": 10}, {"triangles": 1}):
        with pytest.raises(MeshError, match="at least 4, got"):
            decimated(forms.icosphere(1), **numbers)


def test_running_out_of_memory_is_a_clear_message(forms, monkeypatch):
    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(fast_simplification, "simplify", full)
    with pytest.raises(MeshError, match="decimate 320 faces"):
        decimated(forms.icosphere(2), triangles=100)


def test_a_real_mesh(real_data):
    spot = read_mesh(real_data / "meshes/spot/spot_triangulated.obj").welded()
    mesh = decimated(spot, triangles=2_000)
    assert 1_800 <= len(mesh.faces) <= 2_000
    assert (mesh.closed, mesh.outward) == (True, True)
    assert mesh.signed_volume == pytest.approx(spot.signed_volume, rel=0.01)
