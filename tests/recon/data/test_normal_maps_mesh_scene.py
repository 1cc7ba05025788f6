"""Normal maps of meshes against spheres, planes and a cube; open, inverted, damaged and distant meshes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from fieldwatch.recon.data import (
    MeshScene,
    check_normal_maps,
    ring_cameras,
    synthetic_normal_maps,
    unit_sphere_of,
    write_normal_maps,
)
from fieldwatch.recon.data.normal_maps import NormalMapError, NormalScene, read_normal_maps
from fieldwatch.recon.geometry import Camera, look_at

RADIUS = 0.8


def octasphere(rounds):
    """Return a sphere as a subdivided octahedron with its vertices projected to the radius."""
    vertices = [(1.0, 0.0, 0.0), (-1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, -1.0, 0.0), (0.0, 0.0, 1.0), (0.0, 0.0, -1.0)]
    faces = [(0, 2, 4), (2, 1, 4), (1, 3, 4), (3, 0, 4), (2, 0, 5), (1, 2, 5), (3, 1, 5), (0, 3, 5)]
    for _ in range(rounds):
        middles = {}

        def middle(a, b, middles=middles):
            if (min(a, b), max(a, b)) not in middles:
                middles[min(a, b), max(a, b)] = len(vertices)
                vertices.append(tuple((x + y) / 2 for x, y in zip(vertices[a], vertices[b], strict=True)))
            return middles[min(a, b), max(a, b)]

        cut = [(a, b, c, middle(a, b), middle(b, c), middle(c, a)) for a, b, c in faces]
        faces = [face for a, b, c, d, e, f in cut for face in ((a, d, f), (d, b, e), (f, e, c), (d, e, f))]
    places = torch.tensor(vertices, dtype=torch.float64)
    return RADIUS * places / places.norm(dim=1, keepdim=True), torch.tensor(faces)


def cube():
    """Return a cube with corners at +-0.5 and each side split along a diagonal."""
    signs = torch.tensor([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=torch.float64)
    sides = [(4, 6, 7, 5), (0, 1, 3, 2), (2, 3, 7, 6), (0, 4, 5, 1), (1, 5, 7, 3), (0, 2, 6, 4)]
    return signs / 2, torch.tensor([face for a, b, c, d in sides for face in ((a, b, c), (a, c, d))])


def sheet():
    """Return the tilted square z = 0.3 x + 0.1 y with its normal pointing up."""
    flat = torch.tensor([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]], dtype=torch.float64)
    heights = flat @ torch.tensor([[0.3], [0.1]], dtype=torch.float64)
    return torch.cat([flat, heights], 1), torch.tensor([[0, 1, 2], [0, 2, 3]])


def camera(*place, size=33, focal=40.0):
    pose = look_at(place, (0.0, 0.0, 0.0))
    lens = {"fx": focal, "fy": focal, "cx": size / 2, "cy": size / 2}
    return Camera(name="0", width=size, height=size, **lens, world_from_camera=pose)


@pytest.fixture(scope="module")
def ball():
    return octasphere(5)


@pytest.fixture(scope="module")
def eye():
    return camera(2.0, 1.5, 1.0, size=64, focal=96.0)


def test_a_fine_sphere_has_the_depth_of_the_sphere_and_smooth_normals_along_its_radii(ball, eye):
    scene = MeshScene(*ball, shading="smooth")
    assert isinstance(scene, NormalScene)
    assert scene.notes == ()
    origins, rays = eye.rays()
    along = -(origins * rays).sum(-1)
    across = origins.square().sum(-1) - along.square()
    hit = scene.depth(eye) > 0
    assert bool((hit == (across < RADIUS**2))[(across.sqrt() - RADIUS).abs() > 1e-3].all())
    clear = hit & (across.sqrt() < 0.8 * RADIUS)
    sphere = (along - (RADIUS**2 - across).clamp_min(0).sqrt())[clear]
    places = origins[clear] + sphere[:, None] * rays[clear]
    axial = sphere * (rays[clear] @ eye.forward)
    # depth of a face below the sphere: squared circumradius (largest side / sqrt(3)) divided by 2 R
    side = float((ball[0][ball[1]] - ball[0][ball[1].roll(1, dims=1)]).norm(dim=-1).max())
    sunk = side**2 / 6 / RADIUS
    gap = scene.depth(eye)[clear] - axial
    assert float(gap.min()) > -1e-12
    assert float(gap.max()) < sunk / 0.6 * 1.01
    cosine = (scene.normals(eye)[clear] * places / RADIUS).sum(-1)
    assert math.degrees(math.acos(float(cosine.min()))) < 0.15
    assert float(MeshScene(*ball, shading="flat").shading_angle(eye)[clear].mean()) > 0.4


def test_flat_normals_are_those_of_the_faces_and_of_the_depth(eye):
    vertices, faces = octasphere(1)
    scene = MeshScene(vertices, faces, shading="flat")
    hit = scene.depth(eye) > 0
    normals = scene.normals(eye)[hit]
    points = eye.unproject(scene.depth(eye))[hit]
    first, second, third = vertices[faces].unbind(1)
    truth = torch.nn.functional.normalize(torch.linalg.cross(second - first, third - first), dim=1)
    which = (normals @ truth.T).argmax(1)
    assert torch.allclose(normals, truth[which], atol=1e-14)
    assert float(((points - first[which]) * normals).sum(-1).abs().max()) < 1e-14
    assert len(which.unique()) > 10
    assert int(scene.facing_away(eye).sum()) == 0


def test_the_depth_of_a_plane_is_its_closed_form(eye):
    scene = MeshScene(*sheet(), shading="smooth")
    hit = scene.depth(eye) > 0
    points = eye.unproject(scene.depth(eye))[hit]
    normal = torch.tensor([-0.3, -0.1, 1.0], dtype=torch.float64) / math.sqrt(1.1)
    assert int(hit.sum()) > 100
    assert float((points @ normal).abs().max()) < 1e-14
    assert torch.allclose(scene.normals(eye)[hit], normal.expand(int(hit.sum()), 3), atol=1e-14)
    assert float(scene.shading_angle(eye).max()) < 1e-6


def test_the_normal_of_a_vertex_is_weighted_by_angles_not_by_faces():
    """At some corners a side has two faces, so an unweighted mean of face normals would be biased."""
    scene = MeshScene(*cube(), shading="smooth")
    for corner in ((1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (-1.0, 1.0, 1.0), (-1.0, -1.0, -1.0)):
        seen = camera(*(2 * x for x in corner))
        assert scene.normals(seen)[16, 16].tolist() == pytest.approx([x / math.sqrt(3) for x in corner], abs=1e-12)
        assert float(scene.shading_angle(seen)[16, 16]) == pytest.approx(math.degrees(math.acos(1 / math.sqrt(3))))


def test_smooth_normals_are_interpolated_and_of_length_one():
    seen = camera(4.0, 0.3, 0.2)
    scene = MeshScene(*cube(), shading="smooth")
    hit = scene.depth(seen) > 0
    normals = scene.normals(seen)[hit]
    points = seen.unproject(scene.depth(seen))[hit]
    assert torch.allclose(normals.norm(dim=-1), torch.ones(()).double())
    # interpolated corner normals on a side of the cube: (1, 2y, 2z), normalized
    front = (points[:, 0] - 0.5).abs() < 1e-9
    truth = torch.nn.functional.normalize(torch.cat([torch.ones(len(points), 1), 2 * points[:, 1:]], 1), dim=1)
    assert int(front.sum()) > 40
    assert torch.allclose(normals[front], truth[front], atol=1e-12)


def test_smooth_normals_near_silhouettes_may_face_away_and_are_counted_not_changed(eye):
    vertices, faces = octasphere(1)
    smooth = MeshScene(vertices, faces, shading="smooth")
    away = smooth.facing_away(eye)
    cosine = (smooth.normals(eye) * eye.rays()[1]).sum(-1)
    assert torch.equal(away, cosine > 0)
    assert 0 < int(away.sum()) < 0.1 * int((smooth.depth(eye) > 0).sum())


def test_a_mesh_inside_out_is_turned_and_it_is_said(ball, eye):
    right, wrong = (MeshScene(ball[0], faces, shading="smooth") for faces in (ball[1], ball[1].flip(1)))
    assert (right.flipped, wrong.flipped) == (False, True)
    assert "inside out" in wrong.notes[0]
    assert torch.allclose(right.normals(eye), wrong.normals(eye), atol=1e-12)


def test_an_open_sheet_is_left_as_it_is_and_its_back_faces_away(eye):
    vertices, faces = sheet()
    scene = MeshScene(vertices, faces.flip(1), shading="flat")
    assert not scene.flipped
    assert any("open: 4 of its 5 edges" in note for note in scene.notes)
    assert torch.equal(scene.facing_away(eye), scene.depth(eye) > 0)


def test_faces_wound_against_each_other_and_crowded_edges_are_told(eye):
    vertices, faces = cube()
    faces = torch.cat([faces[:1].flip(1), faces[1:]])
    assert any("3 edges" in n for n in MeshScene(vertices, faces, shading="flat").notes)
    fin = torch.cat([cube()[1], torch.tensor([[0, 1, 6]])])
    assert any("2 edges" in n for n in MeshScene(vertices, fin, shading="flat").notes)
    assert bool((MeshScene(vertices, faces, shading="smooth").normals(eye).norm(dim=-1) < 1 + 1e-12).all())


def test_repeated_vertices_are_one_and_unused_ones_count_for_nothing(ball, eye):
    soup = ball[0][ball[1]].reshape(-1, 3)
    unused = torch.tensor([[1e9, 0.0, 0.0], [7.0, 7.0, 7.0]], dtype=torch.float64)
    torn = MeshScene(torch.cat([unused, soup]), torch.arange(len(soup)).reshape(-1, 3) + 2, shading="smooth")
    whole = MeshScene(*ball, shading="smooth")
    assert len(torn.vertices) == len(whole.vertices) == len(ball[0])
    assert torn.notes == ()
    assert torch.allclose(torn.normals(eye), whole.normals(eye), atol=1e-12)


def test_a_sheet_with_two_sides_has_the_normals_of_its_faces(eye):
    """The vertex normals of a two-sided sheet cancel."""
    vertices, faces = sheet()
    both = MeshScene(vertices, torch.cat([faces, faces.flip(1)]), shading="smooth")
    single = MeshScene(vertices, faces, shading="flat")
    assert torch.allclose(both.normals(eye), single.normals(eye), atol=1e-12)


@pytest.mark.parametrize(
    ("vertices", "faces", "message"),
    [
        (torch.zeros(3, 3), torch.zeros(0, 3, dtype=torch.int64), "3 vertices has no faces"),
        (torch.tensor([[0, 0, 0], [1, math.nan, 0], [0, 1, 0.0]]), torch.tensor([[0, 1, 2]]), "1 of .* first in row 1"),
        (torch.eye(3), torch.tensor([[0, 1, 3]]), "vertices 0 to 3, but there are only 3"),
        (torch.eye(3), torch.tensor([[0, -1, 2]]), "vertices -1 to 2"),
        (torch.ones(3, 3), torch.tensor([[0, 1, 2]]), "none of the 1 faces of the mesh has an area"),
    ],
)
def test_what_is_no_surface_is_refused(vertices, faces, message):
    with pytest.raises(NormalMapError, match=message):
        MeshScene(vertices, faces, shading="flat")


@pytest.mark.parametrize("count", [2, 3, 4, 5, 30, 500])
def test_the_smallest_sphere_is_smallest(count):
    """The smallest sphere has its center in the convex hull of its surface points (Karush, Kuhn, Tucker)."""
    for seed in range(10):
        points = np.random.default_rng([count, seed]).normal(size=(count, 3)) * [1, 0.2, 3]
        frame = unit_sphere_of(torch.from_numpy(points), fill=1.0).numpy()
        center = frame[:3, 3]
        radius = frame[0, 0]
        distance = np.linalg.norm(points - center, axis=1)
        assert distance.max() == pytest.approx(radius, rel=1e-12)
        outer = points[distance > radius * (1 - 1e-9)] - center
        off = nnls(np.vstack([outer.T, np.ones(len(outer))]), [0.0, 0.0, 0.0, 1.0])[1]
        assert off < 1e-8


def test_the_sphere_of_a_ball_of_a_cube_and_of_a_long_triangle(ball):
    frame = unit_sphere_of(ball[0] + torch.tensor([3.0, 0.0, -5.0], dtype=torch.float64))
    assert frame.diagonal().tolist() == pytest.approx([1, 1, 1, 1], abs=1e-9)
    assert frame[:3, 3].tolist() == pytest.approx([3, 0, -5], abs=1e-9)
    assert float(unit_sphere_of(cube()[0], fill=0.5)[0, 0]) == pytest.approx(math.sqrt(3))
    long = unit_sphere_of(torch.tensor([[-4.0, 0, 0], [0, 1, 0], [4, 0, 0]]), fill=0.8)
    assert (float(long[0, 0]), long[:3, 3].tolist()) == (pytest.approx(5.0), pytest.approx([0, 0, 0], abs=1e-9))


def test_a_sphere_around_nothing_is_refused():
    for wrong in (torch.zeros(0, 3), torch.ones(4, 3), torch.tensor([[0.0, 0, 0], [1, math.inf, 0]])):
        with pytest.raises(NormalMapError, match=r"got \d+ vertices"):
            unit_sphere_of(wrong)
    for fill in (0.0, 1.1, -1.0, math.nan):
        with pytest.raises(NormalMapError, match="greater than 0 and at most 1"):
            unit_sphere_of(torch.eye(3), fill=fill)


def test_a_mesh_far_from_the_origin_gives_the_same_maps(ball, eye):
    away = torch.tensor([4e6, -5e5, 120.0], dtype=torch.float64)  # meters, as in national coordinate systems
    near, far = (MeshScene(in_unit(places), ball[1], shading="smooth") for places in (ball[0], ball[0] + away))
    # float64 positions are accurate to 5e-10 there, so a face of size 0.03 to 2e-8
    assert torch.equal(near.depth(eye) > 0, far.depth(eye) > 0)
    assert torch.allclose(near.depth(eye), far.depth(eye), atol=1e-7)
    assert torch.allclose(near.normals(eye), far.normals(eye), atol=1e-7)


def in_unit(places):
    frame = unit_sphere_of(places)
    return (places - frame[:3, 3]) / frame[0, 0]


@pytest.mark.parametrize("shading", ["smooth", "flat"])
def test_maps_of_a_mesh_come_back_from_a_folder_and_nothing_is_wrong_with_them(tmp_path, shading):
    vertices, faces = octasphere(3)
    vertices = vertices * torch.tensor([1.0, 0.7, 0.9], dtype=torch.float64) * 3 + 8
    frame = unit_sphere_of(vertices)
    scene = MeshScene((vertices - frame[:3, 3]) / frame[0, 0], faces, shading=shading)
    made = synthetic_normal_maps(scene, cameras=ring_cameras(8, 48))
    read = read_normal_maps(write_normal_maps(replace(made, world_from_unit=frame), tmp_path / "set"))
    assert check_normal_maps(read) == ()
    assert torch.equal(read.world_from_unit, frame)
    for own, truth in zip(read.views, made.views, strict=True):
        assert torch.equal(own.mask, truth.mask)
        assert torch.equal(own.depth, truth.depth)
        assert float((own.normals - truth.normals).norm(dim=-1).max()) < 1.6e-5 * math.sqrt(3)
