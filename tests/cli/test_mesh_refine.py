"""fieldwatch mesh refine: from a run and a mesh to a run that all other commands open."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fieldwatch import Checkpoints
from fieldwatch.cli.kit import BadInput
from fieldwatch.recon.commands.splats import mesh_refine
from fieldwatch.recon.commands.splats.flags import refine_preset
from fieldwatch.recon.data import read_gaussian_ply
from fieldwatch.recon.mesh import Triangles, read_mesh, write_mesh
from fieldwatch.recon.pipelines.splats import REFINE_PRESETS

TINY = "--device cpu --threads 1 --turntable 0 --iterations 6 --test-iterations 3 --degree 1".split()


def plate(size=9):
    """A square grid in the middle of the built-in scene, a little above its plate."""
    across = np.linspace(-1.0, 1.0, size)
    places = np.stack(np.meshgrid(across, across, [0.1], indexing="ij"), -1).reshape(-1, 3)
    corner = (np.arange(size - 1)[:, None] * size + np.arange(size - 1)).reshape(-1)
    lower = np.stack([corner, corner + size, corner + 1], 1)
    upper = np.stack([corner + size, corner + size + 1, corner + 1], 1)
    return Triangles(vertices=places, faces=np.concatenate([lower, upper]))


@pytest.fixture
def mesh(tmp_path) -> Path:
    return write_mesh(tmp_path / "plate.ply", plate())


def test_a_refinement_is_a_run_that_other_commands_open(splats, mesh, fieldwatch, answer, refused):
    code, out, _ = fieldwatch("mesh", "refine", splats, mesh, *TINY, "--refinement-time", "short", "-g", 3)
    assert code in (0, 1), out
    folder = splats / "refined" / "plate-short"
    assert "128 triangles, 3 Gaussians" in " ".join(out.split())
    refined = read_mesh(folder / "products" / "refined_mesh.ply")
    assert (len(refined.faces), refined.colors is None) == (128, False)

    scored = answer("eval", folder, "--checkpoint", "last", "--device", "cpu")
    assert scored["metrics"]["Test/num_gaussians_K"] == pytest.approx(0.384)
    exported = answer("export", folder, "--to", "ply", "--checkpoint", "last", "--device", "cpu")
    assert len(read_gaussian_ply(exported["file"]).means) == exported["gaussians"] == 384
    answer("export", folder, "--to", "pt", "-o", folder / "x.pt", "--checkpoint", "last", "--device", "cpu")
    assert "_surface_mesh_faces" in torch.load(folder / "x.pt", weights_only=True)["state_dict"]
    drawn = answer("infer", "splats", folder, "--views", "test", "--checkpoint", "last", "--device", "cpu")
    assert len(drawn["files"]) == 2
    code, out, _ = fieldwatch("health", folder)
    assert (code in (0, 1), "finished" in out) == (True, True)
    code, out, _ = fieldwatch("resume", folder)
    assert "--iterations" in " ".join(out.split())
    assert "opens splats runs" in refused("mesh", "refine", folder, mesh)


def test_an_unfinished_refinement_is_resumed(splats, mesh, fieldwatch):
    folder = splats.parent / "mine"
    fieldwatch("mesh", "refine", splats, mesh, *TINY, "--out", folder, "--checkpoint-interval", 2)
    for path in (folder / "checkpoints").glob("*6"):
        shutil.rmtree(path)
    assert max(Checkpoints(folder / "checkpoints").steps()) == 4
    manifest = json.loads((folder / "run.json").read_text())
    del manifest["sha256"]
    (folder / "run.json").write_text(json.dumps(manifest | {"state": "running"}))
    code, _, message = fieldwatch("resume", folder)
    assert code in (0, 1), message
    assert max(Checkpoints(folder / "checkpoints").steps()) == 6
    mesh.unlink()
    (folder / "run.json").write_text(json.dumps(manifest | {"state": "running"}))
    code, _, message = fieldwatch("resume", folder)
    assert code == 2
    assert f"the mesh {mesh}," in " ".join(message.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--preset", "quick"), "--preset 'quick' is not known: expected one of short, medium, long, parity"),
        (("--first-colors", "vertices"), "has no vertex colors"),
        (("--checkpoint", "12"), "there is no checkpoint of step 12"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(splats, mesh, refused, words, message):
    assert message in refused("mesh", "refine", splats, mesh, *TINY, *words)
    assert not (splats / "refined").exists()


def test_exactly_the_presets_of_the_error_are_accepted():
    with pytest.raises(BadInput) as caught:
        refine_preset(["--preset", "quick"])
    listed = str(caught.value).partition("expected one of ")[2].split(", ")
    assert listed == list(REFINE_PRESETS)
    for name in listed:
        assert mesh_refine.parse(["r", "m", "--preset", name])[0].preset == name
    with pytest.raises(BadInput):
        mesh_refine.parse(["r", "m", "--preset", "default"])


def test_a_mesh_out_of_sight_and_a_folder_without_a_run_are_refused(splats, mesh, refused, tmp_path):
    away = write_mesh(tmp_path / "away.ply", replace(plate(), vertices=plate().vertices + 500))
    assert "4 training photos" in refused("mesh", "refine", splats, away, *TINY)
    assert "holds no run" in refused("mesh", "refine", tmp_path, mesh, *TINY)
    assert "does not exist" in refused("mesh", "refine", splats, tmp_path / "none.ply", *TINY)


def test_help_says_what_it_makes(fieldwatch):
    code, out, _ = fieldwatch("mesh", "refine", "--help")
    assert code == 0
    assert all(word in out for word in ("refined_mesh.ply", "--gaussians-per-triangle", "--normal-consistency-weight"))


def test_words_of_the_original_mean_the_same():
    ours = "r m --preset long --gaussians-per-triangle 6 --normal-consistency-weight 0.2 --iterations 9".split()
    theirs = "r m --refinement_time long -g 6 --normal_consistency_factor 0.2 -f 9".split()
    assert vars(mesh_refine.parse(theirs)[0]) == vars(mesh_refine.parse(ours)[0])
    assert mesh_refine.parse(ours)[0].refinement.gaussians_per_triangle == 6
    assert mesh_refine.parse(theirs)[1].iterations == 15_000
