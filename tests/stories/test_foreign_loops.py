"""benchmarks/foreign_loops: its table is in the docs, and its edits, kills and findings are what it says."""

import re

import pytest

from fieldwatch.health.rules import GENERAL
from fieldwatch.record import read_manifest

SCRIPT = """
import torch
from start import finish
from torch import nn

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
points = torch.rand(64, 2, generator=torch.Generator().manual_seed(0))
for number in range(40):
    optimizer.zero_grad()
    loss = (model(points).squeeze() - points.sum(dim=1)).square().mean()
    loss.backward()
    optimizer.step()
finish(model=model)
"""


@pytest.fixture
def program(benchmark):
    return benchmark("foreign_loops.__main__")


@pytest.fixture
def loop(program, tmp_path):
    """A loop of this test, which stands for one of a library."""
    (tmp_path / "plain.py").write_text(SCRIPT)
    edit = program.Edit
    return program.Loop(
        title="a line",
        package="",
        path=str(tmp_path / "plain.py"),
        ports=(),
        edits=(
            edit("from torch import nn\n", "from torch import nn\nfrom fieldwatch import Run, Terms\n"),
            edit(
                "for number in range(40):\n",
                'run = Run("run").start()\n'
                "run.track(model=model, optimizer=optimizer)\n"
                "run.resume()\n"
                "for step in run.steps(40):\n",
            ),
            edit("    loss.backward()\n", "    loss.backward()\n    step.observe(Terms(loss=(1.0, loss)))\n"),
            edit("    optimizer.step()\n", "    step.update(optimizer)\n"),
            edit("finish(", "run.finish()\nfinish("),
        ),
        fault=edit("    optimizer.zero_grad()\n", ""),
        fault_does="gradients are not cleared",
        kill=20,
    )


def test_a_killed_loop_goes_on_at_its_checkpoint(program, loop, tmp_path):
    work = program.Workplace(loop, program.Sources(tmp_path), tmp_path / "runs")
    place = work.prepare("killed", adopted=True)
    program.must(work.train(place, loop.kill), -9)
    assert program.must(work.train(place)).weights
    assert read_manifest(place / "run").segments[-1]["step"] == 18
    with pytest.raises(RuntimeError, match="ended with 0"):
        program.must(program.Trained(0, "", ""), -9)


def test_adopted_lines_are_counted_and_the_fault_is_planted(program, loop, tmp_path):
    work = program.Workplace(loop, program.Sources(tmp_path), tmp_path / "runs")
    found = program.compare(work.texts(adopted=False)[0], work.texts(adopted=True)[0], "fieldwatch")
    assert (found.added, found.changed, found.removed) == (6, 2, 0)
    assert "zero_grad" in work.texts(adopted=True)[0]
    assert "zero_grad" not in work.texts(adopted=True, fault=True)[0]


@pytest.mark.parametrize(
    ("findings", "healthy", "told"),
    [
        ((), "healthy", "nothing"),
        ((("Slow", "note"),), "healthy (notes: Slow)", "Slow (note)"),
        ((("Slow", "note"), ("Bad", "error")), "error: Bad (error)", "Bad (error)"),
    ],
)
def test_notes_are_told_only_if_there_is_nothing_else(program, findings, healthy, told):
    answer = program.Answer(findings)
    assert (answer.verdict, answer.told) == (healthy, told)


@pytest.mark.parametrize("text", ["nothing", "twice twice"])
def test_a_fragment_must_be_there_once(program, text):
    with pytest.raises(ValueError, match="once"):
        program.Edit("twice", "new").apply(text)


def test_an_edit_extends_to_a_second_fragment(program):
    assert program.Edit("a(", "b", to=")").apply("x a(1, 2) y") == "x b) y"
    with pytest.raises(ValueError, match="after"):
        program.Edit("a(", "b", to="]").apply("x a(1, 2) y")


def test_a_row_replaces_that_of_its_loop_only(program):
    titles = [loop.title for loop in program.LOOPS.values()]
    page = f"before\n{program.BEGIN}{program.END}after\n"
    for title in titles[:2]:
        page = program.with_table(page, {title: f"| {title} | old |"})
    page = program.with_table(page, {titles[0]: f"| {titles[0]} | new |"})
    assert re.findall(r"\| (old|new) \|", page) == ["new", "old"]
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    with pytest.raises(ValueError, match="foreign loops"):
        program.with_table("# A page\n", {})


def test_the_page_has_a_row_of_every_loop_with_its_fault_and_rules_that_exist(program):
    rows = program.PAGE.read_text().partition(program.BEGIN)[2].partition(program.END)[0].splitlines()
    cells = {row.split(" | ")[0].removeprefix("| "): row.strip("| ").split(" | ") for row in rows if row[:2] == "| "}
    known = {type(rule).__name__ for rule in GENERAL}
    for loop in program.LOOPS.values():
        assert cells[loop.title][5] == loop.fault_does
        told = re.findall(r"(\w+) \((note|warning|error)\)", cells[loop.title][6])
        assert {rule for rule, _ in told} <= known
