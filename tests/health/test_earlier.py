"""The rule about a result that is far behind that of an earlier run."""

from dataclasses import replace

import numpy as np
import pytest

from fieldwatch.health import explain
from fieldwatch.health.rules.earlier import WorseSinceChange, WorseThanEarlier
from fieldwatch.health.rules.poor_results import ends_poorly
from fieldwatch.record import History

STEPS = 640
PLAN = {"kind": "plan", "step": 0, "steps": STEPS}
FALLING = np.geomspace(2.0, 0.1, STEPS)
EVENT = {
    "kind": "earlier_run",
    "step": STEPS - 1,
    "run": "monday",
    "command": "fieldwatch compare runs/monday runs/tuesday",
    "metric": "Eval/PSNR",
    "here": 21.0,
    "there": 27.5,
    "times": 4.5,
    "share": 0.4,
    "behind": 1,
    "of": 1,
    "last": STEPS - 1,
    "same_until": -1,
    "settings": [],
    "further_settings": 0,
    "code": [],
    "changed_places": 0,
    "versions": [],
}


@pytest.fixture
def found(make):
    """Findings of both rules for an event with changes."""

    def of(*, plan=PLAN, **changes):
        history = make(({"Loss/total": FALLING}, {}), events=[plan, EVENT | changes])
        return WorseSinceChange()(history) + WorseThanEarlier()(history)

    return of


def test_a_far_worse_result_is_a_warning_that_names_the_run_and_both_values(found):
    (finding,) = found()
    assert finding.rule == "WorseThanEarlier"
    assert (finding.step, finding.severity, finding.subject) == (STEPS - 1, "warning", "Eval/PSNR")
    assert [word for word in ("monday", "21", "27.5", "4.5 times") if word not in finding.message] == []
    assert EVENT["command"] in finding.remedy


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"times": 1.9}, 0),
        ({"times": 2.0}, 1),
        ({"times": 1.0, "share": 0.49}, 0),
        ({"times": 1.0, "share": 0.5}, 1),
        ({"plan": PLAN | {"steps": 10 * STEPS}}, 0),
    ],
)
def test_smaller_gaps_and_unfinished_runs_are_not_reported(found, changes, count):
    assert len(found(**changes)) == count


def test_without_the_event_there_is_no_finding(make):
    for rule in (WorseThanEarlier(), WorseSinceChange()):
        assert rule(make(({"Loss/total": FALLING}, {}), events=[PLAN])) == ()
        assert rule(History()) == ()


def test_settings_are_named_with_both_values_and_the_remedy_sets_them_back(found):
    settings = [["--lr", 0.01, 1.0], ["--width", 64, 8], ["--depth", 3, 2], ["--seed", 0, 1]]
    (finding,) = found(settings=settings, further_settings=5)
    assert finding.rule == "WorseSinceChange"
    assert "--lr (0.01 there, 1.0 here)" in finding.message
    assert "6 more settings" in finding.message
    assert "--lr to 0.01" in finding.remedy


@pytest.mark.parametrize(("count", "further", "severity"), [(3, 0, "warning"), (4, 0, "note"), (3, 2, "note")])
def test_many_settings_are_another_experiment(found, count, further, severity):
    settings = [[f"--s{i}", 0, 1] for i in range(count)] + [["--seed", 0, 1]]
    assert [each.severity for each in found(settings=settings, further_settings=further)] == [severity]


def test_the_seed_is_no_advice(found):
    code = [["train.py", 12, "a", "b"]]
    (finding,) = found(settings=[["--seed", 0, 1]], code=code, changed_places=1)
    assert "--seed (0 there, 1 here)" in finding.message
    assert "seed" not in finding.remedy


def test_lines_of_code_are_named_with_both_texts(found):
    code = [["train.py", 12, "loss = f(x)", "loss = f(y)"], ["net.py", 3, "", "x = x.detach()"], ["net.py", 9, "b", ""]]
    (finding,) = found(code=code, changed_places=4)
    for part in ("train.py:12, was: loss = f(x), is: loss = f(y)", "net.py:3, new: x = x.detach()", "net.py:9, was: b"):
        assert part in finding.message
    assert "1 more place" in finding.message
    assert "train.py:12" in finding.remedy


def test_a_rewritten_program_is_only_counted(found):
    (finding,) = found(changed_places=57)
    assert "57 places" in finding.message
    assert "code.zip" in finding.remedy


def test_versions_are_named(found):
    (finding,) = found(versions=[["torch", "2.12", "2.13"]])
    assert "torch (2.12 there, 2.13 here)" in finding.message
    assert "torch 2.12" in finding.remedy


@pytest.mark.parametrize("changes", [{}, {"changed_places": None}, {"settings": [["--seed", 0, 1]]}])
def test_if_nothing_but_the_seed_differs_the_data_are_to_be_compared(found, changes):
    (finding,) = found(**changes)
    assert finding.rule == "WorseThanEarlier"
    assert "data" in finding.remedy


def test_the_step_up_to_which_the_losses_are_equal_is_named(found):
    assert "step 119" in found(same_until=119)[0].message
    assert "equal up to" not in found()[0].message


def test_such_a_run_ends_poorly_so_that_doubtful_facts_become_warnings(make):
    good = ({"Loss/total": FALLING}, {}), ({"val/loss": np.array([1.2, 0.6, 0.3, 0.2])}, {"stride": STEPS // 4})
    assert ends_poorly(make(*good, events=[PLAN])) is False
    assert ends_poorly(make(*good, events=[PLAN, EVENT])) is True
    other = EVENT | {"settings": [[f"--s{i}", 0, 1] for i in range(4)]}
    assert ends_poorly(make(*good, events=[PLAN, other])) is False


def causes(*findings):
    return {each.rule: each.because_of.partition(" ")[0] for each in explain(findings)}


def test_a_change_explains_bad_results_and_is_explained_by_what_says_why(found):
    (change,) = found(settings=[["--lr", 0.01, 1.0]])
    (unchanged,) = found()

    def other(rule, step):
        return replace(change, rule=rule, step=step, subject="s")

    result = other("NoProgress", STEPS - 1)
    rate = other("RateTooHigh", 64)
    assert causes(change, result)["NoProgress"] == "WorseSinceChange"
    assert causes(change, rate)["WorseSinceChange"] == "RateTooHigh"
    # One that names nothing is a result like others.
    assert causes(unchanged, result)["NoProgress"] == ""
    assert causes(unchanged, rate)["WorseThanEarlier"] == "RateTooHigh"
