"""fieldwatch mesh texture: files that open, figures that are true, one message per bad input."""

import math
from pathlib import Path

import numpy as np
import pytest
import trimesh

from fieldwatch.recon.commands.mesh.flags import TextureFlags
from fieldwatch.recon.commands.mesh.texture import MANY_FACES, layout_of
from fieldwatch.recon.mesh import Triangles, read_mesh, write_mesh

QUADS = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]


@pytest.fixture
def box(tmp_path):
    """A closed box around the middle of the built-in scene, in a file."""
    places = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (0, 0.8)], float) * 0.6
    faces = np.array([row for a, b, c, d in QUADS for row in ((a, b, c), (a, c, d))])
    return write_mesh(tmp_path / "my box.ply", Triangles(vertices=places, faces=faces))


def test_a_run_and_a_mesh_make_four_files(splats, box, answer):
    got = answer("mesh", "texture", splats, box, "--size", 64, "--device", "cpu")
    files = {kind: Path(place) for kind, place in got["files"].items()}
    assert set(files) == {"obj", "mtl", "png", "glb"}
    assert files["obj"] == (splats / "mesh" / "textured" / "my box.obj").absolute()
    assert {path.name for path in files["obj"].parent.iterdir()} == {path.name for path in files.values()}
    obj = read_mesh(files["obj"])
    glb = read_mesh(files["glb"])
    assert obj.texture.shape == (64, 64, 3)
    assert np.array_equal(obj.texture, glb.texture)
    assert obj.texture.std() > 5
    assert glb.closed
    assert glb.outward is True
    assert glb.vertices[:, 1].min() == pytest.approx(0, abs=0.05)  # what was up (z) is y now
    assert trimesh.load_mesh(files["glb"], process=False).visual.material.baseColorTexture.size == (64, 64)
    assert (got["layout"], got["size"], got["faces"], got["photos"], got["step"]) == ("xatlas", 64, 12, 4, 30)
    assert 0 < got["seen"] < 1  # nobody stood below
    assert got["held_out_photos"] == 2
    assert math.isfinite(got["held_out_psnr"])


def test_renders_squares_and_words(splats, box, fieldwatch, tmp_path):
    words = ("--from", "renders", "--square-size", 16, "--blend", "best", "--out", tmp_path / "here", "--device", "cpu")
    code, out, _ = fieldwatch("mesh", "texture", splats, box, *words)
    assert code == 0
    assert "12 faces, squares, 48 x 48 texels" in out
    assert "the texels seen" in out or "no front" in out
    assert str(tmp_path / "here" / "my box.glb") in out


def test_a_mesh_that_faces_inwards_is_turned(splats, box, answer, tmp_path):
    inwards = write_mesh(tmp_path / "in.ply", read_mesh(box).turned())
    got = answer("mesh", "texture", splats, inwards, "--size", 32, "--device", "cpu")
    assert read_mesh(got["files"]["obj"]).outward is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--layout xatlas --square-size 8", "--square-size 8 needs --layout squares"),
        ("--square-size 0", "--square-size must be at least 1 texel, as in 8, got 0"),
        ("--layout squares --size 11", "use a size of at least 12"),
        ("--size 0", "texture size must be from 1 to 16384"),
        ("--checkpoint 7", "7"),
    ],
)
def test_bad_input_is_one_message(splats, box, refused, words, message):
    assert message in refused("mesh", "texture", splats, box, "--device", "cpu", *words.split())


def test_bad_meshes_and_folders_are_one_message(splats, box, refused, tmp_path):
    line = ("mesh", "texture", splats)
    assert "does not exist" in refused(*line, tmp_path / "no.ply")
    away = write_mesh(
        tmp_path / "away.ply", Triangles(vertices=read_mesh(box).vertices + 500, faces=read_mesh(box).faces)
    )
    assert "these cameras" in refused(*line, away, "--size", 32, "--device", "cpu")
    obj = write_mesh(tmp_path / "a.obj", read_mesh(box))
    assert "overwritten" in refused(*line, obj, "--out", tmp_path, "--device", "cpu")


def test_many_faces_get_squares():
    chosen = TextureFlags(run=Path(), mesh=Path())
    assert layout_of(chosen, MANY_FACES - 1) == ("xatlas", None)
    assert layout_of(chosen, MANY_FACES) == ("squares", None)
    assert layout_of(TextureFlags(run=Path(), mesh=Path(), size=512), MANY_FACES) == ("squares", 512)
