"""Growth does no harm: a far wall is kept, and no score or export is of a model that has just been changed."""

import pytest
import torch

from fieldwatch.cli import main
from fieldwatch.recon.data import open_splat_folder
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.data.solids import forward_photos
from fieldwatch.record import read_events, read_history


@pytest.fixture(scope="module")
def forward(tmp_path_factory):
    """Photos from one side: the cameras stand within a tenth of the depth of the scene."""
    photos = forward_photos(views=7, size=48, points=400)
    places = torch.stack([camera.position for camera in photos.cameras])
    depths = photos.cameras[0].project(photos.points.double())[1]
    assert float(torch.cdist(places, places).max()) < 0.1 * float(depths.median())
    return write_colmap(tmp_path_factory.mktemp("forward") / "scene", photos)


def test_growth_keeps_the_wall_behind_a_forward_facing_scene(forward, tmp_path, small, capsys):
    """Iteration 3000, from which on large Gaussians are pruned, is step 150; growth follows at 160 and 180."""
    words = "-r none --growth-cap 3000 --schedule-scale 0.05 --coarse-iterations 4000 --stats-every 50".split()
    code = main(["train", "splats", "--data", str(forward), "--out", str(tmp_path / "run"), *small, *words])
    assert code in (0, 1), capsys.readouterr().err
    late = [event for event in read_events(tmp_path / "run") if event["kind"] == "growth" and event["step"] >= 150]
    assert [event["step"] for event in late] == [159, 179]
    for event in late:
        assert event["pruned"] < 0.02 * event["before"]
        assert event["too_large"] == 0


def test_no_score_and_no_export_is_of_a_model_that_has_just_changed(tmp_path, small, capsys):
    """Growth is due after 60 steps, where the run evaluates and exports stage 0."""
    words = (
        "--views 6 --schedule-scale 0.02 --surface-from 3000 --coarse-iterations 4000 --test-iterations 3000".split()
    )
    code = main(["train", "splats", "--out", str(tmp_path / "run"), *small, *words])
    assert code in (0, 1), capsys.readouterr().err
    events = list(read_events(tmp_path / "run"))
    changed = [event["step"] for event in events if event["kind"] in ("growth", "reset", "prune")]
    assert changed == [19, 39, 60]
    sizes = read_history(tmp_path / "run")["Model/size"]
    exported = len(open_splat_folder(tmp_path / "run" / "3dgs").gaussians())
    assert exported == int(sizes.values[list(sizes.steps).index(59)])
    grown = next(event for event in events if event["kind"] == "growth" and event["step"] == 60)
    assert grown["after"] != grown["before"]
