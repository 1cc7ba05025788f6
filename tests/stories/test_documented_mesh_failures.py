"""Failures that SuGaR's users report on the way from Gaussians to a mesh: the working path, or the clear message.

docs/failures.md lists all of them with their tests.
"""

import contextlib
import io
import json
from dataclasses import fields

import numpy as np
import pytest
import torch

from fieldwatch.cli import main
from fieldwatch.recon.data import SolidScene
from fieldwatch.recon.mesh import mesh_quality, read_mesh
from fieldwatch.recon.pipelines.splats import ExtractOptions, Gaussians, Rows, SplatModel, SplatsConfig, prepare_scene
from fieldwatch.recon.pipelines.splats.start import start_run

CONFIG = SplatsConfig(views=8, held_out=0, device="cpu", schedule_scale=0.001)
RESOLUTION = 48
COARSE = f"--resolution {RESOLUTION} --points 20000 --no-pictures".split()
EMPTY_BOX = "--bbox 0 0 2.5 0.2 0.2 2.7".split()
"""Above everything in the scene."""


def on_the_surface(count=12_000):
    """Flat opaque Gaussians on the true surface of the built-in scene, as a good training leaves them."""
    solid = SolidScene(0)
    points = solid.surface_points(count)
    steps = 1e-4 * torch.eye(3, dtype=torch.float64)
    slopes = [solid.distance(points + step) - solid.distance(points - step) for step in steps]
    x, y, z = torch.nn.functional.normalize(torch.stack(slopes, -1), dim=-1).float().unbind(-1)
    turns = torch.stack([1 + z, -y, x, torch.zeros(count)], -1)  # from the z axis to the normal; not normalized
    rows = {
        "means": points.float(),
        "log_scales": torch.tensor([0.03, 0.03, 0.003]).log().repeat(count, 1),
        "quaternions": torch.where(turns.norm(dim=-1, keepdim=True) > 1e-3, turns, torch.tensor([0.0, 1.0, 0.0, 0.0])),
        "opacity_logits": torch.full((count,), 4.0),
        "constant": torch.zeros(count, 3),
        "rest": torch.zeros(count, 0, 3),
    }
    return Gaussians(Rows(**rows))


def left_behind(folder, gaussians):
    """The folder of a run that has not come to its end: checkpoints, and no product of a later stage."""
    scene = prepare_scene(CONFIG)
    model = SplatModel(gaussians, scene.background)
    with start_run(CONFIG, scene, folder, sinks=()) as run:
        run.track(**model.checkpoint_items())
        run.resume()
        for _ in run.steps(2):
            run.save_after_step({"psnr": 1.0})
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return left_behind(tmp_path_factory.mktemp("trained") / "run", on_the_surface())


def extracted(folder, out, *words):
    """The outcome of an extraction, and the mesh."""
    printed = io.StringIO()
    command = ["mesh", "extract", folder, "--out", out, *COARSE, *words, "--json"]
    with contextlib.redirect_stdout(printed):
        code = main([str(word) for word in command])
    assert code == 0, printed.getvalue()
    answer = json.loads(printed.getvalue())
    return answer, read_mesh(answer["files"]["level0.3"])


@pytest.fixture(scope="module")
def usual(trained, tmp_path_factory):
    """An extraction without further flags; nobody may change it."""
    return extracted(trained, tmp_path_factory.mktemp("usual"))


@pytest.fixture
def extract(trained, tmp_path):
    """Extract with further flags."""
    return lambda *words: extracted(trained, tmp_path / "mesh", *words)


@pytest.fixture
def refused(trained, tmp_path, capsys):
    """Run a command that has to be refused; return its message."""

    def run(*words, folder=trained):
        try:
            code = main([str(word) for word in ("mesh", "extract", folder, "--out", tmp_path / "mesh", *words)])
        except SystemExit as stopped:
            code = stopped.code
        printed = capsys.readouterr()
        assert code == 2, printed.err
        assert "Traceback" not in printed.err
        return " ".join(printed.err.split())

    return run


def away(mesh):
    """Distances of the vertices to the true surface, in shares of the scene's width."""
    return SolidScene(0).distance(torch.from_numpy(mesh.vertices)).abs().numpy() / 3.2


def test_an_empty_background_is_said_and_the_foreground_comes_out(extract):
    """There: 'Point cloud has no normals' ended the extraction (#20, #62)."""
    answer, mesh = extract("--background", "--bbox", -9, -9, -9, 9, 9, 9)
    assert any("the background has 0 surface points" in note and "skipped" in note for note in answer["notes"])
    assert len(mesh.faces) > 500
    assert away(mesh).mean() < 1 / RESOLUTION


def test_an_empty_foreground_is_said_and_the_background_comes_out(extract):
    answer, mesh = extract(*EMPTY_BOX, "--background")
    assert any("the foreground has 0 surface points" in note and "--bbox" in note for note in answer["notes"])
    assert len(mesh.faces) > 500


def test_nothing_at_all_is_one_message_that_says_both(refused):
    message = refused(*COARSE, *EMPTY_BOX)
    assert "no surface" in message
    assert "the foreground has 0 surface points" in message


def test_transparent_gaussians_have_no_surface_and_the_message_says_so(tmp_path, refused):
    faint = on_the_surface(200)
    faint.opacity_logits.data.fill_(-2.0)
    message = refused(*COARSE, folder=left_behind(tmp_path / "faint", faint))
    assert "none of the 200 Gaussians" in message
    assert "0.5 (maximum: 0.12)" in message
    assert "train longer" in message


def test_vertices_are_vertices_and_triangles_are_triangles(extract):
    """There: 'one million vertices' was the number of triangles, of each part for itself."""
    _, mesh = extract("-v", "700")
    assert 350 < len(mesh.vertices) <= 700
    _, mesh = extract("--triangles", "900")
    assert 450 < len(mesh.faces) <= 900


def test_every_resolution_gives_the_surface(usual, extract):
    """There: at its default of half the resolution the extraction ended with a mismatch of tensor sizes."""
    coarse, fine = (extract("--resolution", resolution)[1] for resolution in (33, 70))
    assert away(coarse).mean() < 1 / 33
    assert away(fine).mean() < 1 / 70
    assert away(fine).mean() < away(usual[1]).mean() < away(coarse).mean()


def test_what_is_moved_to_the_points_has_neither_doubles_nor_turned_faces(usual):
    """There: projection onto the nearest points made duplicates and flipped triangles."""
    quality = mesh_quality(usual[1])
    assert quality.n_duplicate_vertices == quality.n_degenerate_triangles == quality.n_flipped_normals == 0
    assert quality.faces_outward is not False


def test_a_run_that_died_later_is_extracted_from_any_of_its_checkpoints(usual, extract):
    """There: how to go on from 15000.pt once a later stage had died is asked again and again (#41)."""
    answer, mesh = extract("--checkpoint", "1")
    assert (answer["step"], usual[0]["step"]) == (1, 2)
    # nothing was trained from the one to the other: the same mesh, to the bit
    assert np.array_equal(mesh.vertices, usual[1].vertices)
    assert np.array_equal(mesh.faces, usual[1].faces)


def test_memory_that_does_not_suffice_is_said_before_it_is_taken(refused):
    """There: the machine ran out of memory at resolution and point counts written into the source (#22, #58, #118)."""
    message = refused("--memory", "0.1")
    assert "--memory 0.1 GiB" in message
    assert "give at least" in message


def test_holes_bumps_and_detail_have_flags(capsys):
    """There: quantile, depth and outlier ratio are edited in the source (#75, #105, #132, #137, #194)."""
    with pytest.raises(SystemExit):
        main(["mesh", "extract", "--help-all"])
    words = set(capsys.readouterr().out.replace(",", " ").replace("|", " ").split())
    names = ["--" + each.name.replace("_", "-") for each in fields(ExtractOptions)]
    assert [name for name in names if name not in words] == []
    assert {"--trim", "--resolution", "--unseen", "--least-piece", "--triangles", "--points"} <= set(names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--surface-level", "1.5"), r"--surface-level must hold densities"),
        (("--bboxmin", "(0,0,0)"), r"give --bboxmin and --bboxmax"),
        (("--bbox", *"0 0 0 -1 1 1".split()), r"--bbox must have low < high"),
        (("--trim", "1"), r"--trim must be at least 0 and less than 1, got 1.0"),
        (("--triangles", "100", "--vertices", "100"), r"--triangles and --vertices cannot"),
    ],
)
def test_settings_that_mean_nothing_are_named(words, message, refused):
    assert message in refused(*words)
