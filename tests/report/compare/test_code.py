"""Lines of code in which two runs differ."""

import io
import json

import pytest
from rich.console import Console

from fieldwatch.record.source_code import SourceCode
from fieldwatch.report.compare import compare
from fieldwatch.report.compare.comparison_json import as_json
from fieldwatch.report.compare.panels import account_tables
from fieldwatch.report.compare.table import tables

STEP = "x = 1\nloss = f(x)\n"


@pytest.fixture
def with_code(side, tmp_path):
    """Make a run whose folder holds the source of a script."""

    def make(name, text, **known):
        folder = tmp_path / name
        folder.mkdir()
        if text is not None:
            SourceCode(main="train.py", files={"train.py": text}).keep(folder, 0)
        return side(name, {"Eval/mse": [3.0, 2.0, 1.0]}, folder=folder, **known)

    return make


def printed(comparison):
    console = Console(file=io.StringIO(), width=200)
    for part in tables(comparison, "step"):
        console.print(part)
    return console.file.getvalue()


def test_the_changed_line_is_shown_with_the_text_of_both_runs(with_code):
    comparison = compare([with_code("a", STEP), with_code("b", STEP.replace("f(x)", "g(x)"))])
    assert comparison.code == {"train.py:2": {"a": "loss = f(x)", "b": "loss = g(x)"}}
    shown = printed(comparison)
    for word in ("train.py:2", "loss = f(x)", "loss = g(x)"):
        assert word in shown
    (panel,) = (each for each in account_tables(comparison) if each["id"] == "code")
    assert [row["name"] for row in panel["rows"]] == ["train.py:2"]


def test_a_new_line_is_absent_in_the_first_run(with_code):
    comparison = compare([with_code("a", STEP), with_code("b", f"{STEP}x = 3\n")])
    document = json.loads(json.dumps(as_json(comparison)))
    assert document["code"] == {"train.py:3": {"a": None, "b": "x = 3"}}


@pytest.mark.parametrize(
    ("texts", "kind"), [((STEP, STEP), {}), ((STEP, None), {}), ((STEP, "y"), {"kind": "tensorboard"})]
)
def test_equal_and_unknown_sources_are_not_shown(with_code, texts, kind):
    first, second = texts
    comparison = compare([with_code("a", first), with_code("b", second, **kind)])
    assert comparison.code == {}
    assert "Code" not in printed(comparison)


def test_of_three_runs_no_lines_are_shown(with_code):
    assert compare([with_code("a", STEP), with_code("b", "y"), with_code("c", "z")]).code == {}
