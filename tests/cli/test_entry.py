import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fieldwatch.cli import main
from fieldwatch.cli.commands import all_commands

SRC = Path(__file__).parents[2] / "src"


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name.split()[0] in out for name in all_commands())


@pytest.mark.parametrize("name", all_commands())
def test_every_command_explains_itself_with_an_example(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*name.split(), "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert f"fieldwatch {name}" in out
    assert "Example" in out


def test_no_command_explains_the_program(capsys):
    assert main([]) == 0
    assert "fieldwatch train video" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fieldwatch ")


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("inference runs/bunny", {"infer normals", "infer splats", "infer video"}),
        ("infer video2", {"infer video"}),
        ("train", {"train normals", "train splats", "train video"}),
        ("trian normal", {"train normals"}),
        ("reprot runs/bunny", {"report"}),
        ("splats", {"train splats", "infer splats", "convert splats"}),
        ("xyzzy", set()),
    ],
)
def test_an_unknown_command_names_those_that_may_be_meant(line, near, fieldwatch):
    code, _, message = fieldwatch(*line.split())
    assert code == 2
    hint = message.partition(" Commands:")[0]
    assert set(re.findall("`fieldwatch (.*?)`", hint)) == near


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m fieldwatch train video --help | head -1; exit ${{PIPESTATUS[0]}}"
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
