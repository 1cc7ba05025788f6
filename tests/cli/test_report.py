"""fieldwatch report: where it writes, what it says, what it refuses."""

import json

import numpy as np
import pytest

from fieldwatch.cli import main
from fieldwatch.record import Block, Journal, Manifest
from fieldwatch.report.page import is_page


@pytest.fixture
def run(tmp_path):
    """A run of five rows."""
    folder = tmp_path / "run"
    folder.mkdir()
    Manifest(config={"lr": 0.1}, state="finished").write(folder)
    steps = np.arange(5)
    block = Block(axis="step", columns=("Loss/total",), steps=steps, seconds=steps / 10, positions=steps,
                  values=1 / (1.0 + steps[:, None]))  # fmt: skip
    with Journal(folder) as journal:
        journal.append(block)
    return folder


def refused(capsys, *words):
    code = main(["report", *map(str, words)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    return err


def test_the_page_lies_in_the_run_and_its_place_is_the_last_line(run, capsys):
    assert main(["report", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Healthy")
    assert lines[-1].split() == ["report", str((run / "report.html").absolute())]
    assert is_page(run / "report.html")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("-o page.html", "page.html"),
        ("--output deep/er/page.html", "deep/er/page.html"),
        ("--out new", "new/report.html"),
        ("-o old", "old/report.html"),
        ("-o old.d", "old.d/report.html"),
    ],
)
@pytest.mark.usefixtures("capsys")
def test_a_file_or_a_folder_can_be_named(run, tmp_path, given, written):
    (tmp_path / "old").mkdir()
    (tmp_path / "old.d").mkdir()
    flag, place = given.split()
    assert main(["report", str(run / "run.json"), flag, str(tmp_path / place)]) == 0
    assert is_page(tmp_path / written)
    assert not (run / "report.html").exists()


def test_a_second_report_replaces_the_first(run, capsys):
    assert [main(["report", str(run)]) for _ in range(2)] == [0, 0]


def test_json_is_the_account_and_writes_nothing(run, capsys):
    assert main(["report", str(run), "--json"]) == 0
    account = json.loads(capsys.readouterr().out)
    assert account["series"]["Loss/total"]["x"] == [0, 1, 2, 3, 4]
    assert not (run / "report.html").exists()


def test_what_is_no_report_is_not_written_over(run, tmp_path, capsys):
    (tmp_path / "thesis.html").write_text("<p>years of work</p>")
    assert "thesis.html exists" in refused(capsys, run, "-o", tmp_path / "thesis.html")
    assert "is a file" in refused(capsys, run, "-o", tmp_path / "thesis.html" / "x.html")
    assert (tmp_path / "thesis.html").read_text() == "<p>years of work</p>"


def test_what_is_no_run_is_said(tmp_path, capsys):
    assert "run" in refused(capsys, tmp_path / "nowhere")
    assert "run" in refused(capsys, tmp_path)
    assert list(tmp_path.iterdir()) == []
