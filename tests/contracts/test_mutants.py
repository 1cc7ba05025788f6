"""The planted breaks of the torture fit the source: each replaces a text that is there exactly once."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORTURE = ROOT / "benchmarks" / "torture"
NAMES = [path.stem for path in TORTURE.glob("*.py")]


@pytest.fixture(scope="module")
def torture():
    """Import a module of the torture by its name."""
    before = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    sys.path.insert(0, str(TORTURE))
    yield importlib.import_module
    sys.path.remove(str(TORTURE))
    for name in NAMES:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.fixture(scope="module")
def mutants(torture):
    return torture("planted").MUTANTS


def test_every_mutant_replaces_what_is_there_exactly_once_and_leaves_valid_python(torture, mutants):
    source = torture("mutants").SOURCE / "fieldwatch"
    stale = []
    for mutant in mutants:
        for file in mutant.files:
            text = (source / file).read_text()
            try:
                spoiled = mutant.applied(text, file)
            except ValueError as error:
                stale.append(str(error))
                continue
            ast.parse(spoiled)
            assert spoiled != text, mutant.name
    assert stale == []


def test_a_text_that_is_gone_or_there_twice_is_refused(torture):
    module = torture("mutants")
    mutant = module.Mutant(name="m", breaks="b", file="f.py", edits=(("one", "two"),), trial="order", rows=("P1 x",))
    assert mutant.applied("a one b") == "a two b"
    for text in ("a two b", "one one"):
        with pytest.raises(module.StaleMutantError, match=r"'m' expects 'one' exactly.*\.py"):
            mutant.applied(text)


def test_names_are_unique_and_trials_are_there(torture, mutants):
    names = [mutant.name for mutant in mutants]
    assert len(set(names)) == len(names)
    assert {mutant.trial for mutant in mutants} == torture("trials").TRIALS.keys()
    assert all(mutant.edits and mutant.rows for mutant in mutants)


def test_every_promise_has_a_mutant_that_must_turn_a_row_of_it_red(torture, mutants):
    covered = {row.split()[0] for mutant in mutants for row in mutant.rows}
    assert covered == torture("table").PROMISES.keys()
    assert len({mutant.edits for mutant in mutants}) >= 40


def test_a_mutant_counts_as_noticed_only_if_its_control_holds_and_its_row_does_not(torture):
    module = torture("mutants")
    rows = torture("rows")
    mutant = module.Mutant(
        name="m", breaks="b", file="f.py", edits=(("a", "b"),), trial="order", rows=("P1 in a loop", "P2 cut")
    )

    def outcome(*verdicts):
        made = [rows.judged(name, f"kills {words}", "", "", good=good) for name, words, good in verdicts]
        return module.Outcome(rows=made, trouble="", seconds=1.0)

    good = outcome(("P1", "in a loop", True), ("P2", "cut", True))
    both = outcome(("P1", "in a loop", False), ("P2", "cut", False))
    one = outcome(("P1", "in a loop", False), ("P2", "cut", True))
    hung = module.Outcome(rows=[], trouble="no answer within 240 s", seconds=240.0)
    assert module.judge(mutant, good, both).missed == []
    assert [text.partition(":")[0] for text in module.judge(mutant, good, one).missed] == ["P2 cut"]
    assert len(module.judge(mutant, good, hung).missed) == 2
    assert len(module.judge(mutant, one, both).missed) == 1
    assert len(module.judge(mutant, hung, both).missed) == 2
    apart = module.Outcome(rows=[rows.not_run("P2", "cut", "", "needs root")], trouble="", seconds=1.0)
    alone = module.Mutant(name="m", breaks="b", file="f.py", edits=(("a", "b"),), trial="power", rows=("P2 cut",))
    result = module.judge(alone, apart, apart)
    assert (result.verdict, result.skipped) == ("not run", "needs root")
    assert module.summary([result, module.judge(mutant, good, both), module.judge(mutant, good, one)]).startswith(
        "1 of 2 planted"
    )


def test_the_page_names_the_rows_that_no_noticed_mutant_turns_red(torture):
    module = torture("mutants")
    table = (
        "| promise | what was run | wanted | found | verdict |\n|---|---|---|---|---|\n"
        "| **P1** A kill | kills in a loop | all | all | holds |\n| P1 | kills of a run | all | all | holds |\n"
        "| P2 | cut | all |  | **not run**: needs root |\n"
    )
    mutant = module.Mutant(name="m", breaks="b", file="f", edits=(("a", "b"),), trial="order", rows=("P1 in a loop",))
    assert module.rows_without(table, [mutant]) == ["P1 kills of a run"]
    page = module.markdown([module.Result(mutant=mutant, seconds=2.0)], table, "head")
    assert "1 of 1 planted" in page
    assert "kills of a" in page
