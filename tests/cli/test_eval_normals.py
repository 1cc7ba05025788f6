"""fieldwatch eval and export of normals: figures, tables and pictures; meshes, poses and maps for other programs."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data.colmap import read_colmap_model
from fieldwatch.recon.data.normal_maps import read_normal_maps
from fieldwatch.recon.mesh import read_mesh
from fieldwatch.recon.pipelines.normals import evaluate_surface, open_run

CPU = ("--device", "cpu")


@pytest.fixture(scope="module", autouse=True)
def coarse_truth():
    """Fewer cells and points than figures that are to be believed need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fieldwatch.recon.pipelines.normals.start.TRUTH_CELLS", 48)
        patch.setattr("fieldwatch.recon.pipelines.normals.evaluate.SAMPLES", 2000)
        yield


@pytest.fixture(scope="module")
def stored(trained_normals):
    return open_run(trained_normals, "best", device="cpu")


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture)


def test_the_best_checkpoint_is_scored_as_in_training(normals_run, stored, answer):
    got = answer("eval", normals_run, *CPU)
    assert got["step"] == 9
    expected = evaluate_surface(stored.model, stored.scene, stored.config).metrics
    for name in ("Eval/mae", "Eval/mae_held_out", "Eval/iou", "Eval/chamfer_percent"):
        assert got["metrics"][name] == pytest.approx(expected[name], rel=1e-4), name
    figures = json.loads((normals_run / "products" / "eval-9" / "metrics.json").read_text())
    assert figures["metrics"] == pytest.approx(got["metrics"])
    assert figures["poses"] is None
    assert figures["diligent"]["style"] == "diligent"
    assert figures["diligent"]["chamfer"] == got["diligent"]["chamfer"] < 0.1
    with (normals_run / "products" / "eval-9" / "per_view.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["split"] for row in rows] == ["train"] * 3 + ["held_out"]
    pictures = sorted((normals_run / "products" / "eval-9" / "normals").iterdir())
    assert [pixels(path).shape for path in pictures] == [(32, 32, 4)] * 4


def test_the_table_is_printed(normals_run, fieldwatch, tmp_path):
    code, out, _ = fieldwatch("eval", normals_run, "--checkpoint", 4, "--out", tmp_path / "here", *CPU)
    assert code == 0
    assert "mean angular error (degrees)" in out
    assert "held out" in out
    assert "DiLiGenT-MV" in out
    assert str(tmp_path / "here" / "metrics.json") in out


@pytest.mark.parametrize("kind", ["ply", "glb", "obj"])
def test_meshes_at_a_resolution(normals_run, answer, kind):
    got = answer("export", normals_run, "--to", kind, "--resolution", 16, *CPU)
    mesh = read_mesh(normals_run / "products" / f"mesh-9.{kind}")
    assert len(mesh.faces) == got["faces"] > 100


def test_poses_for_other_tools(normals_run, stored, answer, tmp_path):
    got = answer("export", normals_run, "--to", "poses", "-o", tmp_path / "set", *CPU)
    assert got["views"] == 4
    maps = read_normal_maps(tmp_path / "set")
    known = stored.scene.maps
    for view, other in zip(maps.views, known.views, strict=True):
        torch.testing.assert_close(
            view.camera.world_from_camera, other.camera.world_from_camera.double(), atol=1e-6, rtol=0
        )
        assert torch.equal(view.mask, other.mask)
    model = read_colmap_model(tmp_path / "set" / "sparse" / "0")
    images = {image.name: image for image in model.images}
    for view in known.views:
        image = images[f"{view.name}.png"]
        pose = image.world_from_camera.double()
        torch.testing.assert_close(pose, view.camera.world_from_camera.double(), atol=1e-6, rtol=0)
        assert model.lenses[image.camera_id].width == 32


def test_maps_of_all_views(normals_run, stored, answer):
    answer("export", normals_run, "--to", "maps", *CPU)
    folder = normals_run / "products" / "maps-9"
    maps = read_normal_maps(folder)
    both = maps.views[1].valid & stored.scene.maps.views[1].valid
    cosines = (maps.views[1].normals * stored.scene.maps.views[1].normals).sum(-1)[both]
    assert float(torch.rad2deg(cosines.clamp(-1, 1).acos()).mean()) < 25
    assert bool((maps.views[1].depth[maps.views[1].mask] > 0).all())
    assert pixels(folder / "pictures" / "001_depth.png").shape == (32, 32, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("export --to 3dgs", "use --to ply or --to glb or --to obj or --to poses or --to maps"),
        ("export --to ply --resolution 4000", "--resolution must be 2 to 2048"),
        ("export --to poses --resolution 100", "--resolution 100: it applies to meshes"),
        ("export --to ply -o mesh.obj", "name it mesh.ply"),
        ("export --to ply --bits 4", "--bits 4: it applies to runs of video"),
        ("eval --positions-frames 3", "--positions-frames 3: "),
        ("eval --checkpoint 5", "5"),
    ],
)
def test_bad_input_is_one_message(trained_normals, refused, words, message):
    command, *rest = words.split()
    assert message in refused(command, trained_normals, *rest)
