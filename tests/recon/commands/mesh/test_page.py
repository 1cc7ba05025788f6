"""The page of a mesh: it holds the mesh, needs no network, and shows names as text."""

import base64
import json
import re

import numpy as np
import pytest

from fieldwatch.recon.commands.mesh.page import mesh_account, mesh_kind
from fieldwatch.recon.mesh import Triangles, grade_mesh, mesh_quality, write_glb
from fieldwatch.report.page import report_page


@pytest.fixture(scope="module")
def mesh():
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    faces = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    return Triangles(vertices=places, faces=faces)


@pytest.fixture(scope="module")
def page_of(mesh):
    def page_of(title, figures):
        grade = grade_mesh(mesh_quality(mesh))
        account = mesh_account(mesh, title=title, grade=grade, figures=figures, up=(0.0, 0.0, 1.0))
        return report_page(account, [mesh_kind()])

    return page_of


def embedded(page):
    return json.loads(re.search(r'id="account">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_holds_the_mesh_its_figures_and_its_grade(mesh, page_of):
    account = embedded(page_of("A tetrahedron", {"triangles": "4", "watertight": "yes"}))
    shown, figures = account["panels"]
    assert base64.b64decode(shown["glb"], validate=True) == write_glb(mesh, up=(0.0, 0.0, 1.0))
    assert [tuple(one.values()) for one in figures["facts"]] == [("triangles", "4"), ("watertight", "yes")]
    assert account["verdict"]["title"].startswith(grade_mesh(mesh_quality(mesh)).word)


def test_nothing_is_loaded_from_elsewhere(page_of):
    page = page_of("t", {})
    assert "default-src 'none'" in page
    ours = mesh_kind()
    assert ours.script in page
    assert ours.style in page
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|fetch\(|XMLHttp|innerHTML|eval\(", ours.script + ours.style)


def test_names_are_shown_and_not_run(page_of):
    nasty = '</script><script>alert(1)</script> %%ACCOUNT%% & "quotes"'
    page = page_of(nasty, {nasty: nasty})
    assert "<script>alert" not in page
    assert embedded(page)["panels"][1]["facts"] == [{"name": nasty, "value": nasty}]
