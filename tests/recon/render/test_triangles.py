"""What the rays of a camera meet: closed forms, both backends bit for bit, no holes, nothing from behind."""

import time
from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.geometry import Camera, inverse_rigid, look_at
from fieldwatch.recon.render import NativeUnavailable, View, cast_triangles, native_available

BACKENDS = ["native", "reference"]


@pytest.fixture(autouse=True)
def kernels(request):
    there, reason = native_available()
    if not there and "reference" not in request.node.name:
        pytest.skip(reason)


def seen_from(place, target=(0.0, 0.0, 0.0), size=(64, 48), focal=60.0, near=0.01):
    pose = inverse_rigid(look_at(place, target))
    lens = {"fx": focal, "fy": 1.1 * focal, "cx": 0.45 * size[0], "cy": 0.55 * size[1]}
    return View(camera_from_world=pose, width=size[0], height=size[1], near=near, **lens)


def rays(view):
    """Where the camera stands, and directions of depth 1 through the pixels' centers, in the world."""
    lens = {"fx": view.fx, "fy": view.fy, "cx": view.cx, "cy": view.cy}
    pose = inverse_rigid(view.camera_from_world)
    camera = Camera(name="eye", width=view.width, height=view.height, world_from_camera=pose, **lens)
    return camera.position, camera.directions() @ pose[:3, :3].T


def globe(rows=24, columns=36, radius=1.0):
    """A closed sphere of unequal triangles; poles are single vertices, on the z axis."""
    lift = torch.linspace(0, torch.pi, rows + 1, dtype=torch.float64)[1:-1, None]
    turn = 2 * torch.pi * torch.arange(columns, dtype=torch.float64) / columns
    ring = [lift.sin() * turn.cos(), lift.sin() * turn.sin(), lift.cos().expand(-1, columns)]
    poles = torch.tensor([[0, 0, 1], [0, 0, -1]], dtype=torch.float64)
    top = (rows - 1) * columns
    low = (rows - 1) * columns + 1
    faces = []
    for c in range(columns):
        d = (c + 1) % columns
        faces += [(top, c, d), (low, top - columns + d, top - columns + c)]
        for r in range(rows - 2):
            a = r * columns
            b = (r + 1) * columns
            faces += [(a + c, b + c, b + d), (a + c, b + d, a + d)]
    return radius * torch.cat([torch.stack(ring, -1).view(-1, 3), poles]).float(), torch.tensor(faces)


def soup(count, seed):
    """Triangles of all sizes around the origin, in front of, behind and through a camera there."""
    chance = torch.Generator().manual_seed(seed)
    middles = 2 * torch.randn(count, 1, 3, generator=chance)
    sides = torch.randn(count, 3, 3, generator=chance) * torch.rand(count, 1, 1, generator=chance) ** 3
    return (middles + sides).view(-1, 3), torch.arange(3 * count).view(-1, 3)


def same_bits(one, other):
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("faces", "depth", "barycentrics"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_square_is_met_where_its_plane_is(backend):
    square = torch.tensor([[-1.0, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
    view = seen_from((0.4, -0.9, 2.5))
    hits = cast_triangles(square, torch.tensor([[0, 1, 2], [0, 2, 3]]), view, backend=backend)
    origin, directions = rays(view)
    depth = -origin[2] / directions[..., 2]
    place = origin + depth[..., None] * directions
    inside = (place[..., :2].abs() < 1).all(-1) & (depth > 0)
    assert 400 < inside.sum() < inside.numel() - 400
    assert torch.equal(hits.faces >= 0, inside)
    assert torch.allclose(hits.depth[inside].double(), depth[inside], rtol=1e-7)
    corners = square[torch.tensor([[0, 1, 2], [0, 2, 3]])[hits.faces.clamp_min(0)]]
    mixed = (hits.barycentrics[..., None] * corners).sum(-2)
    assert torch.allclose(mixed[inside].double(), place[inside], atol=1e-6)
    assert torch.equal((hits.faces == 0) & inside, inside & (place[..., 0] > place[..., 1]))
    assert not hits.depth[~inside].any()
    assert not hits.barycentrics[~inside].any()


def test_a_fine_sphere_is_met_where_the_sphere_is():
    vertices, faces = globe(400, 400)
    view = seen_from((1.5, -2.0, 1.0))
    hits = cast_triangles(vertices, faces, view)
    origin, directions = rays(view)
    square = (directions**2).sum(-1)
    half = directions @ origin
    root = half**2 - square * (origin @ origin - 1)
    seen = root > 0
    assert (seen != (hits.faces >= 0)).sum() <= 4  # pixels within 1e-4 of the outline
    both = (root > 1e-2) & (hits.faces >= 0)
    wanted = (-half - root.clamp_min(0).sqrt()) / square
    assert both.sum() > 500
    assert (hits.depth.double() - wanted)[both].abs().max() < 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_native_is_the_reference_to_the_bit(seed):
    vertices, faces = soup(700, seed)
    view = seen_from((0.0, 0.0, 0.0), (1.0, 0.3, -0.2), near=0.2)
    native = cast_triangles(vertices, faces, view, backend="native")
    assert same_bits(native, cast_triangles(vertices, faces, view, backend="reference"))
    assert (native.faces >= 0).double().mean() > 0.5
    assert native.depth[native.faces >= 0].min() >= 0.2


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(threads):
    vertices, faces = soup(900, seed=9)
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        found.append(cast_triangles(vertices, faces, seen_from((4.0, 0.0, 1.0)), backend="native"))
    torch.set_num_threads(1)
    assert same_bits(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_triangle_through_the_camera_is_cut_at_the_near_plane(backend):
    """A floor that runs from far before to far behind the camera fills the picture below the horizon."""
    floor = torch.tensor([[-300.0, -100, -1], [300, -100, -1], [0, 400, -1]])
    view = replace(seen_from((0.0, 0.0, 0.0), (0.0, 1.0, 0.0)), near=1.9)
    hits = cast_triangles(floor, torch.tensor([[0, 1, 2]]), view, backend=backend)
    down = (torch.arange(view.height, dtype=torch.float64) + 0.5 - view.cy) / view.fy
    depth = torch.where(down > 0, 1 / down, torch.inf)
    seen = (depth >= 1.9) & (depth < 300)
    assert 0 < seen.sum() < (down > 0).sum()
    assert torch.equal(hits.faces >= 0, seen[:, None].expand(-1, view.width))
    assert torch.allclose(hits.depth[seen].double(), depth[seen, None].expand(-1, view.width), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_seen_of_what_lies_behind(backend):
    vertices, faces = globe(8, 8)
    hits = cast_triangles(vertices, faces, seen_from((0.0, -3.0, 0.0), (0.0, -9.0, 0.0)), backend=backend)
    assert (hits.faces == -1).all()
    assert not hits.depth.any()


@pytest.mark.parametrize("place", [(0.0, 0.0, 0.0), (0.3, -0.2, 0.5), (0.0, 0.0, 0.9)])
def test_a_closed_surface_has_no_hole_from_inside(place):
    vertices, faces = globe(60, 90)
    for target in [(0.0, 0.0, 5.0), (0.0, 0.0, -5.0), (4.0, 1.0, 0.0), (-1.0, 3.0, 2.0)]:
        view = seen_from(place, target, size=(301, 301), focal=90.0, near=1e-3)
        # straight at a vertex where 90 faces meet
        for centered in (view, replace(view, cx=150.5, cy=150.5)):
            assert (cast_triangles(vertices, faces, centered).faces >= 0).all()


def test_pixels_on_vertices_and_edges_belong_to_a_face():
    """A grid whose every vertex falls on a pixel's center, through no exact numbers."""
    across = torch.arange(33)
    y, x = torch.meshgrid(across, across, indexing="ij")
    view = seen_from((0.0, 0.0, 0.0), (0.3, 0.7, 0.2), size=(33, 33), focal=37.3)
    pixel = torch.stack([x + 0.5 - view.cx, (y + 0.5 - view.cy) / 1.1, torch.full((33, 33), view.fx)], -1).double()
    depth = 1 + torch.rand(33, 33, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    places = (pixel / view.fx * depth).view(-1, 3) @ view.rotation.double()
    first = (33 * across[:-1, None] + across[:-1]).flatten()
    faces = torch.cat([torch.stack([first, first + 1, first + 34], 1), torch.stack([first, first + 34, first + 33], 1)])
    hits = cast_triangles(places, faces, view)
    assert (hits.faces[1:-1, 1:-1] >= 0).all()
    assert torch.allclose(hits.depth[1:-1, 1:-1].double(), depth[1:-1, 1:-1, 0], rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_equal_faces_the_first_is_taken_whichever_way_it_turns(backend, order):
    vertices = torch.tensor([[-1.0, 0.1, -1], [1, 0.2, -1], [0, -0.1, 1]])
    faces = torch.tensor([[0, 1, 1], order, [0, 1, 2], [2, 1, 0]])
    hits = cast_triangles(vertices, faces, seen_from((0.0, -2.0, 0.0)), backend=backend)
    assert set(hits.faces.unique().tolist()) == {-1, 1}


@pytest.mark.parametrize("backend", BACKENDS)
def test_faces_without_area_and_meshes_without_faces_are_not_met(backend):
    line = torch.tensor([[-1.0, 0, 0], [0, 0, 0], [1, 0, 0]])
    view = replace(seen_from((0.0, -2.0, 0.0)), cx=32.5, cy=24.5)
    flat = cast_triangles(line, torch.tensor([[0, 1, 2], [1, 1, 1]]), view, backend=backend)
    none = cast_triangles(line, torch.empty(0, 3, dtype=torch.int64), view, backend=backend)
    assert (flat.faces == -1).all()
    assert (none.faces == -1).all()


@pytest.mark.machine
def test_a_large_mesh_takes_little_time():
    vertices, faces = globe(317, 317)
    view = seen_from((0.0, -2.2, 0.3), size=(512, 512), focal=480.0)
    assert len(faces) > 200_000
    spent = []
    for _ in range(3):
        begin = time.perf_counter()
        hits = cast_triangles(vertices, faces, view, backend="native")
        spent.append(time.perf_counter() - begin)
    assert (hits.faces >= 0).sum() > 100_000
    assert min(spent) < 0.2


def test_a_vertex_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        cast_triangles(torch.tensor([[0.0, 0, torch.nan]] * 3), torch.tensor([[0, 1, 2]]), seen_from((1.0, 0.0, 0.0)))


@pytest.mark.parametrize("face", [[0, 1, 3], [-1, 0, 1]])
def test_a_face_of_vertices_that_are_not_there_is_refused(face):
    with pytest.raises(ValueError, match="there are 3"):
        cast_triangles(torch.zeros(3, 3), torch.tensor([face]), seen_from((1.0, 0.0, 0.0)))


def test_a_view_without_near_plane_is_refused():
    with pytest.raises(ValueError, match="greater than 0, got"):
        cast_triangles(torch.zeros(3, 3), torch.tensor([[0, 1, 2]]), seen_from((1.0, 0.0, 0.0), near=0.0))


def test_native_on_another_device_is_refused():
    with pytest.raises(NativeUnavailable, match="meta"):
        cast_triangles(
            torch.zeros(0, 3, device="meta"),
            torch.zeros(0, 3, dtype=torch.int64, device="meta"),
            seen_from((1.0, 0.0, 0.0)),
            backend="native",
        )
