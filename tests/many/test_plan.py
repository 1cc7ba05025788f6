"""Valid and invalid plans, and their error messages."""

from pathlib import Path

import pytest

from fieldwatch.many import PlanError, read_plan


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "scenes.toml"
        path.write_text(text)
        return read_plan(path, ("normals", "splats", "video"))

    return read


ONE = '[[scene]]\nname = "a"\npipeline = "video"\n'


def test_a_scene_wins_over_its_pipeline_and_that_over_all(read):
    a, b = read(
        '[defaults]\ndevice = "cpu"\nsteps = 1\nretries = 5\nenv = {A = "1", B = "1"}\n'
        "[defaults.normals]\nsteps = 2\nviews = 4\n"
        '[[scene]]\nname = "a"\npipeline = "normals"\nviews = 8\ncpus = 2\nenv = {B = "2"}\n'
        '[[scene]]\nname = "b"\npipeline = "video"\n'
    )
    assert a.arguments == ("--device=cpu", "--steps=2", "--views=8")
    assert (a.cpus, a.retries, a.env) == (2.0, 5, {"A": "1", "B": "2"})
    assert b.arguments == ("--device=cpu", "--steps=1")
    assert b.command(Path("x")) == ("train", "video", "--device=cpu", "--steps=1", "--out", "x", "--resume", "auto")


def test_values_become_the_words_of_a_command_line(read):
    (scene,) = read(ONE + 'grid_cells = [4, 2]\ncsv = true\nwandb = false\nseed = -1\nstages = ["a b", "c"]\nlr = 1e-3')
    numbers = ("--grid-cells", "4", "2", "--csv", "--no-wandb", "--seed=-1")
    assert scene.arguments == (*numbers, "--stages", "a b", "c", "--lr=0.001")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[scene", "is not valid TOML"),
        ("[defaults]\ncpus = 1", "has no scenes"),
        ("scene = 3", "has no scenes"),
        ("scene = [3]", "scene 1 must be a table, [[scene]] followed by key = value lines, got 3"),
        ("defaults = 3\n" + ONE, "defaults must be a table, [defaults] followed by key = value lines, got 3"),
        ("[scenes]\n" + ONE, "has scenes at the top level"),
        ('[[scene]]\npipeline = "video"', "scene 1: name must be a folder name"),
        (ONE.replace('"a"', '"../a"'), "got '../a'"),
        (ONE.replace('"a"', '"console"'), "got 'console'"),
        (ONE + ONE, "two scenes are named 'a' and 'a'"),
        (ONE + ONE.replace('"a"', '"A"'), "two scenes are named 'a' and 'A'"),
        (ONE.replace("video", "nerf"), "scene 'a': pipeline must be one of normals, splats, video, got 'nerf'"),
        (ONE + 'out = "x"', "scene 'a': out cannot be set in a plan"),
        (ONE + "retries = 1.5", "scene 'a': retries must be an integer, at least 0, got 1.5"),
        (ONE + "retries = true", "retries must be an integer, at least 0, got True"),
        (ONE + "cpus = 0", "cpus must be a number, at least 0.01, got 0"),
        (ONE + "cpus = 1.5", "cpus must be an integer or a fraction below 1, got 1.5"),
        (ONE + "memory = nan", "memory must be a number of GiB, at least 0, got nan"),
        (ONE + "timeout = 0", "timeout must be a number of seconds"),
        (ONE + "env = {A = 1}", "env.A must be a string in quotes, got 1"),
        (ONE + "data = {a = 1}", "a list of strings or numbers, got {'a': 1}"),
        (ONE + "data = []", "a list of strings or numbers, got []"),
    ],
)
def test_what_cannot_be_is_named(read, text, message):
    with pytest.raises(PlanError) as refused:
        read(text)
    assert message in str(refused.value)
