"""``fieldwatch train-many``: what is refused before anything starts, and what is planned."""

import json
import sys

import pytest

from fieldwatch.cli.train_many import trainable

SCENE = '[[scene]]\nname = "a"\npipeline = "video"\n'


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Write a plan, in the folder where the command runs."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "scenes.toml").write_text(text)
        return "scenes.toml"

    return write


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (SCENE + "epochz = 3", ["scene 'a': epochz:", "Unrecognized options: --epochz=3"]),
        (SCENE + 'epochs = "many"', ["scene 'a': epochs:", "invalid literal for int"]),
        (SCENE + "threads = -3\nepochs = 2", ["scene 'a': threads:", "--threads must be 0 or more, got -3"]),
        (SCENE + 'preset = "huge"', ["scene 'a': preset:", "expected one of"]),
        (SCENE + 'data = "nowhere"', ["scene 'a': data = 'nowhere'", "no such file or folder"]),
        (SCENE + "help = true", ["scene 'a': help:", "only requests the help"]),
        (SCENE.replace("video", "splats") + "steps = 3", ["scene 'a': steps:", "`fieldwatch train splats`"]),
        (SCENE.replace("video", "normals") + "epochs = 3", ["scene 'a': epochs:", "`fieldwatch train normals`"]),
        (SCENE + "grid-cells = [4, 2]\ngrid-widths = [8, 8]", ["scene 'a'", "one entry per stage"]),
        (SCENE + SCENE, ["two scenes are named 'a' and 'a'"]),
    ],
    ids=["flag", "value", "bound", "preset", "data", "help", "splats", "normals", "together", "twins"],
)
def test_a_wrong_plan_is_refused_with_scene_and_key_before_anything_starts(plan, refused, tmp_path, text, wanted):
    message = refused("train-many", plan(text), "--ray", "off")
    assert [part for part in wanted if part not in message] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scenes.toml"]


def test_a_missing_plan_is_refused(refused):
    assert "No such file" in refused("train-many", "nowhere.toml")


def test_a_scene_for_which_there_is_no_room_is_refused(plan, refused):
    message = refused("train-many", plan(SCENE + "cpus = 8"), "--ray", "off", "--cpus", "2")
    assert "at most 2, got 8" in message


def test_without_ray_the_message_says_how_to_get_it_or_do_without(plan, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = refused("train-many", plan(SCENE))
    assert "pip install 'fieldwatch[ray]'" in message
    assert "--ray off" in message


def test_a_dry_run_tells_every_command_and_starts_nothing(plan, answer, tmp_path):
    told = answer("train-many", plan(SCENE + 'epochs = 3\nenv = {A = "b c"}'), "--dry-run")
    assert told["scenes"][0]["command"][:4] == ["fieldwatch", "train", "video", "--epochs=3"]
    assert told["scenes"][0]["env"] == {"A": "b c"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scenes.toml"]


def test_the_example_is_a_good_plan(answer, request):
    told = answer("train-many", request.config.rootpath / "examples" / "scenes.toml", "--dry-run")
    assert len(told["scenes"]) == 4


def test_a_plan_trains_what_the_command_line_trains():
    assert trainable() == ("normals", "splats", "video")


def test_a_finished_scene_with_other_flags_is_refused(plan, refused, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    began = {"kind": "try", "scene": "a", "number": 1, "pipeline": "video", "words": ["--epochs=3"]}
    ended = {"kind": "ended", "scene": "a", "number": 1, "state": "healthy"}
    (out / "many.jsonl").write_text(json.dumps(began) + "\n" + json.dumps(ended) + "\n")
    message = refused("train-many", plan(SCENE + "epochs = 4"), "--out", out, "--ray", "off")
    assert "was finished in" in message
    assert "`train video --epochs=3`, and is now `train video --epochs=4`" in message
