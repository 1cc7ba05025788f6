"""fieldwatch view: the page of a file, and one message per bad input."""

from pathlib import Path

import pytest

from fieldwatch.cli import main

FILES = Path(__file__).parents[1] / "fixtures" / "splat_files"


def test_a_page_holds_the_scene_and_says_what_was_left_out(answer, tmp_path):
    page = tmp_path / "new" / "a.html"
    got = answer("view", FILES / "scene.sog", "--page", page, "--most", 100)
    assert got["files"] == {"page": str(page)}
    assert got["facts"]["on this page"] == "100"
    assert "--most" in got["facts"]["left out"]
    text = page.read_text()
    assert '"count":100,' in text
    assert "default-src 'none'" in text


def test_a_mesh_has_its_own_page(answer, tmp_path):
    mesh = tmp_path / "a.obj"
    mesh.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    got = answer("view", mesh, "-o", tmp_path / "a.html")
    assert got["facts"]["triangles"] == "1"
    assert '"kind":"mesh"' in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--page a.png", ".html"),
        ("--page a.html --most 0", "--most"),
        ("--page a.html --up 0 0 0", "--up"),
        ("--host 0.0.0.0", "ssh -L"),
        ("--port 70000", "65535"),
    ],
)
def test_what_is_wrong_for_every_scene_is_refused(capsys, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    assert main(["view", str(FILES / "scene.ply"), *words.split()]) == 2
    assert named in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
