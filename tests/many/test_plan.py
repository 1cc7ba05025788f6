"""What a plan may say, and how it is told what it may not."""

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
        ("[[scene", "is no TOML file"),
        ("[defaults]\ncpus = 1", "names no scene"),
        ("scene = 3", "names no scene"),
        ("scene = [3]", "scene 1 is 3: wanted a table"),
        ("defaults = 3\n" + ONE, "defaults is 3: wanted a table"),
        ("[scenes]\n" + ONE, "has scenes at its top"),
        ('[[scene]]\npipeline = "video"', "scene 1: name is None"),
        (ONE.replace('"a"', '"../a"'), "name is '../a': wanted a folder name"),
        (ONE.replace('"a"', '"console"'), "name is 'console'"),
        (ONE + ONE, "two scenes are named 'a' and 'a'"),
        (ONE + ONE.replace('"a"', '"A"'), "two scenes are named 'a' and 'A'"),
        (ONE.replace("video", "nerf"), "scene 'a': pipeline is 'nerf': wanted one of normals, splats, video"),
        (ONE + 'out = "x"', "scene 'a': out is not for a plan"),
        (ONE + "retries = 1.5", "scene 'a': retries is 1.5: wanted a whole number, 0 or more"),
        (ONE + "retries = true", "retries is True"),
        (ONE + "cpus = 0", "cpus is 0: wanted a number, 0.01 or more"),
        (ONE + "cpus = 1.5", "cpus is 1.5: wanted a whole number, or a share below 1"),
        (ONE + "memory = nan", "memory is nan: wanted a number of GiB"),
        (ONE + "timeout = 0", "timeout is 0: wanted a number of seconds"),
        (ONE + "env = {A = 1}", "env.A is 1: wanted text"),
        (ONE + "data = {a = 1}", "data is {'a': 1}: a flag takes"),
        (ONE + "data = []", "data is []: a flag takes"),
    ],
)
def test_what_cannot_be_is_named(read, text, message):
    with pytest.raises(PlanError) as refused:
        read(text)
    assert message in str(refused.value)
