"""The mesh of a field: one component, facing outward, identical to that of a full evaluation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch.recon.mesh import implicit_surface
from fieldwatch.recon.pipelines.normals.surface import find_surface, surface_mesh


@pytest.fixture(scope="module")
def scene(ball):
    return ball.scene(ball.config(views=3))


def model_of(ball, scene, *balls):
    return ball.model(ball.config(views=3), scene, *balls)


def test_the_surface_of_a_ball_is_closed_outward_and_at_its_radius(ball, scene):
    found = find_surface(model_of(ball, scene), 48)
    assert found.mesh.closed
    assert found.mesh.outward
    off = np.linalg.norm(found.mesh.vertices, axis=1) - 0.5
    assert np.abs(off).max() < 2e-3  # linear interpolation in cells of 1/24
    assert (found.removed, found.removed_share, found.empty) == (0, 0.0, False)


@pytest.mark.parametrize("nodes", [2**5, 2**7])  # PMNI meshes 2**9, whose cells are 2/511
def test_nodes_stand_evenly_from_one_side_of_the_field_s_box_to_the_other(ball, scene, nodes):
    found = find_surface(model_of(ball, scene, ((0.0, 0.0, 0.0), 3.0)), nodes)
    assert found.cells == nodes - 1
    places = (found.mesh.vertices + 1) * (nodes - 1) / 2
    on_a_line = np.isclose(places, places.round(), atol=1e-4).sum(1)
    assert (on_a_line >= 2).all()  # marching cubes puts a vertex on an edge of a cell
    lines = np.unique(places.round().astype(int))
    assert np.array_equal(lines, np.arange(nodes))


def test_passing_over_parts_changes_nothing(ball, scene):
    balls = (((0.3, 0.0, 0.0), 0.4), ((-0.35, 0.1, 0.0), 0.4))
    model = model_of(ball, scene, *balls)
    found = find_surface(model, 111)

    def asked(points):
        with torch.no_grad():
            return model.sdf(torch.from_numpy(points.clip(-1, 1)).float()).double().numpy()

    whole = implicit_surface(asked, np.full(3, -1.0), np.full(3, 1.0), resolution=110)
    assert np.array_equal(found.mesh.vertices, whole.vertices)
    assert np.array_equal(found.mesh.faces, whole.faces)
    assert found.evaluated_share < 0.6


def test_the_largest_piece_stays_by_area(ball, scene):
    balls = (((0.0, 0.0, 0.3), 0.4), ((0.0, 0.0, -0.6), 0.15), ((0.8, 0.0, 0.0), 0.1))
    found = find_surface(model_of(ball, scene, *balls), 40)
    assert found.removed == 2
    assert found.mesh.vertices[:, 2].min() > -0.15
    expected = (0.15**2 + 0.1**2) / (0.4**2 + 0.15**2 + 0.1**2)
    assert abs(found.removed_share - expected) < 0.02


def test_nothing_is_an_outcome(ball, scene):
    model = model_of(ball, scene, ((0.0, 0.0, 0.0), -0.2))
    found = find_surface(model, 20)
    assert found.empty
    assert found.removed == 0
    assert len(surface_mesh(model, scene, 20).faces) == 0


def test_a_field_that_is_full_is_closed_at_the_box(ball, scene):
    found = find_surface(model_of(ball, scene, ((0.0, 0.0, 0.0), 3.0)), 16)
    assert found.mesh.closed
    assert found.mesh.outward
    assert np.abs(found.mesh.vertices).max() == pytest.approx(1.0, abs=1e-2)


def test_the_world_is_scaled_and_shifted(ball, scene):
    matrix = torch.diag(torch.tensor([2.0, 2.0, 2.0, 1.0], dtype=torch.float64))
    matrix[:3, 3] = torch.tensor([1.0, -2.0, 3.0])
    placed = replace(scene, maps=replace(scene.maps, world_from_unit=matrix))
    mesh = surface_mesh(model_of(ball, scene), placed, 32)
    middle = (mesh.vertices.min(0) + mesh.vertices.max(0)) / 2
    assert np.allclose(middle, [1.0, -2.0, 3.0], atol=1e-3)
    assert np.allclose(np.ptp(mesh.vertices, axis=0), 2.0, atol=1e-2)
    own = surface_mesh(model_of(ball, scene), placed, 32, world=False)
    assert np.allclose(np.ptp(own.vertices, axis=0), 1.0, atol=1e-2)


def test_a_resolution_out_of_bounds_is_refused(ball, scene):
    with pytest.raises(ValueError, match="between 2 and 2048 nodes"):
        find_surface(model_of(ball, scene), 2049)
