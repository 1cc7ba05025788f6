"""``fieldwatch completion``: what the scripts answer in real shells, quickly, whatever the folders are called."""

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from fieldwatch.cli.commands import flags_of
from fieldwatch.cli.completion_scripts import bash_script, fish_script
from fieldwatch.cli.completion_table import Flag, completed_flags


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Do something."""

    where: tyro.conf.Positional[Path]
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    on: bool = False
    axes: Literal["x", "y"] | None = None
    steps: int | None = None
    paths: tuple[Path, ...] = ()
    pair: tuple[Literal[1, 2], Literal[1, 2]] = (1, 2)
    source: Annotated[str, tyro.conf.arg(name="from")] = "a"


BASH = """
source ./script
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_fieldwatch
for word in "${COMPREPLY[@]}"; do printf '%s\\n' "$word"; done
"""
ZSH = """
compdef() { : }
compadd() { local shown=0 w; for w; do (( shown )) && print -r -- $w; [[ $w == -- ]] && shown=1; done; true }
_files() { print -r -- files }
source ./script
words=("$@") CURRENT=$#
_fieldwatch
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with runs, one of them with a name that a shell would run."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/mine", "runs/with space", "runs/$(touch harm)", "runs/;touch harm;"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mesh.ply").touch()
    return tmp_path


def completed(shell, program, *words):
    """What a shell offers after some words; the last one is not finished."""
    line = {"bash": ["bash", "--norc", "-c"], "zsh": ["zsh", "-f", "-c"]}[shell]
    answer = subprocess.run([*line, program, shell, *words], capture_output=True, text=True, check=True, timeout=20)
    assert answer.stderr == ""
    return answer.stdout.split("\n")[:-1]


@pytest.fixture(params=["bash", "zsh"])
def ask(request, fieldwatch, place):
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on this machine")
    code, script, _ = fieldwatch("completion", request.param)
    assert code == 0
    (place / "script").write_text(script)
    program = {"bash": BASH, "zsh": ZSH}[request.param]
    return lambda *words: [
        word for word in completed(request.param, program, "fieldwatch", *words) if word.startswith(words[-1])
    ]


def test_commands_subcommands_flags_and_choices(ask):
    assert ask("tr") == ["train", "train-many"]
    assert ask("train", "") == ["normals", "splats", "video"]
    assert set(ask("train", "video", "--res")) == {"--resume", "--resize", "--restarts-per-hour"}
    assert {"demo", "small"} <= set(ask("train", "video", "--preset", ""))
    assert ask("train", "video", "--resume", "") == ["auto", "never", "must", "start-over"]
    assert ask("completion", "") == ["bash", "zsh", "fish"]
    assert ask("doctor", "--kind", "no") == ["normals"]
    assert ask("gpu", "--interval", "") == []


def test_run_folders_stay_names(ask, place):
    offered = {*ask("health", ""), *ask("health", "runs/")}
    assert {"runs/mine", "runs/with space", "runs/$(touch harm)", "runs/;touch harm;"} <= offered
    assert ask("health", "runs/m") == ["runs/mine"]
    assert not (place / "harm").exists()


@pytest.mark.machine
def test_bash_offers_files_where_a_command_takes_them_and_answers_at_once(place, fieldwatch):
    (place / "script").write_text(fieldwatch("completion", "bash")[1])
    assert completed("bash", BASH, "fieldwatch", "mesh", "quality", "data/") == ["data/mesh.ply"]
    assert completed("bash", BASH, "fieldwatch", "doctor", "--data", "d") == ["data"]
    assert completed("bash", BASH, "fieldwatch", "eval", "runs/mine", "--device", "=", "cu") == ["cuda"]
    began = time.perf_counter()
    assert completed("bash", BASH, "fieldwatch", "train", "normals", "--poses-f") == ["--poses-from"]
    assert time.perf_counter() - began < 5  # 0.01 s on a quiet machine; a start of Python with torch takes longer
    loaded = subprocess.run(
        ["bash", "--norc", "-c", "source ./script; complete -p fieldwatch"], capture_output=True, text=True, check=True
    )
    assert loaded.stdout == "complete -o filenames -F _fieldwatch fieldwatch\n"


def test_fish_answers(place, fieldwatch):
    if shutil.which("fish") is None:
        pytest.skip("no fish on this machine")
    (place / "script").write_text(fieldwatch("completion", "fish")[1])
    asked = ["fieldwatch tr", "fieldwatch train ", "fieldwatch train video --resu", "fieldwatch health runs/m"]
    program = "source ./script; " + "; ".join(f"complete -C '{line}'" for line in asked)
    answer = subprocess.run(["fish", "-N", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stderr == ""
    words = answer.stdout.splitlines()
    assert words[:6] == ["train", "train-many", "normals", "splats", "video", "--resume"]
    assert "runs/mine" in words


def test_words_that_would_need_quotes_are_left_out():
    flags = {"health": (Flag(name="--ok", takes=("a", "$(b)")), Flag(name="--bad'; rm x", takes="nothing"))}
    assert "$(b)" not in bash_script(flags, ()) + fish_script(flags, ())
    assert "rm x" not in bash_script(flags, ()) + fish_script(flags, ())


def test_an_unknown_shell_is_refused(fieldwatch):
    code, out, message = fieldwatch("completion", "ksh")
    assert (code, out) == (2, "")
    assert "bash" in message


def test_spellings_and_values_come_from_the_types():
    flags = {flag.name: flag.takes for flag in completed_flags(Flags)}
    assert flags == {
        "-h": "nothing", "--help": "nothing", "--help-all": "nothing", "-o": "path", "--out": "path",
        "--on": "nothing", "--no-on": "nothing", "--axes": ("x", "y"), "--steps": "value", "--paths": "path",
        "--pair": ("1", "2"), "--from": "value",
    }  # fmt: skip


def test_presets_complete_by_name():
    flags = {flag.name: flag.takes for flag in completed_flags(flags_of("train video"))}
    assert "small" in flags["--preset"]
    assert flags["--data"] == "path"
    assert flags["--hang-timeout"] == "value"


def test_a_command_without_a_class_of_flags_has_its_help():
    assert [flag.name for flag in completed_flags(None)] == ["-h", "--help", "--help-all"]
