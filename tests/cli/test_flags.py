"""What the lines of training commands have in common."""

import pytest

from fieldwatch.cli.flags import dashed, preset_of, renamed, seconds_of
from fieldwatch.cli.new_run import new_run
from fieldwatch.cli.output import BadInput

NAMES = {"--scene-path": "--data", "-s": "--data"}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["-s", "x"], ["--data", "x"]),
        (["--scene_path=x_y"], ["--data=x_y"]),
        (["--scene-path", "a=b"], ["--data", "a=b"]),
        (["--other_flag", "x_y"], ["--other_flag", "x_y"]),
    ],
)
def test_flags_are_renamed_and_values_are_not(given, meant):
    assert renamed(given, NAMES) == meant


def test_only_long_flags_get_dashes():
    assert [dashed(word) for word in ("--a_b", "a_b", "-a_b")] == ["--a-b", "a_b", "-a_b"]


@pytest.mark.parametrize("words", [["--preset", "b"], ["--preset=b"], ["--preset", "a", "--preset=b"]])
def test_the_last_preset_wins(words):
    assert preset_of(words, {"default": lambda: 0, "a": lambda: 1, "b": lambda: 2}) == 2


def test_presets_are_named_where_one_is_unknown():
    assert preset_of(["--preset"], {"default": lambda: 7}) == 7
    with pytest.raises(BadInput, match=r"--preset 'c'.* default, a"):
        preset_of(["--preset", "c"], {"default": lambda: 0, "a": lambda: 1})
    assert preset_of([], {"a": lambda: 1, "b": lambda: 2}, default="b") == 2


def test_runs_without_a_folder_lie_by_their_pipeline():
    assert new_run("splats").parts[:2] == ("runs", "splats")


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2 m ", 120)])
def test_times_have_units(text, seconds):
    assert seconds_of("--flag", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0m", "-1m", "10d", "ten", "1e3", "m"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(BadInput, match="--flag"):
        seconds_of("--flag", text)
