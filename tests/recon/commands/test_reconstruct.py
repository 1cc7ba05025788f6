"""``fieldwatch reconstruct``: stages by input, refusals, and a reconstruction that is interrupted and continued."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
from PIL import Image

from fieldwatch import InputError
from fieldwatch.cli import main
from fieldwatch.recon.commands.reconstruct.flags import ReconstructFlags
from fieldwatch.recon.commands.reconstruct.page import account_of
from fieldwatch.recon.commands.reconstruct.record import Record, StageRecord
from fieldwatch.recon.commands.reconstruct.stages import kind_of_input, stages_of

ROOT = Path(__file__).parents[3]
PHOTOS = ROOT / "data" / "real" / "colmap_plush"
TINY = ("--coarse-iterations", "1000", "--longer-side", "48", "--turntable", "0")


def stages(data, out, *, on_gpu=False, goal=None):
    chosen = ReconstructFlags(data=data, out=out, goal=goal)
    return stages_of(chosen, kind_of_input(data), ["--growth-cap", "900"], on_gpu=on_gpu)


def normal_maps(folder):
    for name in ("normal_camera_space_GT", "mask"):
        (folder / name).mkdir(parents=True)
    return folder


def test_photos_with_cameras_need_no_camera_stage(tmp_path):
    found = stages(PHOTOS, tmp_path / "out")
    assert [stage.name for stage in found] == ["train", "mesh", "texture", "view"]
    words = found[0].words({})
    assert words[words.index("--data") + 1] == str(PHOTOS)
    assert words[words.index("--preset") + 1] == "cpu"
    assert words[-3:] == ["--growth-cap", "900", "--json"]


def test_photos_alone_begin_with_their_cameras(tmp_path):
    found = stages(PHOTOS / "images", tmp_path / "out", goal="splats", on_gpu=True)
    assert [stage.name for stage in found] == ["cameras", "train"]
    scene = str(tmp_path / "out" / "scene")
    assert scene in found[0].words({})
    words = found[1].words({})
    assert words[words.index("--data") + 1] == scene
    assert words[words.index("--device") + 1] == "cuda"


def test_masks_are_made_by_the_command_of_the_cameras(tmp_path):
    chosen = ReconstructFlags(data=PHOTOS / "images", out=tmp_path / "out", masks=True, frames=40)
    found = stages_of(chosen, "capture", [], on_gpu=False)
    assert [stage.name for stage in found] == ["cameras", "masks", "train", "mesh", "texture", "view"]
    cameras, masks = (stage.words({}) for stage in found[:2])
    assert [word for word in masks if word != "--masks"] == cameras
    assert "--masks" in masks
    assert "--masks" not in cameras


def test_masks_are_refused_for_photos_with_cameras_and_normal_maps(tmp_path, capfd):
    said = refused(capfd, PHOTOS, "-o", tmp_path / "out", "--masks")
    assert "-- --masks FOLDER" in said
    assert str(PHOTOS / "masks") in said
    assert "normal maps" in refused(capfd, normal_maps(tmp_path / "maps"), "-o", tmp_path / "out", "--masks")
    assert not (tmp_path / "out").exists()


def test_masks_can_be_left_out_until_a_stage_has_used_them(tmp_path):
    with_masks = ReconstructFlags(data=PHOTOS / "images", out=tmp_path, masks=True)
    without = ReconstructFlags(data=PHOTOS / "images", out=tmp_path)
    record = Record.open(with_masks, TINY)
    cameras = StageRecord(words=["data"], seconds=1.0, code=0, outcome={})
    record.add("cameras", cameras)
    assert Record.open(without, TINY).stages == {"cameras": cameras}
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match=r"masks .*True.*False"):
        Record.open(without, TINY)
    (tmp_path / "run").rmdir()
    record.add("masks", cameras)
    with pytest.raises(InputError, match=r"masks .*True.*False"):
        Record.open(without, TINY)


def test_a_record_from_before_masks_is_continued(tmp_path):
    chosen = ReconstructFlags(data=PHOTOS, out=tmp_path)
    record = Record.open(chosen, TINY)
    del record.settings["masks"]
    stage = StageRecord(words=["train"], seconds=1.0, code=0, outcome={})
    record.add("train", stage)
    assert Record.open(chosen, TINY).stages == {"train": stage}


def test_a_record_from_before_processor_times_is_continued(tmp_path):
    chosen = ReconstructFlags(data=PHOTOS, out=tmp_path)
    record = Record.open(chosen, TINY)
    record.add("train", StageRecord(words=["train"], seconds=2.0, code=0, outcome={}, processor_seconds=1.5))
    assert Record.open(chosen, TINY).stages["train"].processor_seconds == 1.5
    path = tmp_path / "reconstruct.json"
    stored = json.loads(path.read_text())
    del stored["stages"]["train"]["processor_seconds"]
    path.write_text(json.dumps(stored))
    assert Record.open(chosen, TINY).stages["train"].processor_seconds == 0


def test_the_page_says_how_far_masks_agree(tmp_path):
    chosen = ReconstructFlags(data=PHOTOS / "images", out=tmp_path, masks=True)
    record = Record.open(chosen, TINY)
    found = {"agreement": {"a.jpg": 0.95, "b.jpg": 0.5, "c.jpg": 0.91}, "separation": 0.83, "replaced": ["b.jpg"]}
    record.stages["masks"] = StageRecord(words=["data"], seconds=1.0, code=0, outcome={"masks": found})
    page = json.dumps(account_of(chosen, stages_of(chosen, "capture", [], on_gpu=False), record))
    for fact in ("91% (median)", "50% (b.jpg)", "83%"):
        assert fact in page


def test_normal_maps_are_trained_as_a_surface(tmp_path):
    found = stages(normal_maps(tmp_path / "maps"), tmp_path / "out")
    assert [stage.name for stage in found] == ["train", "mesh", "view"]
    assert found[0].words({})[:2] == ["train", "normals"]
    assert "/maps/surface.glb" in found[2].words({"mesh": {"file": "/maps/surface.glb"}})


def test_later_stages_use_the_files_of_earlier_ones(tmp_path):
    *_, texture, view = stages(PHOTOS, tmp_path / "out")
    outcomes = {
        "mesh": {"quality": {"level0.3": {}}, "files": {"level0.3": "/m.ply"}},
        "texture": {"files": {"glb": "/t.glb"}},
    }
    assert "/m.ply" in texture.words(outcomes)
    assert "/t.glb" in view.words(outcomes)


@pytest.mark.parametrize(("closes", "flags"), [(True, []), (False, ["--open"])])
def test_the_page_grades_an_open_surface_as_such(tmp_path, closes, flags):
    *_, view = stages(PHOTOS, tmp_path / "out")
    words = view.words({"mesh": {"should_close": closes}, "texture": {"files": {"glb": "/t.glb"}}})
    assert [word for word in words if word == "--open"] == flags


@pytest.mark.parametrize(("goal", "hint"), [("normals", "--for mesh"), ("mesh", "leave --for out")])
def test_a_goal_that_the_input_cannot_give_is_refused(tmp_path, goal, hint):
    data = PHOTOS if goal == "normals" else normal_maps(tmp_path / "maps")
    with pytest.raises(InputError, match=hint):
        stages(data, tmp_path / "out", goal=goal)


def refused(capfd, *arguments):
    assert main(["reconstruct", *map(str, arguments)]) == 2
    return capfd.readouterr().err


def test_bad_input_writes_nothing(tmp_path, capfd):
    out = tmp_path / "out"
    assert "missing.mp4" in refused(capfd, tmp_path / "missing.mp4", "-o", out)
    assert "--frames 2" in refused(capfd, PHOTOS / "images", "-o", out, "--frames", "2")
    copy = shutil.copytree(PHOTOS, tmp_path / "photos")
    assert "input folder" in refused(capfd, copy, "-o", copy / "result")
    assert not out.exists()
    assert not (copy / "result").exists()


def test_a_folder_of_something_else_is_refused(tmp_path, capfd):
    (tmp_path / "notes.txt").write_text("mine")
    assert "not empty" in refused(capfd, PHOTOS, "-o", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_other_settings_or_another_input_are_refused(tmp_path, capfd):
    copy = shutil.copytree(PHOTOS, tmp_path / "photos")
    out = tmp_path / "out"
    out.mkdir()
    Record.open(ReconstructFlags(data=copy, out=out), TINY).write()
    assert "seed was 0, now 1" in refused(capfd, copy, "-o", out, "--seed", "1", "--", *TINY)
    assert "training was" in refused(capfd, copy, "-o", out)
    (copy / "images" / "extra.jpg").write_bytes(b"")
    assert "has changed" in refused(capfd, copy, "-o", out, "--", *TINY)
    (out / "reconstruct.json").write_text("{")
    assert "damaged" in refused(capfd, copy, "-o", out, "--", *TINY)


def test_the_record_returns_what_was_written(tmp_path):
    chosen = ReconstructFlags(data=PHOTOS, out=tmp_path)
    record = Record.open(chosen, TINY)
    stage = StageRecord(words=["train"], seconds=1.5, code=1, outcome={"files": {"film": "/f.mp4"}})
    record.add("train", stage)
    again = Record.open(chosen, TINY)
    assert again.stages == {"train": stage}
    assert again.file_of("train", "film") == "/f.mp4"
    assert again.file_of("train", "page") == again.file_of("mesh", "film") == ""


def test_an_interrupted_reconstruction_continues(start, tmp_path):
    out = tmp_path / "out"
    command = ("reconstruct", PHOTOS, "-o", out, "--for", "splats", "--json", "--", *TINY)
    first = start(*command)
    journal = out / "run" / "journal.jsonl"
    while not (journal.exists() and journal.stat().st_size) and first.poll() is None:
        time.sleep(0.02)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 130, said
    # The training saved before it ended, and the second call resumes it.
    assert any((out / "run" / "checkpoints").glob("step_*"))
    assert json.loads((out / "reconstruct.json").read_text())["stages"] == {}
    second = start(*command)
    printed, said = second.communicate(timeout=240)
    assert second.returncode in {0, 1}, said
    outcome = json.loads(printed)
    assert Path(outcome["files"]["Gaussians"]).is_file()
    assert Path(outcome["files"]["page"]).read_text().startswith("<!doctype html>")
    segments = json.loads((out / "run" / "run.json").read_text())["segments"]
    assert segments[-1]["step"] > 0
    # Nothing is left to do: the third call starts no command.
    third = start(*command)
    printed, said = third.communicate(timeout=120)
    assert json.loads(printed)["files"] == outcome["files"]
    assert "done earlier" in said


def test_the_page_shows_what_the_cameras_stage_found(tmp_path):
    sheet = tmp_path / "sheet.png"
    Image.new("RGB", (30, 20)).save(sheet)
    # The keys are those that `fieldwatch data photos --json` prints.
    found = {"registered": 24, "photos": 25, "reprojection_error": 0.481, "points": 4321}
    outcome = found | {"files": {"contact_sheet": str(sheet)}}
    chosen = ReconstructFlags(data=PHOTOS / "images", out=tmp_path / "out")
    record = Record.open(chosen, ())
    record.stages["cameras"] = StageRecord(words=["data", "photos"], seconds=1.0, code=0, outcome=outcome)
    account = account_of(chosen, stages_of(chosen, "capture", (), on_gpu=False), record)
    panels = {panel["id"]: panel for panel in account["panels"]}
    assert panels["pictures"]["items"][0]["src"].startswith("data:image/jpeg;base64,")
    assert panels["cameras"]["facts"][0]["value"] == "24 of 25"
    assert account["verdict"]["level"] == "running"
