"""fieldwatch data photos --masks: the last stage of a capture whose cameras are known."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from fieldwatch.cli import main
from fieldwatch.recon.data import PhotoOptions, read_colmap
from fieldwatch.recon.data.capture import CaptureSettings, collect_photos, find_source, record_for
from fieldwatch.recon.data.colmap.binary import write_cameras, write_images, write_points
from fieldwatch.recon.data.masking import overlap
from fieldwatch.recon.geometry import look_at, matrix_to_quaternion
from object_photos import FOCAL, HEIGHT, WIDTH, model_of, name_of, poses_around, write_object_photos

pytest.importorskip("pycolmap")


def nobody(done, total):
    """Watch no progress."""


def capture_of(folder, poses):
    """Write a capture that is complete but for its masks, with the true cameras; return input, scene and true masks."""
    album, scene = folder / "album", folder / "scene"
    truth = write_object_photos(album, poses)
    settings = CaptureSettings(threads=1)
    record = record_for(scene, find_source(album))
    (scene / "images").mkdir(parents=True)
    chosen = collect_photos(find_source(album), scene / "images", "auto", nobody)
    model = model_of(poses)
    sparse = scene / "sparse" / "0"
    sparse.mkdir(parents=True)
    write_cameras(sparse / "cameras.bin", dict(model.lenses))
    rows = []
    for image in model.images:
        motion = image.world_from_camera.inverse()
        pose = [*matrix_to_quaternion(motion[:3, :3]).tolist(), *motion[:3, 3].tolist()]
        rows.append((image.image_id, image.name, 1, pose))
    write_images(sparse / "images.bin", rows)
    write_points(sparse / "points3D.bin", model.points.positions.float(), model.points.colors)
    camera = {"model": "PINHOLE", "width": WIDTH, "height": HEIGHT, "parameters": [FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2]}
    mapped = {
        "mapper": "global",
        "registered": [{"name": name_of(i), "points": 0} for i in range(len(poses))],
        "missing": [],
        "reprojection_error": 0.0,
        "points": 0,
        "cameras": [camera],
        "models": [len(poses)],
    }
    results = {
        "frames": asdict(chosen),
        "features": {"features": 0},
        "matching": {"matching": "exhaustive", "pairs": 0, "verified": 0},
        "mapping": mapped,
    }
    for stage, result in results.items():
        record.complete(stage, settings, result)
    return album, scene, truth


def run(capsys, *words):
    """Run the command; return exit code, JSON (None without output) and what it said on standard error."""
    code = main(["data", "photos", *map(str, words), "--threads", "1", "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err


def test_masks_are_made_told_shown_and_used(tmp_path, capsys):
    album, scene, truth = capture_of(tmp_path, poses_around())
    code, told, _ = run(capsys, album, "-o", scene, "--masks")
    assert code == 0
    assert set(told["masks"]["agreement"]) == {name_of(i) for i in range(len(truth))}
    assert min(told["masks"]["agreement"].values()) > 0.75
    assert told["masks"]["replaced"] == []
    assert told["masks"]["separation"] > 0.9
    assert told["files"]["masks"] == str(scene / "masks")
    photos = read_colmap(scene, PhotoOptions(held_out=0))
    found = [photo.mask.numpy() > 127 for photo in photos]
    assert min(overlap(mask, true) for mask, true in zip(found, truth, strict=True)) > 0.9
    account = json.loads((scene / "report.html").read_text().split('id="account">')[1].split("</script>")[0])
    rows = next(panel for panel in account["panels"] if panel["kind"] == "table")["rows"]
    assert all(row["mask"] > 0.75 for row in rows)
    with Image.open(scene / "contact_sheet.png") as sheet:
        dark = np.asarray(sheet.convert("L")) < 64
    assert dark.mean() > 0.3


def test_masks_are_made_once_and_go_with_the_flag(tmp_path, capsys):
    album, scene, _ = capture_of(tmp_path, poses_around())
    _, told, _ = run(capsys, album, "-o", scene, "--masks")
    before = {path: path.stat().st_mtime_ns for path in (scene / "masks").iterdir()}
    assert run(capsys, album, "-o", scene, "--masks")[1] == told
    assert {path: path.stat().st_mtime_ns for path in (scene / "masks").iterdir()} == before
    code, told, _ = run(capsys, album, "-o", scene)
    assert (code, told["masks"]) == (0, None)
    assert not (scene / "masks").exists()


def test_a_capture_around_nothing_keeps_its_cameras_and_has_no_masks(tmp_path, capsys):
    poses = [look_at((0.2 * i - 1.3, -2.4, 0.4), (0.2 * i - 1.3, 0.0, 0.0)) for i in range(14)]
    album, scene, _ = capture_of(tmp_path, poses)
    code, told, said = run(capsys, album, "-o", scene, "--masks")
    assert (code, told) == (2, None)
    assert "--masks" in said
    assert not (scene / "masks").exists()
    assert run(capsys, album, "-o", scene)[0] == 0
