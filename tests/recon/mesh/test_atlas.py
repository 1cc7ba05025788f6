"""Layouts of textures: inside the picture, nothing over anything else, room for every face."""

import numpy as np
import pytest
from scipy.spatial import KDTree

from fieldwatch.recon.mesh import MeshError, Triangles, read_mesh, squares_across, unwrapped
from fieldwatch.recon.mesh.texels import REACH, find_texels


def areas(uvs):
    (ax, ay), (bx, by) = np.moveaxis(uvs[:, 1:] - uvs[:, :1], (1, 2), (0, 1))
    return np.abs(ax * by - ay * bx) / 2


def times_covered(uvs, size):
    """How many faces each texel's center lies in, by its own small calculation: strictly inside only."""
    y, x = (np.mgrid[:size, :size] + 0.5) / size
    count = np.zeros((size, size), int)
    for a, b, c in uvs:
        sides = [(q[0] - p[0]) * (1 - y - p[1]) - (q[1] - p[1]) * (x - p[0]) for p, q in ((a, b), (b, c), (c, a))]
        count += np.all(np.array(sides) > 1e-9, 0) | np.all(np.array(sides) < -1e-9, 0)
    return count


@pytest.mark.parametrize("method", ["xatlas", "squares"])
@pytest.mark.parametrize("form", ["icosphere", "cone", "mobius"])
def test_charts_lie_in_the_picture_and_do_not_overlap(forms, method, form):
    mesh = unwrapped(getattr(forms, form)(*([1] if form == "icosphere" else [])), method=method, size=256)
    assert mesh.uvs.min() >= 0
    assert mesh.uvs.max() <= 1
    assert areas(mesh.uvs).min() > 0
    assert times_covered(mesh.uvs, 256).max() == 1


def test_charts_keep_their_distance(forms):
    uvs = unwrapped(forms.icosphere(1), size=256, padding=6).uvs
    # corners at one place on the surface and in the picture belong to one chart: pieces of the layout
    corners = np.unique(np.round(uvs.reshape(-1, 2), 9), axis=0, return_inverse=True)
    flat = Triangles(vertices=np.c_[corners[0], np.zeros(len(corners[0]))], faces=corners[1].reshape(-1, 3))
    chart = flat.pieces
    inside = np.argwhere(times_covered(uvs, 256)) + 0.5
    owner = find_texels(Triangles(vertices=flat.vertices, faces=flat.faces, uvs=uvs), 256)
    number = np.full((256, 256), -1)
    number.reshape(-1)[owner.indices[owner.inside]] = chart[owner.faces[owner.inside]]
    found = {int(n): inside[number[tuple((inside - 0.5).astype(int).T)] == n] for n in np.unique(chart)}
    trees = [KDTree(places) for places in found.values()]
    gaps = [tree.query(other.data)[0].min() for i, tree in enumerate(trees) for other in trees[:i]]
    assert len(found) > 1
    assert min(gaps) > 4


@pytest.mark.parametrize("faces", [1, 2, 7, 8, 9, 1280])
def test_squares_hold_any_number_of_faces_down_to_four_texels(faces):
    mesh = Triangles(vertices=np.random.default_rng(0).random((9, 3)), faces=np.tile([[0, 1, 2]], (faces, 1)))
    across = squares_across(faces)
    assert 2 * (across - 1) ** 2 < faces <= 2 * across**2
    uvs = unwrapped(mesh, method="squares", size=4 * across).uvs
    assert uvs.min() >= 0
    assert uvs.max() <= 1
    assert areas(uvs * 4 * across) == pytest.approx(0.5)
    with pytest.raises(MeshError, match=f"at least {4 * across}, or decimate"):
        unwrapped(mesh, method="squares", size=4 * across - 1)


@pytest.mark.parametrize("square", [4, 5, 8, 13])
def test_sampling_in_one_face_never_takes_texels_of_the_other(square):
    mesh = Triangles(vertices=np.eye(3), faces=np.array([[0, 1, 2], [0, 2, 1]]))
    uvs = unwrapped(mesh, method="squares", size=square).uvs
    rng = np.random.default_rng(0)
    taken = []
    for corners in uvs:
        weights = np.concatenate([rng.dirichlet(np.ones(3), 5000), np.eye(3)])
        x, y = ((weights @ corners) * square - 0.5).T
        found = set()
        for dx in (0, 1):
            for dy in (0, 1):
                column = np.floor(x + 1e-9) + dx
                row = np.floor(y + 1e-9) + dy
                used = (1 - abs(x - column)).clip(0) * (1 - abs(y - row)).clip(0) > 1e-6
                found |= set(zip(column[used].tolist(), row[used].tolist(), strict=True))
        taken.append(found)
    assert not taken[0] & taken[1]
    assert all(0 <= c < square and 0 <= r < square for one in taken for c, r in one)


def test_texels_show_the_point_under_their_center(forms):
    mesh = unwrapped(forms.icosphere(1), size=64)
    texels = find_texels(mesh, 64)
    drawn = np.einsum("tc,tci->ti", texels.weights, mesh.uvs[texels.faces])
    centers = np.stack([texels.indices % 64 + 0.5, 64 - (texels.indices // 64 + 0.5)], 1) / 64
    gap = np.linalg.norm(drawn - centers, axis=1) * 64
    assert gap[texels.inside].max() < 1e-4
    assert gap[~texels.inside].min() > 0
    assert gap.max() <= REACH + 1e-4
    assert np.array_equal(np.sort(texels.indices[texels.inside]), np.flatnonzero(times_covered(mesh.uvs, 64)))


@pytest.mark.parametrize("pairs", [10, 1000])
def test_one_face_over_the_whole_picture_comes_in_bands(monkeypatch, pairs):
    monkeypatch.setattr("fieldwatch.recon.mesh.texels._PAIRS", pairs)
    mesh = Triangles(vertices=np.eye(3), faces=np.array([[0, 1, 2]]), uvs=np.array([[[0.0, 0], [2, 0], [0, 2]]]))
    texels = find_texels(mesh, 50)
    assert np.array_equal(texels.indices, np.arange(50**2))
    assert texels.inside.all()


def test_what_cannot_be_laid_out_is_said(forms):
    empty = Triangles(vertices=np.zeros((0, 3)), faces=np.zeros((0, 3), np.int64))
    with pytest.raises(MeshError, match="no faces"):
        unwrapped(empty)
    with pytest.raises(MeshError, match="from 1 to 16384"):
        unwrapped(forms.cone(), size=0)
    with pytest.raises(MeshError, match="no texture coordinates"):
        find_texels(forms.cone(), 8)
    outside = Triangles(vertices=np.eye(3), faces=np.array([[0, 1, 2]]), uvs=np.full((1, 3, 2), 5.0))
    with pytest.raises(MeshError, match="outside 0 to 1"):
        find_texels(outside, 8)


def test_spot_far_away_and_small_is_laid_out_alike(real_data):
    mesh = read_mesh(real_data / "meshes" / "spot" / "spot_triangulated.obj")
    part = mesh.chosen(np.arange(len(mesh.faces)) < 600)
    moved = Triangles(vertices=part.vertices * 1e-5 + 10, faces=part.faces)
    for one in (part, moved):
        found = unwrapped(one, size=512)
        assert areas(found.uvs).min() > 0
        assert areas(found.uvs).sum() > 0.3
