"""A few trials of ``make torture``: a run killed, system calls killed by strace, a disk cut off; and its table."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TORTURE = Path(__file__).parents[2] / "benchmarks" / "torture"
FEW = """
import json, sys
from dataclasses import asdict
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import hostile, kill, power, retention, states, syscalls, torch, validation
from methods import Ours
torch.set_num_threads(1)
folder = Path(sys.argv[2])
run = kill.kill_run(folder / "run", 5)
print(json.dumps({"run": [asdict(one) | {"kept": one.kept} for one in run]}))
why = syscalls.can_trace()
only = ("fsync", "rename", "fallocate")
calls = [] if why else syscalls.trials(Ours(1), folder / "calls", {"KILL": "signal=KILL"}, only)
print(json.dumps({"why": why, "calls": [asdict(one) | {"kept": one.kept} for one in calls]}))
why = power.can_mount(folder / "probe")
print(json.dumps({"why": why, "cuts": [] if why else power.random_cuts(folder / "cuts", 3)}))
kinds = ("torch's generator", "the place in shuffled data", "Adam", "a schedule of rates", "an average of the weights")
rows = [
    *retention.run_retention(folder / "retention", 4),
    *hostile.run_hostile(folder / "hostile", ("code",)),
    *hostile.run_links(folder / "links", ("journal.jsonl",)),
    *states.run_states(folder / "states", 1, kinds),
    *validation.run_validation(folder / "validation"),
]
print(json.dumps([asdict(row) for row in rows]))
"""
MUTANT = "no hash check"
"""The planted break of the quick variant: it is noticed by 130 damaged files, in seconds."""


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """What came of a few trials; one process, since it forks and must not have threads."""
    command = [sys.executable, "-c", FEW, str(TORTURE), str(tmp_path_factory.mktemp("torture"))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_run_killed_at_random_times_goes_on_from_what_its_events_called_saved(few):
    results = few[0]["run"]
    assert len(results) == 5
    assert all(one["kept"] for one in results)
    assert any(one["promised"] for one in results)


def test_a_kill_at_single_system_calls_of_a_save_leaves_a_whole_one(few):
    if few[1]["why"]:
        pytest.skip(few[1]["why"])
    results = few[1]["calls"]
    assert len(results) >= 8
    assert all(one["kept"] and one["again"] and one["said"] == "killed" for one in results)
    assert {one["found"]["step"] for one in results} == {1, 2}


def test_a_power_cut_at_a_random_time_leaves_the_acknowledged_step(few):
    if few[2]["why"]:
        pytest.skip(few[2]["why"])
    assert few[2]["cuts"] == ["new"] * 3


def test_a_few_trials_of_retention_malice_state_and_validation_hold(few):
    assert {row["promise"] for row in few[3]} == {"P4", "P14", "P17", "P18"}
    assert [row for row in few[3] if row["verdict"] != "holds"] == []


def test_a_planted_break_turns_its_rows_red_and_the_unchanged_copy_does_not(tmp_path):
    command = [sys.executable, str(TORTURE), "--mutants", MUTANT, "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "1 of 1 planted" in done.stdout


def test_a_mutant_that_is_not_there_is_an_error():
    command = [sys.executable, str(TORTURE), "--mutants", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert "no mutant has 'nonsense' in its name" in done.stdout


@pytest.fixture
def torture(monkeypatch):
    """Import a module of the torture."""
    monkeypatch.syspath_prepend(str(TORTURE))
    names = [path.stem for path in TORTURE.glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def test_what_was_not_run_never_holds(torture):
    rows = torture("rows")
    table = torture("table")
    one = rows.judged("P1", "kills", "all", "all", good=True)
    every = table.filled_up([one, rows.not_run("P2", "cut", "all", "needs root")], "not asked for")
    assert [row.promise for row in every] == [f"P{i}" for i in range(1, 21)]
    assert {row.verdict for row in every if row is not one} == {"not run"}
    assert "0 do not hold; 19 not run: P2, P3" in table.summary(every)
    mixed = table.filled_up([one, rows.not_run("P1", "cut", "all", "needs root")], "not asked for")
    assert "far as run: P1;" in table.summary(mixed)


def test_rows_of_other_parts_are_read_or_refused(torture):
    rows = torture("rows")
    given = {"promise": "P8", "what": "nan", "wanted": "0", "found": "1", "holds": False}
    assert rows.rows_of([given]) == [rows.judged("P8", "nan", "0", "1", good=False)]
    assert rows.rows_of([given | {"holds": None}])[0].verdict == "not run"
    with pytest.raises(ValueError, match=r"\(or holds\), why; got \{'promise': 'P8'"):
        rows.rows_of([{"promise": "P8", "verdict": "holds"}])


def test_the_page_keeps_what_stands_outside_the_markers(torture, tmp_path, monkeypatch):
    rows = torture("rows")
    table = torture("table")
    monkeypatch.setattr(table, "PAGE", tmp_path / "reliability.md")
    table.PAGE.write_text("before\n<!-- torture -->\nold\n<!-- end torture -->\nafter\n")
    wrong = rows.judged("P1", "a | b", "all", f"{tmp_path}/x is gone", good=False, why="two\nlines")
    table.put("torture", table.markdown([wrong], "made so"))
    text = table.PAGE.read_text()
    assert text.startswith("before\n<!-- torture -->\nmade so\n")
    assert text.endswith("<!-- end torture -->\nafter\n")
    assert "a \\| b" in text
    assert "**does not hold**: two lines" in text
    assert str(tmp_path) not in text


def test_a_part_that_does_not_exist_is_an_error_and_names_those_that_do():
    command = [sys.executable, str(TORTURE), "--only", "kil"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert "--only kil:" in done.stderr
    assert "kill, syscalls" in done.stderr
