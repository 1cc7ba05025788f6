"""``--help`` of every command: short, grouped, and complete with ``--help-all``."""

import io
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

import pytest
import tyro

from fieldwatch import InputError
from fieldwatch.cli import main
from fieldwatch.cli.commands import all_commands, flags_of
from fieldwatch.cli.flag_help import flag_fields, print_help, read_flags, wants_help
from fieldwatch.cli.train_flags import DATA, LENGTH, MACHINE, METHOD, RECORDS, SAVING, TrainingFlags, flags_of_words
from fieldwatch.recon import losses
from fieldwatch.recon.commands.splats.flags import RefineFlags
from fieldwatch.recon.pipelines.splats import config
from fieldwatch.registry import installed_pipelines

SRC = Path(__file__).parents[2] / "src"
WIDTH = 100
SCREENS = 3 * 40
TITLES = (DATA, METHOD, LENGTH, SAVING, MACHINE, RECORDS)
TRAINED = [each.name for each in installed_pipelines() if not each.trained_by]


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Settings in a field.

    Attributes:
        depth: number of layers.
        width: number of
            channels.
    """

    depth: int = 2
    width: int | None = None


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Settings whose constructor checks one of them.

    Attributes:
        size: size.
    """

    size: int = 1

    def __post_init__(self):
        if self.size == 2:
            raise InputError("--size 2: expected another one")
        if self.size == 3:
            try:
                _ = {}["three"]
            except KeyError as error:
                raise ValueError("a bug") from error


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Checked settings in a field."""

    checked: Checked = field(default_factory=Checked)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Do something.

    Example: do it

    Example: do it again
    """

    main_flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"what it is": ("depth", "kind"), "how long": ("steps",)}

    path: tyro.conf.Positional[str]
    """Where it is."""
    inner: Inner = field(default_factory=lambda: Inner(depth=7))
    kind: Literal["a", "b"] = "a"
    """Which one."""
    steps: Annotated[int, tyro.conf.arg(aliases=("-n",))] = 3
    """Number of steps."""
    rare: bool = False
    """Almost never used."""


@pytest.fixture
def helped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def helped(*words):
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        assert stopped.value.code == 0
        return capsys.readouterr().out

    return helped


def flags_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


@pytest.mark.parametrize("name", all_commands())
def test_the_help_of_every_command_fits_three_screens(name, helped):
    lines = helped(*name.split(), "--help").splitlines()
    assert sum(max(1, math.ceil(len(line) / WIDTH)) for line in lines) <= SCREENS


def test_no_help_loads_torch():
    program = (
        "import sys, contextlib; from fieldwatch.cli import main; from fieldwatch.cli.commands import all_commands\n"
        "for name in all_commands():\n"
        "    with contextlib.suppress(SystemExit): main([*name.split(), '--help'])\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["train splats", "train normals", "train video"])
def test_the_help_of_a_training_loads_no_library_that_it_does_not_need(name):
    heavy = {"numpy", "psutil", "torch"}
    program = (
        "import sys, contextlib; from fieldwatch.cli import main\n"
        f"with contextlib.suppress(SystemExit): main([*{name!r}.split(), '--help'])\n"
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_names_that_need_no_torch_are_those_of_the_losses():
    assert get_args(config.BetaMode) == get_args(losses.BetaMode)


@pytest.mark.parametrize("name", ["train splats", "train normals", "train video", "mesh refine"])
def test_other_flags_are_counted_and_listed_by_help_all(name, helped):
    short = helped(*name.split(), "--help")
    everything = helped(*name.split(), "--help-all")
    count, flag = re.fullmatch(rf"(\d+) more flags: fieldwatch {name} (\S+)", short.splitlines()[-1]).groups()
    assert flag == "--help-all"
    rows = [line for line in everything.splitlines() if re.match(r"(?:│ |  )(-\w \S+, )?--[a-z]", line)]
    listed = [line for line in short.splitlines() if re.match(r"(?:│ |  )(-\w \S+, )?--[a-z]", line)]
    assert len(rows) - len(listed) == int(count)
    assert {"--profile-window", "--hang-timeout", "--mirror"} <= flags_in(everything) - flags_in(short)
    assert "more flags" not in everything


@pytest.mark.parametrize("name", TRAINED)
def test_main_flags_exist_and_have_known_titles(name):
    kind = flags_of_words(name, [])
    names = set(_names(kind))
    assert [title for title in kind.main_flags if title not in TITLES] == []
    assert [each for group in kind.main_flags.values() for each in group if each not in names] == []


def test_main_flags_of_a_refinement_exist():
    names = set(_names(RefineFlags))
    assert [each for group in RefineFlags.main_flags.values() for each in group if each not in names] == []


def _names(kind):
    text = _printed(kind)
    return {flag[2:].removeprefix("no-").replace("-", "_") for flag in flags_in(text)}


def _printed(kind):
    written = io.StringIO()
    with redirect_stdout(written):
        print_help(kind, prog="x", everything=True)
    return written.getvalue()


@pytest.mark.parametrize("name", ["train splats", "train normals", "train video", "mesh refine", "resume"])
def test_the_flags_of_a_run_exist_once(name):
    """One class declares them: their defaults and texts are the same on every command that trains."""
    shared = {each.name: (each.text, each.default) for each in flag_fields(TrainingFlags)}
    found = {each.name: (each.text, each.default) for each in flag_fields(flags_of(name)) if each.name in shared}
    assert found == shared
    assert {"csv", "wandb", "mlflow", "mirror", "supervise", "hang_timeout", "profile_tensors", "json"} <= set(found)


def test_groups_come_in_order_with_defaults_of_the_instance(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    print_help(Flags, prog="do", everything=False)
    out = capsys.readouterr().out
    assert out.startswith("Do something.\n\nExample: do it\nExample: do it again\n")
    out = out[out.index("list all") :]  # after the usage line, which lists the flags as well
    places = [out.index(text) for text in ("what it is", "--depth INT", "--kind", "how long", "--steps INT")]
    assert places == sorted(places)
    assert "number of layers. (default: 7)" in out
    assert "--rare" not in out.replace("--help-all", "")
    assert out.endswith("2 more flags: do --help-all\n")


def test_everything_lists_the_rest_where_it_belongs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    print_help(Flags, prog="do", everything=True)
    out = capsys.readouterr().out
    assert "number of channels. (default: None)" in out
    assert {"--rare", "--no-rare", "--width"} <= flags_in(out)
    assert "inner options" in out


def test_a_hidden_flag_works():
    chosen = read_flags(Flags, prog="do", arguments=["here", "--rare", "--width", "5"])
    assert (chosen.rare, chosen.inner) == (True, Inner(depth=7, width=5))


def test_words_behind_two_dashes_belong_to_another_program():
    assert wants_help(["--steps", "1", "-h"])
    assert not wants_help(["--", "python", "--help"])


@pytest.mark.parametrize("kind", [Checked, Holding])
def test_only_an_input_error_of_a_constructor_is_bad_input(kind, capsys):
    for value in ("2", "two"):
        with pytest.raises(SystemExit) as refused:
            read_flags(kind, prog="do", arguments=["--size", value])
        assert refused.value.code == 2
        assert value in capsys.readouterr().err
    with pytest.raises(ValueError, match="a bug") as bug:
        read_flags(kind, prog="do", arguments=["--size", "3"])
    assert bug.traceback[-1].name == "__post_init__"
    assert isinstance(bug.value.__cause__, KeyError)


def test_a_bug_of_a_constructor_has_the_exit_code_of_a_bug(monkeypatch, capsys):
    def broken(self):
        if self.seed == 3:
            raise ValueError("a bug")

    monkeypatch.setattr(config.SplatsConfig, "__post_init__", broken)
    assert main(["train", "splats", "--seed", "3"]) == 3
    assert "Traceback" in capsys.readouterr().err
