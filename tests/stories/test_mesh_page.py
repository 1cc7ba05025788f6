"""Somebody opens the page of a mesh in a browser, without network: it draws, it listens, or it says why not."""

import re
from dataclasses import replace

import numpy as np
import pytest

from browser import BROWSER, SOFTWARE, open_page
from fieldwatch.recon.mesh import Triangles, write_mesh

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.timeout(300),
]


def box():
    """A cube with a square of the texture for each side: red and green, and blue above."""
    places = np.array([[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)])
    sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = np.array([face for a, b, c, d in sides for face in ((a, b, c), (a, c, d))])
    uvs = np.repeat([[0.1, 0.1], [0.3, 0.1], [0.5, 0.1], [0.7, 0.1], [0.9, 0.1], [0.9, 0.9]], 6, axis=0)
    texture = np.zeros((4, 5, 3), np.uint8)
    texture[:, ::2, 0] = 255
    texture[:, 1::2, 1] = 255
    texture[0] = (0, 0, 255)
    return Triangles(vertices=places, faces=faces, uvs=uvs.reshape(12, 3, 2), texture=texture)


@pytest.fixture
def page_of(tmp_path, finish):
    def page_of(mesh, name):
        path = write_mesh(tmp_path / name, mesh)
        code, _, complaint = finish("mesh", "view", path, "--size", "64")
        assert code == 0, complaint
        return path.with_suffix(".html")

    return page_of


def test_a_textured_mesh_is_drawn_and_keys_change_how(page_of):
    press = (
        "for (const key of ['w','2','ArrowLeft','+'])"
        "figure.querySelector('canvas').dispatchEvent(new KeyboardEvent('keydown',{key,bubbles:true}));"
    )
    state, title, page = open_page(page_of(box(), "box.glb"), *SOFTWARE, script=press)
    assert state["state"] == "drawn"
    assert state["triangles"] == "12"
    assert 0.03 < float(state["covered"]) < 0.6
    assert state["shading"] == "normals"
    assert title.startswith("box.glb: ")
    assert re.search(r'aria-pressed="true"[^>]*>Wireframe', page)


def test_a_bare_mesh_is_drawn_as_clay(page_of):
    bare = replace(box(), uvs=None, texture=None)
    state, _, page = open_page(
        page_of(bare, "bare.ply"), *SOFTWARE, script="0;"
    )  # with a script it waits for the picture
    assert state == {"state": "drawn", "shading": "clay", "triangles": "12", "covered": state["covered"]}
    assert re.search(r"<button[^>]*disabled[^>]*>Color<", page)


def test_without_webgl2_the_page_says_so(page_of):
    state, _, page = open_page(page_of(box(), "box.glb"), "--disable-3d-apis")
    assert state == {"state": "failed"}
    assert "needs WebGL2" in re.search(r'role="alert"[^>]*>(.*?)</p>', page)[1]


def test_a_damaged_page_says_so(page_of):
    page = page_of(box(), "box.glb")
    page.write_text(re.sub(r'("glb":"[^"]{80})[^"]*', r"\1", page.read_text()))
    state, _, text = open_page(page, *SOFTWARE)
    assert state == {"state": "failed"}
    assert "cut short" in re.search(r'role="alert"[^>]*>(.*?)</p>', text)[1]
