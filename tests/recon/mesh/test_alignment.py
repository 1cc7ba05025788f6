"""A copy in another pose and size is brought back, from anywhere and from nearby."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from fieldwatch.recon.geometry import Similarity
from fieldwatch.recon.mesh import Triangles, read_mesh
from fieldwatch.recon.mesh.alignment import align_mesh, moved


def change_of(scale, turn, shift):
    return Similarity(scale=scale, rotation=torch.from_numpy(turn.as_matrix()), translation=torch.from_numpy(shift))


def any_change(seed):
    random = np.random.default_rng(seed)
    turn = Rotation.random(rng=random)
    return change_of(float(np.exp(random.uniform(np.log(0.3), np.log(3)))), turn, random.normal(size=3) * 3)


def differs(found, wanted, diameter):
    """The largest of the differences in scale, in the rotation's entries, and in the shift over the diameter."""
    turn = float((found.rotation - wanted.rotation).abs().max())
    shift = float((found.translation - wanted.translation).norm()) / diameter
    return max(abs(found.scale / wanted.scale - 1), turn, shift)


def odd_form(forms):
    """A body without symmetry."""
    ball = forms.icosphere(3)
    x, y, z = ball.vertices.T
    places = np.stack([x * (1.3 + 0.4 * z), 0.8 * y + 0.25 * x**2, 0.5 * z + 0.2 * x * y], axis=1)
    return Triangles(vertices=places, faces=ball.faces)


@pytest.mark.parametrize("seed", range(2))
def test_a_copy_anywhere_is_brought_back(forms, seed):
    form = odd_form(forms)
    change = any_change(seed)
    found = align_mesh(moved(form, change.inverse()), form, method="sim3")
    assert differs(found, change, np.linalg.norm(np.ptp(form.vertices, axis=0))) < 1e-8


def test_a_copy_nearby_is_brought_back(forms):
    form = odd_form(forms)
    change = change_of(1.06, Rotation.from_rotvec([0.1, -0.07, 0.05]), np.array([0.1, -0.05, 0.04]))
    found = align_mesh(moved(form, change.inverse()), form, method="icp")
    assert differs(found, change, np.linalg.norm(np.ptp(form.vertices, axis=0))) < 1e-8


def test_other_triangles_of_the_same_surface_are_aligned_as_well(forms):
    form = odd_form(forms)
    coarse = Triangles(vertices=form.vertices[:162].copy(), faces=forms.icosphere(2).faces)
    change = any_change(7)
    found = align_mesh(moved(coarse, change.inverse()), form)
    assert differs(found, change, np.linalg.norm(np.ptp(form.vertices, axis=0))) < 0.02


def test_a_part_does_not_pull_the_whole_away(forms):
    form = odd_form(forms)
    part = form.chosen(form.corners.mean(1)[:, 0] < 1.2)
    change = change_of(1.03, Rotation.from_rotvec([0.04, 0.03, -0.02]), np.array([0.03, 0.02, -0.03]))
    found = align_mesh(moved(part, change.inverse()), form, method="icp", keep=0.8)
    assert differs(found, change, np.linalg.norm(np.ptp(form.vertices, axis=0))) < 1e-4


def test_round_things_find_their_size(forms):
    ball = forms.icosphere(2)
    found = align_mesh(forms.icosphere(2, 0.3), Triangles(vertices=ball.vertices + 5, faces=ball.faces))
    assert found.scale == pytest.approx(1 / 0.3, rel=1e-4)
    assert found.translation.numpy() == pytest.approx(np.full(3, 5), abs=1e-3)


def test_none_is_the_identity(forms):
    found = align_mesh(forms.cone(), forms.icosphere(), method="none")
    assert (found.scale, found.rotation.tolist(), found.translation.tolist()) == (1, np.eye(3).tolist(), [0, 0, 0])


@pytest.fixture(scope="module")
def spot(real_data):
    return read_mesh(real_data / "meshes/spot/spot_triangulated.obj").welded()


def test_spot_is_brought_back(spot):
    change = any_change(3)
    found = align_mesh(moved(spot, change.inverse()), spot)
    assert differs(found, change, np.linalg.norm(np.ptp(spot.vertices, axis=0))) < 1e-4
