"""Meshes whose figures are known."""

from types import SimpleNamespace

import numpy as np
import pytest

from fieldwatch.recon.mesh import Triangles


def icosphere(levels=3, radius=1.0):
    """10 * 4**levels + 2 vertices, 20 * 4**levels faces."""
    g = (1 + 5**0.5) / 2
    places = [(-1, g, 0), (1, g, 0), (-1, -g, 0), (1, -g, 0), (0, -1, g), (0, 1, g)]
    places += [(0, -1, -g), (0, 1, -g), (g, 0, -1), (g, 0, 1), (-g, 0, -1), (-g, 0, 1)]
    faces = [(0, 11, 5), (0, 5, 1), (0, 1, 7), (0, 7, 10), (0, 10, 11), (1, 5, 9), (5, 11, 4), (11, 10, 2)]
    faces += [(10, 7, 6), (7, 1, 8), (3, 9, 4), (3, 4, 2), (3, 2, 6), (3, 6, 8), (3, 8, 9), (4, 9, 5)]
    faces += [(2, 4, 11), (6, 2, 10), (8, 6, 7), (9, 8, 1)]
    places = [np.array(p) / np.linalg.norm(p) for p in places]
    for _ in range(levels):
        faces = _divided(places, faces)
    return Triangles(vertices=radius * np.array(places), faces=np.array(faces, np.int64))


def _divided(places, faces):
    middles = {}
    smaller = []

    def middle(a, b):
        key = (min(a, b), max(a, b))
        if key not in middles:
            middles[key] = len(places)
            places.append((places[a] + places[b]) / np.linalg.norm(places[a] + places[b]))
        return middles[key]

    for a, b, c in faces:
        d = middle(a, b)
        e = middle(b, c)
        f = middle(c, a)
        smaller += [(a, d, f), (b, e, d), (c, f, e), (d, e, f)]
    return smaller


def cone(sides=64, height=2.0):
    """A tip, a rim of radius 1, a middle of the base: 2 * sides faces."""
    angle = 2 * np.pi * np.arange(sides) / sides
    rim = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    places = np.concatenate([rim, [[0, 0, height], [0, 0, 0]]])
    here = np.arange(sides)
    there = (np.arange(sides) + 1) % sides
    mantle = np.stack([here, there, np.full(sides, sides)], axis=1)
    base = np.stack([there, here, np.full(sides, sides + 1)], axis=1)
    return Triangles(vertices=places, faces=np.concatenate([mantle, base]).astype(np.int64))


def patch(size=5):
    """A flat square of size x size squares, two faces each."""
    y, x = np.mgrid[: size + 1, : size + 1].astype(float)
    places = np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=1)
    first = (np.arange(size)[:, None] * (size + 1) + np.arange(size)).ravel()
    lower = np.stack([first, first + 1, first + size + 2], axis=1)
    upper = np.stack([first, first + size + 2, first + size + 1], axis=1)
    return Triangles(vertices=places, faces=np.concatenate([lower, upper]).astype(np.int64))


def torn(mesh):
    """Every face with vertices of its own, as the seams of a texture leave it."""
    faces = np.arange(3 * len(mesh.faces)).reshape(-1, 3)
    return Triangles(vertices=mesh.vertices[mesh.faces.reshape(-1)], faces=faces)


def joined(one, other):
    return Triangles(
        vertices=np.concatenate([one.vertices, other.vertices]),
        faces=np.concatenate([one.faces, other.faces + len(one.vertices)]),
    )


def mobius(sides=12):
    """A strip with one half turn."""
    angle = 2 * np.pi * np.arange(sides) / sides
    places = []
    for a in angle:
        for s in (-0.3, 0.3):
            r = 1 + s * np.cos(a / 2)
            places.append((r * np.cos(a), r * np.sin(a), s * np.sin(a / 2)))
    faces = []
    for i in range(sides):
        a = 2 * i
        b = 2 * i + 1
        c, d = (a + 2, b + 2) if i + 1 < sides else (1, 0)
        faces += [(a, c, b), (b, c, d)]
    return Triangles(vertices=np.array(places), faces=np.array(faces, np.int64))


@pytest.fixture
def forms():
    made = {form.__name__: form for form in (icosphere, cone, patch, torn, joined, mobius)}
    return SimpleNamespace(**made)
