"""Inputs that are temporarily unavailable, and inputs that are wrong."""

import orjson
import pytest

from fieldwatch.monitor import Death, ExitReason, InputPaths
from fieldwatch.record import Manifest


def said(detail, *, cause="bad-input", missing=True):
    return ExitReason(cause=cause, detail=detail, missing=missing)


def cause(paths, words):
    return paths.reclassify(words).cause


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "mnt" / "photos"
    folder.mkdir(parents=True)
    (folder / "a.png").touch()
    return folder


def test_an_input_that_is_not_there_may_be_mounted_late(data):
    paths = InputPaths(["train", "splats", "--data", str(data)])
    data.rename(data.with_name("gone"))
    paths.refresh()
    judged = paths.reclassify(said(f"{data} does not exist"))
    assert judged.cause == "data"
    assert str(data) in judged.detail
    data.with_name("gone").rename(data)
    assert cause(paths, said(f"{data} does not exist")) == "data"  # it came between the death and this look
    paths.refresh()
    assert cause(paths, said(f"{data} does not exist")) == "bad-input"


def test_a_file_that_is_missing_in_a_folder_that_is_there_is_a_damaged_data_set(data):
    paths = InputPaths(["train", "splats", f"--data={data}"])
    assert cause(paths, said(f"{data / 'transforms.json'} does not exist")) == "bad-input"


def test_a_folder_that_was_full_and_is_empty_is_not_mounted(data):
    paths = InputPaths(["train", "splats", f"--data={data}"])
    (data / "a.png").unlink()
    assert cause(paths, said(f"{data} holds no photos", missing=False)) == "data"
    fresh = InputPaths(["train", "splats", f"--data={data}"])
    assert cause(fresh, said(f"{data} holds no photos", missing=False)) == "bad-input"


def test_the_stored_config_of_a_run_names_inputs(data, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    Manifest(config={"data": str(data), "color": "red"}).write(run)
    data.rename(data.with_name("gone"))
    for words in (["resume", str(run)], ["train", "splats", "--out", str(run)]):
        assert cause(InputPaths(words), said(f"{data} does not exist")) == "data"


@pytest.mark.parametrize(
    ("words", "detail"),
    [
        (["train", "splats", "--preset", "cpu"], "cpu does not exist"),
        (["train", "splats", "--epochs", "100"], "--epochs 100: expected 1 to 99"),
        (["-m", "fieldwatch", "resume", "runs/typo"], "runs/typo holds no run to resume: see `fieldwatch train`"),
        (["train", "splats", "--out", "nowhere/run"], "nowhere/run holds no run to resume"),
        (["train", "splats", "--data", "here"], "elsewhere does not exist"),
        (["train", "splats", "--data", "a"], "a-b does not exist, and neither does c/a"),
    ],
)
def test_what_is_no_input_that_is_missing_stays_the_users(words, detail):
    assert cause(InputPaths(words), said(detail)) == "bad-input"


def test_a_refusal_need_not_say_that_a_file_is_missing_but_a_bug_has_to(data):
    paths = InputPaths(["train", "--data", str(data)])
    data.rename(data.with_name("gone"))
    assert cause(paths, said(f"{data} is no video", missing=False)) == "data"
    assert cause(paths, said(f"{data}", cause="exception", missing=True)) == "data"
    assert cause(paths, said(f"{data}", cause="exception", missing=False)) == "exception"
    assert cause(paths, said("--epochs 0: expected 1 or more", missing=False)) == "bad-input"
    assert cause(paths, said(f"{data}", cause="diverged")) == "diverged"
    assert cause(paths, Death(cause="killed", detail=f"{data}")) == "killed"


def test_an_input_that_never_existed_is_mistyped_unless_it_appears(data):
    typo = data.with_name("fotos")
    paths = InputPaths(["train", "--data", str(typo)])
    for missing in (False, True):
        assert cause(paths, said(f"{typo} does not exist", missing=missing)) == "bad-input"
        assert cause(paths, said(f"{typo}", cause="exception", missing=missing)) == "exception"
    data.rename(typo)
    assert cause(paths, said(f"{typo} does not exist")) == "data"


def test_a_damaged_run_json_names_nothing(tmp_path):
    (tmp_path / "run.json").write_bytes(orjson.dumps([]))
    assert cause(InputPaths(["resume", str(tmp_path)]), said("x")) == "bad-input"


def test_a_path_that_cannot_be_one_is_not_there(tmp_path):
    paths = InputPaths(["train", "--data", "a\0b", "--images", "x" * 5000, "--masks", str(tmp_path / "\udc80")])
    assert cause(paths, said("something does not exist")) == "bad-input"
