import numpy as np

from fieldwatch.recon.mesh import Triangles, cleaned


def cube(low):
    """Unit cube, faces outward."""
    places = np.array(list(np.ndindex(2, 2, 2)), float) + low
    squares = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [face for a, b, c, d in squares for face in ((a, b, c), (a, c, d))]
    return Triangles(vertices=places, faces=np.array(faces, np.int64))


def manifold(mesh):
    return len(mesh.edges.non_manifold) == 0


def test_a_clean_mesh_stays_what_it_is(forms):
    mesh = cleaned(forms.icosphere())
    assert (len(mesh.vertices), len(mesh.faces), mesh.closed) == (642, 1280, True)
    assert (mesh.vertices == forms.icosphere().vertices).all()


def test_torn_faces_are_sewn(forms):
    mesh = cleaned(forms.torn(forms.icosphere()))
    assert (len(mesh.vertices), mesh.closed) == (642, True)


def test_repeated_and_collapsed_faces_go(forms):
    ball = forms.icosphere()
    extra = np.array([ball.faces[0], ball.faces[1, [1, 2, 0]], [5, 5, 9]])
    mesh = cleaned(Triangles(vertices=ball.vertices, faces=np.concatenate([ball.faces, extra])))
    assert (len(mesh.faces), mesh.closed, mesh.outward) == (1280, True, True)


def test_faces_back_to_back_cancel(forms):
    ball = forms.icosphere()
    flap = np.array([[0, 1, 642], [1, 0, 642]])
    places = np.concatenate([ball.vertices, [[3.0, 0, 0]]])
    mesh = cleaned(Triangles(vertices=places, faces=np.concatenate([ball.faces, flap])))
    assert (len(mesh.faces), len(mesh.vertices), mesh.closed) == (1280, 642, True)


def test_solids_that_touch_along_an_edge_come_apart_closed(forms):
    both = forms.joined(cube(np.zeros(3)), cube(np.array([1.0, 1.0, 0.0])))
    assert not manifold(both.welded())
    mesh = cleaned(both)
    assert (manifold(mesh), mesh.closed, mesh.outward, mesh.pieces.max()) == (True, True, True, 1)
    again = mesh.welded()  # they do not meet again in a file
    assert (again.closed, abs(mesh.signed_volume - 2) < 0.01) == (True, True)


def test_solids_that_touch_at_a_corner_come_apart(forms):
    mesh = cleaned(forms.joined(cube(np.zeros(3)), cube(np.ones(3))))
    assert (len(mesh.vertices), mesh.closed) == (16, True)


def test_a_fin_on_a_closed_surface_goes(forms):
    ball = forms.icosphere()
    places = np.concatenate([ball.vertices, [[3.0, 0, 0]]])
    fin = np.array([[ball.faces[0, 0], ball.faces[0, 1], 642]])
    mesh = cleaned(Triangles(vertices=places, faces=np.concatenate([ball.faces, fin])))
    assert (len(mesh.faces), mesh.closed) == (1280, True)


def test_a_face_without_area_is_flipped_and_the_surface_stays_closed(forms):
    box = cube(np.zeros(3))
    # the middle of the edge that faces 0 and 1 share becomes a vertex that only one of the two knows
    a = 0
    b = 3
    c = 1
    places = np.concatenate([box.vertices, [(box.vertices[a] + box.vertices[b]) / 2]])
    faces = [face for face in box.faces.tolist() if set(face) != {a, b, c}]
    mesh = Triangles(vertices=places, faces=np.array([*faces, [a, c, 8], [c, b, 8], [a, 8, b]], np.int64))
    assert (mesh.closed, mesh.areas.min()) == (True, 0.0)
    mended = cleaned(mesh)
    assert (mended.closed, mended.outward, mended.signed_volume) == (True, True, 1.0)
    assert mended.areas.min() > 0.1


def test_colors_and_unused_vertices(forms):
    ball = forms.icosphere(1)
    places = np.concatenate([[[9.0, 9, 9]], ball.vertices])
    colors = np.arange(3 * len(places)).reshape(-1, 3).astype(np.uint8)
    mesh = cleaned(Triangles(vertices=places, faces=ball.faces + 1, colors=colors))
    assert mesh.colors is not None
    assert (len(mesh.vertices), mesh.colors.tolist()) == (42, colors[1:].tolist())


def test_what_snapping_without_care_leaves(forms):
    ball = forms.icosphere(4)
    coarse = np.random.default_rng(0).normal(size=(600, 3))
    coarse /= np.linalg.norm(coarse, axis=1, keepdims=True)
    nearest = np.argmax(ball.vertices @ coarse.T, axis=1)
    mesh = cleaned(Triangles(vertices=coarse[nearest], faces=ball.faces))
    assert manifold(mesh)
    assert manifold(mesh.welded())
    assert mesh.closed
    assert 400 < len(mesh.vertices) <= 700


def test_random_faces_become_manifold():
    generator = np.random.default_rng(3)
    mesh = cleaned(
        Triangles(vertices=generator.normal(size=(12, 3)), faces=generator.integers(0, 12, (80, 3)).astype(np.int64))
    )
    assert manifold(mesh)
    assert manifold(mesh.welded())


def test_nothing_stays_nothing():
    empty = Triangles(vertices=np.zeros((3, 3)), faces=np.empty((0, 3), np.int64))
    assert len(cleaned(empty).vertices) == 0
