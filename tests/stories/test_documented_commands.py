"""Commands that hang, crash or do nothing with the original SuGaR scripts: here each works, or says why not.

docs/failures.md lists all documented failures with their tests.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from fieldwatch.cli import main
from fieldwatch.recon.pipelines.splats import SplatsConfig


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Run a command that has to be refused before anything is written; return its message."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        try:
            code = main([*map(str, words)])
        except SystemExit as stopped:  # an unknown flag
            code = stopped.code
        printed = capsys.readouterr()
        assert code == 2, printed
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        assert "Traceback" not in printed.err
        return " ".join(printed.err.split())

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three steps."""
    words = "--views 6 --held-out 3 --schedule-scale 0.0002 --turntable 0 --threads 1 --device cpu".split()
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert main(["train", "splats", "--out", str(folder), *words]) in (0, 1)
    return folder


@pytest.fixture
def earlier(finished, tmp_path):
    """A folder in which an earlier run with other settings lies."""
    return Path(shutil.copytree(finished, tmp_path / "earlier"))


def test_a_folder_that_is_taken_ends_the_command_and_never_asks(earlier):
    """There: 'delete it? [y/n]' waited for ever where nobody could answer (conda run, a queue)."""
    before = {path: path.stat().st_mtime_ns for path in earlier.rglob("*")}
    command = [sys.executable, "-m", "fieldwatch", "train", "splats", "--views", "8", "--out", str(earlier)]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:  # its input stays open, and silent
        assert process.wait(timeout=60) == 2
        message = process.stderr.read()
    assert "views: stored 6, given 8" in " ".join(message.split())
    assert {path: path.stat().st_mtime_ns for path in earlier.rglob("*")} == before


def test_no_flag_deletes_a_folder(earlier, refused):
    """There: --delete_first removed the folder of the very checkpoint that the run was to go on from."""
    assert "ever deleted" in refused("train", "splats", "--out", earlier, "--delete_first", "True")


def test_stages_are_commands_of_their_own(refused):
    """There: --skip_training without --resume_checkpoint met an undefined variable."""
    assert "fieldwatch mesh" in refused("train", "splats", "--skip_training", "True")


@pytest.mark.parametrize(
    "flag",
    [
        "--batch_size",
        "--use_custom_bbox",
        "--knn_batch_size",
        "--optimize_memory",
        "--fragmentation",
        "--sh_degree",
        "--skip_coarse",
        "--coarse_checkpoint",
        "--resolution_scale",
        "--resolution_factor",
        "--enable_lpips",
        "--eval_split",
        "--n_vertices_in_fg",
    ],
)
def test_flags_that_only_the_guides_have_are_not_taken_silently(flag, refused):
    assert flag.strip("-").replace("_", "-") in refused("train", "splats", flag, "1").replace("_", "-")


def settings(kind):
    for each in fields(kind):
        nested = each.default_factory() if callable(each.default_factory) else None
        if is_dataclass(nested):
            yield from settings(type(nested))
        else:
            yield each.name


def test_every_setting_is_a_flag(capsys):
    """There: 'edit line N of file X' is the most repeated advice."""
    with pytest.raises(SystemExit):
        main(["train", "splats", "--help-all"])
    words = set(capsys.readouterr().out.replace(",", " ").replace("│", " ").replace("|", " ").split())
    names = ["--" + name.replace("_", "-") for name in settings(SplatsConfig)]
    assert len(names) > 70
    assert [name for name in names if name not in words and f"--no-{name[2:]}" not in words] == []


@pytest.mark.parametrize("written", ["runs/garden", "runs/garden/", "./runs/garden"])
def test_tensorboard_finds_a_run_however_its_folder_is_written(written, tmp_path, monkeypatch, capsys):
    """There: with a slash at the end the folder of experiments was never found."""
    monkeypatch.chdir(tmp_path)
    Path("runs/garden/tensorboard").mkdir(parents=True)
    assert main(["tensorboard", written, "--print"]) == 0
    assert capsys.readouterr().out.strip().endswith("--logdir runs/garden/tensorboard")


def test_several_runs_stand_beside_each_other_in_tensorboard(tmp_path, capsys):
    for name in ("planar", "sdf"):
        (tmp_path / name / "tensorboard").mkdir(parents=True)
    assert main(["tensorboard", f"{tmp_path}/planar/", f"{tmp_path}/sdf", "--print"]) == 0
    line = capsys.readouterr().out.strip()
    assert line.endswith(f"--logdir_spec planar:{tmp_path}/planar/tensorboard,sdf:{tmp_path}/sdf/tensorboard")


def test_a_checkpoint_interval_of_zero_saves_at_milestones_and_the_end(tmp_path, capsys):
    """There: a division by zero, where the help said that 0 switches checkpoints off."""
    words = "--views 6 --held-out 3 --schedule-scale 0.001 --turntable 0 --threads 1 --device cpu --keep-last 9".split()
    words += "--checkpoint_interval 0 --checkpoint_milestones 7000 --test-iterations 15000 --prune-below 0.01".split()
    assert main(["train", "splats", "--out", str(tmp_path / "run"), *words]) in (0, 1), capsys.readouterr().err
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.startswith("step_"))
    assert saved == ["step_0000000007", "step_0000000015"]
