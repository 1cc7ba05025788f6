import dataclasses

import orjson
import pytest

from fieldwatch.health import Finding, exit_code, explain, training_exit_code, worst
from fieldwatch.health.finding import first_per_subject


def finding(severity="warning", **changes):
    fields = {
        "rule": "LossSpike",
        "step": 7,
        "severity": severity,
        "message": "It rose.",
        "remedy": "Clip.",
        "subject": "a",
    }
    return Finding(**fields | changes)


def test_it_survives_json():
    event = orjson.loads(orjson.dumps(finding().as_event()))
    assert event["kind"] == "finding"
    assert Finding.from_json({**event, "seconds": 3.5}) == finding()


def test_an_event_without_a_subject_is_enough():
    event = finding().as_event()
    del event["subject"]
    assert Finding.from_json(event).subject == ""


def test_an_incomplete_event_is_refused():
    with pytest.raises(ValueError, match="lacks severity, remedy"):
        Finding.from_json({"rule": "a", "step": 1, "message": "b"})


def test_it_reads_as_one_line():
    assert str(finding()) == "warning: LossSpike [a] at step 7: It rose. Clip."
    assert "[" not in str(finding(subject=""))


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        finding().step = 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rule": ""}, "without a rule name"),
        ({"step": -1}, "0-based step of 0 or more, got -1"),
        ({"severity": "fatal"}, "note, warning, error"),
    ],
)
def test_impossible_ones_are_refused(changes, words):
    event = finding().as_event() | changes
    with pytest.raises(ValueError, match=words):
        Finding.from_json(event)


@pytest.mark.parametrize(
    ("grades", "most_severe", "code"),
    [
        ((), None, 0),
        (("note", "note"), "note", 0),
        (("note", "warning"), "warning", 1),
        (("error", "warning", "note"), "error", 1),
    ],
)
def test_the_most_severe_finding_decides_the_exit_code(grades, most_severe, code):
    found = [finding(grade) for grade in grades]
    assert worst(found) == most_severe
    assert exit_code(found) == code
    assert exit_code(found, stopped=True) == 3


def test_actions_survive_json_and_events_of_earlier_versions_have_none():
    asked = finding(action="checkpoint,cap", limit=3.1e6)
    assert asked.actions == ("checkpoint", "cap")
    assert Finding.from_json(orjson.loads(orjson.dumps(asked.as_event()))) == asked
    old = {key: value for key, value in finding().as_event().items() if key not in {"action", "limit"}}
    assert Finding.from_json(old) == finding()
    assert (finding().actions, finding().limit) == ((), None)


@pytest.mark.parametrize(
    ("grades", "usual", "strict"),
    [((), 0, 0), (("note",), 0, 0), (("warning", "note"), 0, 1), (("warning", "error"), 1, 1)],
)
def test_a_training_with_warnings_has_succeeded_unless_it_is_strict(grades, usual, strict):
    found = [Finding(rule="R", step=0, severity=grade, message="m", remedy="r") for grade in grades]
    assert training_exit_code(found) == usual
    assert training_exit_code(found, strict=True) == strict


def test_a_later_finding_of_a_subject_counts_only_if_it_is_more_severe():
    grades = (("a", "note"), ("a", "note"), ("b", "warning"), ("a", "warning"), ("a", "note"), ("b", "warning"))
    found = [
        Finding(rule="R", step=step, severity=grade, message="m", remedy="r", subject=subject)
        for step, (subject, grade) in enumerate(grades)
    ]
    assert first_per_subject([None, *found]) == (found[0], found[2], found[3])


def test_it_shows_itself_in_a_notebook():
    found = Finding(rule="A", subject="<b>", step=3, severity="warning", message="rose.", remedy="Look at it.")
    page = found._repr_html_()
    assert "A [&lt;b&gt;] at step 3" in page
    assert "Look at it." in page
    assert "because" not in page
    (explained,) = explain([found])
    assert "likely (70%)" in explained._repr_html_()
    caused = dataclasses.replace(explained, because_of="B at step 2")
    assert "B at step 2" in caused._repr_html_()
