"""benchmarks/adoption: what it takes to adopt a library is counted, and our loops train as the bare one does."""

import pytest

from fieldwatch import Interrupted

OURS = ["with_fieldwatch", "with_fieldwatch_objective"]
BARE = "import torch\n\nfor step in range(3):\n    loss = model(step)\n    loss.backward()\n"


@pytest.fixture
def count(benchmark, monkeypatch, tmp_path):
    count = benchmark("adoption.count")
    monkeypatch.syspath_prepend(str(count.FOLDER))
    monkeypatch.chdir(tmp_path)
    return count


def trained(count, capsys, name, stop_after=None):
    capsys.readouterr()
    count.train(name, stop_after)
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]


def test_the_table_in_the_docs_is_current(count):
    page = count.PAGE.read_text()
    assert count.with_table(page) == page, "run: python benchmarks/adoption/count.py --write"


def test_a_page_without_markers_is_refused(count):
    with pytest.raises(ValueError, match="adoption"):
        count.with_table("# A page\n")


def test_lines_are_counted_without_docstrings_comments_and_empty_lines(count):
    adopted = '"""Module."""\n\n# why\n' + BARE.replace("model(step)", "net(step)") + "    print(loss)\n"
    found = count.compare(BARE, adopted, "kit")
    assert (found.added, found.changed, found.removed, found.indented) == (1, 1, 0, 0)


def test_a_removed_line_is_counted(count):
    assert count.compare(BARE, BARE.replace("import torch\n", ""), "kit").removed == 1


def test_a_body_under_with_is_indented_and_not_changed(count):
    head, _, loop = BARE.partition("for")
    inner = f"for{loop}".replace("\n", "\n    ").rstrip()
    found = count.compare(BARE, f"{head}with open():\n    {inner}\n", "kit")
    assert (found.added, found.changed, found.indented) == (1, 0, 3)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import kit as k\nrun = k.Run()", {"Run"}),  # the module itself is none
        (
            "from kit import Run\nwith Run() as run:\n    for step in run.steps():\n        step.go()",
            {"Run", "steps", "go"},
        ),
        (
            "from kit.deep import Run\nmodel = Run(model)\nloss = model(0)\nloss.backward()",
            {"Run"},
        ),  # torch's, as before
        ("from kit import Run\nrun = Run()\nrun.backward(loss)", {"Run", "backward"}),
        ("import other\nother.thing()", set()),
    ],
)
def test_concepts_are_the_names_that_come_from_the_library(count, text, names):
    assert count.concepts(text, "kit", BARE) == names


@pytest.mark.parametrize("name", OURS)
def test_ours_prints_the_numbers_of_the_bare_loop(count, capsys, name):
    bare = trained(count, capsys, "bare+ResumableLoader")
    assert len(bare) == 10
    assert trained(count, capsys, name) == bare


@pytest.mark.parametrize("name", OURS)
def test_ours_goes_on_in_the_middle_of_an_epoch(count, capsys, name):
    with pytest.raises(Interrupted):
        count.train(name, stop_after=88)  # 16 steps are an epoch
    resumed = trained(count, capsys, name)
    assert resumed == trained(count, capsys, "bare+ResumableLoader")[5:]
