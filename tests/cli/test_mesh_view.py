"""fieldwatch mesh view: the page, the picture, the film, and one message per bad input."""

import json

import av
import numpy as np
import pytest
from PIL import Image

from fieldwatch.cli import main
from fieldwatch.recon.mesh import Triangles, write_mesh


@pytest.fixture
def mesh(tmp_path):
    """A colored tetrahedron in a file."""
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 1]])
    faces = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    colors = np.array([[250, 20, 30]] * 4, np.uint8)
    return write_mesh(tmp_path / "shape.ply", Triangles(vertices=places, faces=faces, colors=colors))


def refusal(capsys, *words):
    assert main(["mesh", "view", *map(str, words)]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_the_page_lies_beside_the_mesh(mesh, capsys):
    assert main(["mesh", "view", str(mesh)]) == 0
    page = mesh.with_suffix(".html")
    assert str(page) in capsys.readouterr().out
    text = page.read_text("utf-8")
    assert "<title>shape.ply: " in text
    assert '{"name":"triangles","value":"4"},' in text
    assert '{"name":"watertight","value":"yes"},' in text
    assert sorted(path.name for path in mesh.parent.iterdir()) == ["shape.html", "shape.ply"]


def test_page_picture_and_film_where_they_are_wanted(mesh, tmp_path, capsys):
    out = tmp_path / "a" / "p.html"
    still = tmp_path / "b" / "s.png"
    film = tmp_path / "c" / "f.mp4"
    words = f"--still {still} --film {film} --size 40 --seconds 0.2 --up 0 1 0 --json".split()
    assert main(["mesh", "view", str(mesh), "-o", str(out), *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["files"] == {"page": str(out), "still": str(still), "film": str(film)}
    assert answer["facts"]["extent"] == "1 x 2 x 1"
    assert answer["facts"]["colors"] == "of vertices"
    assert out.stat().st_size > 1000
    assert np.asarray(Image.open(still)).shape == (80, 160, 3)
    with av.open(str(film)) as container:
        assert len(list(container.decode(video=0))) == 5
    assert not mesh.with_suffix(".html").exists()


def test_up_turns_page_and_picture(mesh, tmp_path):
    stills = []
    pages = []
    for number, up in enumerate(("0 0 1", "0 0 -1")):
        still = tmp_path / f"{number}.png"
        page = tmp_path / f"{number}.html"
        words = ["-o", str(page), "--still", str(still), "--size", "24", "--up", *up.split()]
        assert main(["mesh", "view", str(mesh), *words]) == 0
        stills.append(still.read_bytes())
        pages.append(page.read_text("utf-8"))
    assert stills[0] != stills[1]
    assert pages[0] != pages[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-o page.txt", "-o must be a file that ends in .html"),
        ("--still s.jpg", "--still must be a file that ends in .png"),
        ("--film f.gif", "--film must be a file that ends in .mp4"),
        ("--size 0", "--size must be 1 to 4096 pixels, as in 720, got 0"),
        ("--seconds 0", "as in 6, got 0"),
        ("--seconds nan", "as in 6, got nan"),
        ("--up 0 0 0", "for +z, got 0.0 0.0 0.0"),
        ("--up nan 0 0", "for +z, got nan 0.0 0.0"),
    ],
)
def test_wishes_that_make_no_sense_are_refused_and_nothing_is_written(mesh, capsys, words, message):
    assert message in refusal(capsys, mesh, *words.split())
    assert [path.name for path in mesh.parent.iterdir()] == ["shape.ply"]


def test_a_mesh_that_is_not_there_is_named(tmp_path, capsys):
    assert "none.ply does not exist" in refusal(capsys, tmp_path / "none.ply")


def test_a_mesh_without_faces_is_refused(tmp_path, capsys):
    path = tmp_path / "bare.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\n")
    assert "face" in refusal(capsys, path)
    assert not path.with_suffix(".html").exists()


def test_a_place_that_cannot_be_written_is_named(mesh, tmp_path, capsys):
    (tmp_path / "file").write_text("not a folder")
    assert "file" in refusal(capsys, mesh, "-o", tmp_path / "file" / "page.html")
