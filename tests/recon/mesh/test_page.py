"""The page of a mesh: whole, without network, and safe whatever it is called."""

import base64
import re

import numpy as np
import pytest

from fieldwatch.recon.mesh import MeshError, Triangles, mesh_page, write_glb


@pytest.fixture
def glb():
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    faces = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    return write_glb(Triangles(vertices=places, faces=faces))


def test_the_page_holds_the_file_itself(glb):
    page = mesh_page(glb, title="A tetrahedron", facts={"triangles": "4", "watertight": "yes"})
    held = re.search(r'<script type="text/plain" id="glb">([^<]*)</script>', page)
    assert base64.b64decode(held[1], validate=True) == glb
    assert "<title>A tetrahedron</title>" in page
    assert re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page) == [("triangles", "4"), ("watertight", "yes")]
    assert "%%" not in page


def test_nothing_is_loaded_from_elsewhere(glb):
    page = mesh_page(glb, title="t", facts={})
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|//[a-z]+\.[a-z]|\bsrc=|\bhref=|@import|fetch\(|XMLHttp", page)


def test_names_are_shown_and_not_run(glb):
    nasty = '</script><script>alert(1)</script> %%GLB%% & "quotes"'
    page = mesh_page(glb, title=nasty, facts={nasty: nasty})
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt; %%GLB%% &amp; &quot;quotes&quot;") == 5
    assert page.count(base64.b64encode(glb).decode()) == 1


def test_other_bytes_are_refused():
    with pytest.raises(MeshError, match="a GLB file"):
        mesh_page(b"ply\nformat ascii 1.0\n", title="t", facts={})
