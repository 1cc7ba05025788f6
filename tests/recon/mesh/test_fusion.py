import math

import numpy as np
import pytest
import torch

from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.mesh import DepthView, MeshError, fuse_depths, fusion

LOW = np.full(3, -1.3)
HIGH = np.full(3, 1.3)
PLACES = [(4, 0, 0.2), (-4, 0.1, 0), (0, 4, 0.3), (0.2, -4, 0), (0.1, 0, 4), (0, 0.2, -4)]


def sphere_view(place, size=160):
    """Exact depth of the unit sphere; red where x is above 0, else blue."""
    pose = look_at(place, (0.0, 0.0, 0.0))
    lens = {"fx": 1.5 * size, "fy": 1.5 * size, "cx": size / 2, "cy": size / 2}
    camera = Camera(name=str(place), width=size, height=size, world_from_camera=pose, **lens)
    origins, directions = (rays.numpy() for rays in camera.rays())
    along = -(origins * directions).sum(-1)
    square = along**2 - (origins**2).sum(-1) + 1
    traveled = np.where(square > 0, along - np.sqrt(np.maximum(square, 0)), 0)
    depth = (traveled * (directions @ camera.forward.numpy())).astype(np.float32)
    hit = origins + traveled[..., None] * directions
    colors = np.where(hit[..., :1] > 0, [255, 0, 0], [0, 0, 255]).astype(np.uint8)
    return DepthView(camera=camera, depth=depth, colors=colors)


@pytest.fixture(scope="module")
def views():
    return [sphere_view(place) for place in PLACES]


def test_exact_depth_gives_the_surface(views):
    mesh = fuse_depths(views, low=LOW, high=HIGH, resolution=64)
    off = (np.linalg.norm(mesh.vertices, axis=1) - 1) / (2.6 / 64)
    assert np.sqrt(np.square(off).mean()) < 0.3
    assert mesh.pieces.max() == 0
    assert mesh.closed
    assert mesh.outward


def test_colors_are_the_views(views):
    mesh = fuse_depths(views, low=LOW, high=HIGH, resolution=48)
    assert mesh.colors is not None
    clear = np.abs(mesh.vertices[:, 0]) > 0.15
    assert (mesh.colors[clear, 0] > 128).tolist() == (mesh.vertices[clear, 0] > 0).tolist()


def test_in_layers_it_is_the_same(views):
    whole = fuse_depths(views, low=LOW, high=HIGH, resolution=40)
    calls = []
    memory = 7 * 180 * 41 * 41
    parts = fuse_depths(views, low=LOW, high=HIGH, resolution=40, memory=memory, on_view=calls.append)
    assert calls == list(range(1, 7 * len(views) + 1))
    assert (parts.faces == whole.faces).all() or len(parts.faces) == len(whole.faces)
    order, other = (mesh.vertices[np.lexsort(mesh.vertices.round(9).T)] for mesh in (parts, whole))
    assert order == pytest.approx(other, abs=1e-6)
    assert parts.colors is not None


def test_nodes_that_no_camera_sees_are_not_visited(monkeypatch):
    """Most nodes behind the sphere are skipped; the surface is that of all nodes, bit for bit."""
    views = [sphere_view((3, 1, -2), 64), sphere_view((-4, 0.1, 0), 64)]
    visited = []
    window = fusion._window

    def counted(*arguments):
        found = window(*arguments)
        visited.append(0 if found is None else math.prod(part.stop - part.start for part in found))
        return found

    monkeypatch.setattr(fusion, "_window", counted)
    some = fuse_depths(views, low=LOW, high=HIGH, resolution=32)
    assert sum(visited) < 0.7 * len(views) * 33**3
    everything = (slice(0, 33), slice(0, 33))
    monkeypatch.setattr(fusion, "_window", lambda *_: everything)
    whole = fuse_depths(views, low=LOW, high=HIGH, resolution=32)
    assert len(whole.vertices) > 100
    assert np.array_equal(some.vertices, whole.vertices)
    assert np.array_equal(some.colors, whole.colors)


def test_one_view_gives_an_open_front_or_a_closed_body(views):
    front = fuse_depths(views[:1], low=LOW, high=HIGH, resolution=48)
    assert len(front.edges.boundary) > 0
    assert front.vertices[:, 0].min() > 0
    body = fuse_depths(views[:1], low=LOW, high=HIGH, resolution=48, close=True)
    assert (body.closed, body.outward) == (True, True)


def test_views_that_come_once_are_fine_in_one_pass_and_refused_in_several(views):
    assert len(fuse_depths(iter(views), low=LOW, high=HIGH, resolution=32).faces) > 1000
    with pytest.raises(MeshError, match=r"several passes.*give a list"):
        fuse_depths(iter(views), low=LOW, high=HIGH, resolution=32, memory=5 * 180 * 33 * 33)


def test_what_cannot_be_fused_is_said(views):
    with pytest.raises(MeshError, match="no depth maps"):
        fuse_depths([], low=LOW, high=HIGH, resolution=16)
    with pytest.raises(MeshError, match=r"at least [\d.]+ MiB.*[\d.]+ MiB"):
        fuse_depths(views, low=LOW, high=HIGH, resolution=64, memory=1000)
    with pytest.raises(MeshError, match="needs a box"):
        fuse_depths(views, low=HIGH, high=LOW, resolution=64)


def test_nothing_seen_is_an_empty_mesh(views):
    blind = DepthView(camera=views[0].camera, depth=np.zeros((160, 160), np.float32))
    assert len(fuse_depths([blind], low=LOW, high=HIGH, resolution=16).faces) == 0


def test_a_picture_of_another_size_or_with_negative_depth_is_refused(views):
    camera = views[0].camera.to(dtype=torch.float64)
    with pytest.raises(MeshError, match="160 rows and 160 columns"):
        DepthView(camera=camera, depth=np.zeros((10, 10), np.float32))
    with pytest.raises(MeshError, match="negative or non-finite"):
        DepthView(camera=camera, depth=np.full((160, 160), -1, np.float32))
