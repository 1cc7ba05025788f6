"""What was doubtful before the first step is a note, and the first suspect of a bad result."""

import pytest

from fieldwatch.health import Finding, diagnose
from fieldwatch.health.rules.doubts import DoubtfulData, DoubtfulSetting
from fieldwatch.record import History, tags


@pytest.fixture
def history():
    events = History()
    common = {"kind": tags.DATA_CHECK, "step": 0, "remedy": "mend it", "message": "doubtful."}
    for name, severity, certain in (
        ("poses", "warning", False),
        ("few", "note", False),
        ("setting --lr", "warning", False),
        ("setting --weight", "warning", True),
    ):
        events.add_event({**common, "name": name, "severity": severity, "certain": certain})
    return events


def bad(rule="HeldOutGap"):
    return Finding(rule=rule, step=99, severity="warning", message="bad.", remedy="?")


def test_warnings_of_the_check_are_notes_unless_they_spoil_a_run_for_certain(history):
    data = DoubtfulData()(history)
    settings = DoubtfulSetting()(history)
    assert [(each.subject, each.severity, each.remedy) for each in data] == [("poses", "note", "mend it")]
    assert [(each.subject, each.severity) for each in settings] == [("--lr", "note"), ("--weight", "warning")]


@pytest.mark.parametrize("rule", [DoubtfulData, DoubtfulSetting])
def test_a_doubt_is_as_serious_as_what_it_explains(history, rule):
    doubt = rule()(history)[0]
    (alone,) = diagnose([doubt])
    (together,) = diagnose([bad(), doubt])
    assert alone.cause.severity == "note"
    assert (together.cause.rule, together.cause.severity) == (rule.__name__, "warning")
    assert [each.rule for each in together.consequences] == ["HeldOutGap"]


def test_a_setting_explains_rules_of_pipelines_and_data_does_not(history):
    strange = bad("ResetsTooOften")
    (first,) = diagnose([strange, DoubtfulSetting()(history)[0]])
    assert first.cause.rule == "DoubtfulSetting"
    assert len(diagnose([strange, DoubtfulData()(history)[0]])) == 2
