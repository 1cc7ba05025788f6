"""A pipeline from a package of its own: every command knows it, and our source does not."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tiny_pipeline"
MOST_LINES = 60


def install(project, place):
    """Put a package where Python finds it, with the metadata that an installer writes; no build, no network."""
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    for package in (project / "src").iterdir():
        shutil.copytree(package, place / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    name = described["name"]
    version = described["version"]
    information = place / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in members.items())
        for group, members in described["entry-points"].items()
    )
    (information / "entry_points.txt").write_text("\n".join(groups))
    return place


def environment_with(*places):
    paths = [*map(str, places), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return install(EXAMPLE, tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The folder that the commands run in."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def python(forks, work):
    """Run Python in the folder, as a fork that has imported torch and nothing of ours: the finished process."""

    def run(*words, environment):
        words = [*map(str, words)]
        process = forks.start(words, environment, work)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    return run


@pytest.fixture(scope="module")
def call(place, python):
    """Run a command line in a process of its own: the finished process."""

    def run(*words, check=True):
        done = python("-m", "fieldwatch", *words, environment=environment_with(place))
        assert not check or done.returncode in (0, 1), done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def trained(call, work):
    call("train", "tiny", "--steps", 100, "--size", 8, "--out", "runs/first")
    return work / "runs" / "first"


def test_it_is_small_and_our_source_does_not_name_it():
    files = (EXAMPLE / "src").rglob("*.py")
    lines = [line for file in files for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
    ours = (ROOT / "src").rglob("*.py")
    assert [file.name for file in ours if re.search("tiny_pipeline", file.read_text())] == []


def test_the_program_lists_it_and_reads_its_flags(call):
    assert "fieldwatch train tiny" in call("--help").stdout
    text = call("train", "tiny", "--help-all").stdout
    assert [flag for flag in ("--steps", "--size", "--rate", "--supervise", "--mirror") if flag not in text] == []
    refused = call("train", "tiny", "--sizes", 3, check=False)
    assert refused.returncode == 2
    assert "--sizes" in refused.stderr


def test_a_run_goes_on_to_the_end_from_where_it_was_killed(place, work, call, python):
    folder = work / "runs" / "killed"
    program = (
        "import os, signal, sys; import fieldwatch; from fieldwatch.cli import main; from tiny_pipeline import fit\n"
        "plain = fit.psnr\n"
        "fit.psnr = lambda *a: os.kill(os.getpid(), signal.SIGINT) or plain(*a)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    line = ["-c", program, "train", "tiny", "--steps", 150, "--size", 8, "--out", folder]
    first = python(*line, environment=environment_with(place))
    assert first.returncode == 130, first.stdout + first.stderr
    call("resume", folder)
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["state"] == "finished"
    assert [segment["step"] for segment in manifest["segments"]] == [0, 100]


def test_eval_reports_its_metric_and_writes_it(trained, call):
    found = json.loads(call("eval", trained, "--checkpoint", "last", "--json").stdout)
    assert found["step"] == 100
    written = json.loads(Path(found["files"]["metrics"]).read_text())
    assert written["metrics"] == found["metrics"]
    assert found["metrics"].keys() == {"Eval/psnr"}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("watch runs/first --once", "Loss/total"),
        ("health runs/first", "runs/first"),
        ("report runs/first -o report.html", "report.html"),
        ("growth runs/first", "primitives"),
        ("export runs/first --to csv -o record", "record"),
        ("tensorboard runs/first --print", "runs/first"),
        ("resume runs/first", "finished"),
    ],
)
@pytest.mark.usefixtures("trained")
def test_the_commands_on_runs_open_it(call, words, wanted):
    done = call(*words.split())
    assert wanted in done.stdout


@pytest.mark.usefixtures("trained")
def test_two_runs_are_compared_by_its_metric(call):
    call("train", "tiny", "--steps", 100, "--size", 8, "--rate", 0.001, "--out", "runs/slow")
    found = json.loads(call("compare", "runs/first", "runs/slow", "--json", "--metric", "Eval/psnr").stdout)
    assert "Eval/psnr" in json.dumps(found["metrics"])


def test_train_many_trains_scenes_of_it(call, work):
    scene = '[[scene]]\nname = "{}"\npipeline = "tiny"\nsteps = 20\nsize = {}\n'
    (work / "scenes.toml").write_text(scene.format("a", 4) + scene.format("b", 6))
    found = json.loads(call("train-many", "scenes.toml", "--ray", "off", "--out", "many", "--json").stdout)
    assert [each["state"] for each in found["scenes"]] == ["healthy", "healthy"]
    (work / "wrong.toml").write_text(scene.format("a", 4) + "stepz = 3\n")
    refused = call("train-many", "wrong.toml", "--ray", "off", check=False)
    assert refused.returncode == 2
    assert "stepz" in refused.stderr


def test_doctor_and_completion_know_it(call):
    assert "tiny" in json.loads(call("doctor", "--json").stdout)["software"]["pipelines"]
    script = call("completion", "bash").stdout
    assert re.search(r"'train tiny'.*--rate", script)
    assert "echo 'normals splats tiny video'" in script


def test_a_package_that_cannot_be_imported_harms_only_its_own_commands(place, work, trained, python):
    broken = work / "broken"
    (broken / "bad-1.dist-info").mkdir(parents=True)
    (broken / "bad-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    (broken / "bad-1.dist-info" / "entry_points.txt").write_text("[fieldwatch.pipelines]\nbad = bad_pipeline:BAD\n")
    (broken / "bad_pipeline.py").write_text("import a_module_that_is_missing\n")

    def answered(*words):
        return python("-m", "fieldwatch", *words, environment=environment_with(broken, place))

    listed = answered("--help")
    assert listed.returncode == 0
    assert "a_module_that_is_missing" in listed.stdout
    assert answered("health", trained).returncode == 0
    asked = answered("train", "bad")
    assert asked.returncode == 3
    assert "bad_pipeline:BAD" in asked.stderr
