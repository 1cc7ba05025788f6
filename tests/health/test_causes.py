"""Causes come before their consequences, and events are the first suspects of what follows at once."""

import pytest

from fieldwatch.base import InputError
from fieldwatch.health import Finding, Severity, diagnose, exit_code, explain
from fieldwatch.health.causes import AT_THE_END, EXPLAINS


def found(rule: str, step: int = 100, severity: Severity = "warning", subject: str = "") -> Finding:
    return Finding(rule=rule, step=step, severity=severity, message=f"{rule}.", remedy="Fix it.", subject=subject)


def test_one_cause_gathers_its_consequences():
    """A rate that jumps fires six rules; the jump comes first, although other findings are more severe or earlier."""
    jump = found("RateJump", 500, subject="0")
    after = [
        found("LossJump", 516, "error"),
        found("GradientVanishing", 535),
        found("DeadGroup", 725, subject="decoder"),
        found("NoProgress", 799),
        *(found("SampleSpike", 501, subject=f"view_{i}") for i in range(30)),
    ]
    (first,) = diagnose([*after, jump])
    assert first.cause.label == "RateJump [0] at step 500"
    assert first.cause.because_of == ""
    assert first.severity == "error"
    assert len(first.consequences) == len(after)
    assert {each.because_of for each in first.consequences} == {first.cause.label}


def test_a_cause_explains_nothing_that_was_there_before_it():
    early = found("LossSpike", 100)
    jump = found("RateJump", 500)
    assert [each.consequences for each in diagnose([early, jump])] == [(), ()]
    # Rules with patience notice a condition later than its consequences.
    assert len(diagnose([found("LossJump", 130), found("ParameterDrift", 100)])) == 1
    # Rules that judge the whole run when it ends do not say when the condition began.
    (whole,) = diagnose([found("SampleSpike", 100), found("WrongSample", 799)])
    assert whole.cause.rule == "WrongSample"


def test_a_note_explains_no_warning():
    jump = found("RateJump", 500, "note")
    assert [each.cause.rule for each in diagnose([jump, found("LossJump", 520)])] == ["LossJump", "RateJump"]


def test_a_note_that_became_a_warning_is_listed_once():
    note = found("MemoryLeak", 300, "note", subject="Memory/allocated_MB")
    warning = found("MemoryLeak", 800, subject="Memory/allocated_MB")
    other = found("MemoryLeak", 300, "note", subject="Memory/peak_MB")
    assert [(each.cause.step, each.cause.severity) for each in diagnose([note, warning])] == [(800, "warning")]
    assert len(diagnose([note, warning, other])) == 2
    assert len(diagnose([warning, note])) == 2


def test_a_setting_that_spoils_a_run_for_certain_explains_even_values_that_are_not_finite():
    overflow = found("NonFinite", step=1, subject="decoder")
    (one,) = diagnose([overflow, found("DoubtfulSetting", step=0, subject="--lr")])
    assert one.cause.rule == "DoubtfulSetting"
    assert [finding.rule for finding in one.consequences] == ["NonFinite"]
    doubt = found("DoubtfulSetting", step=0, severity="note", subject="--lr")
    assert {each.cause.rule for each in diagnose([overflow, doubt])} == {"NonFinite", "DoubtfulSetting"}


def test_the_most_serious_cause_comes_first():
    findings = [found("StepOutlier", 5, "note"), found("HeldOutGap", 599), found("NonFinite", 300, "error")]
    ordered = diagnose([*findings, found("RefusedUpdates", 310)])
    assert [each.cause.rule for each in ordered] == ["NonFinite", "StepOutlier"]
    assert [each.rule for each in ordered[0].consequences] == ["RefusedUpdates", "HeldOutGap"]


def test_an_event_is_the_first_suspect_of_a_spike_right_after_it():
    events = [{"kind": "growth", "step": step} for step in (100, 300)] + [{"kind": "checkpoint", "step": 200}]
    spikes = [found("LossSpike", 104), found("LossSpike", 205)]
    assert [each.cause.because_of for each in diagnose(spikes, events)] == ["event growth at step 100", ""]
    # Every step follows such an event: none of them is suspicious.
    often = [{"kind": "growth", "step": step} for step in range(0, 400, 10)]
    assert [each.cause.because_of for each in diagnose(spikes, often)] == ["", ""]


def test_spikes_of_many_samples_are_one_finding():
    (one,) = diagnose([found("SampleSpike", 100 + i, subject=f"view_{i}") for i in range(20)])
    assert (one.cause.subject, len(one.consequences)) == ("view_0", 19)
    apart = [found("SampleSpike", 100, subject="view_0"), found("SampleSpike", 900, subject="view_1")]
    assert len(diagnose(apart)) == 2


def test_no_findings_explain_each_other():
    """Every rule with every other, in any order of steps: each finding appears exactly once."""
    rules = sorted({*EXPLAINS, *(rule for rules in EXPLAINS.values() for rule in rules), *AT_THE_END})
    everything = [found(rule, 10 * (i * 7 % len(rules))) for i, rule in enumerate(rules)]
    explained = explain(everything)
    assert sorted(finding.rule for finding in explained) == rules
    labels = {finding.label for finding in explained if not finding.because_of}
    assert {finding.because_of for finding in explained if finding.because_of} <= labels
    assert exit_code(explained) == exit_code(everything)


def test_rules_of_pipelines_and_users_are_explained_by_what_spoils_everything():
    (one,) = diagnose([found("MyOwnRule", 300), found("RateTooHigh", 5)])
    assert (one.cause.rule, [each.rule for each in one.consequences]) == ("RateTooHigh", ["MyOwnRule"])
    assert len(diagnose([found("MyOwnRule", 300), found("LossJump", 5)])) == 2
    # A rule that raised says nothing about the run.
    assert len(diagnose([found("MyOwnRule", 300, subject="rule failed"), found("RateTooHigh", 5)])) == 2


def test_confidence_in_words():
    explained = [explain([found(rule)])[0] for rule in ("NonFinite", "WrongSample", "LossSpike")]
    assert [finding.certainty for finding in explained] == ["certain", "likely", "possible"]
    assert found("NonFinite").certainty == ""
    with pytest.raises(ValueError, match=r"confidence of 0 to 1, got 1\.2"):
        Finding(rule="a", step=0, severity="note", message="", remedy="", confidence=1.2)


def test_explained_findings_are_read_as_they_were_written():
    """A finding of a live run is not explained yet, and its event has the format of earlier versions."""
    plain = found("LossSpike")
    assert not {"because_of", "confidence"} & set(plain.as_event())
    (explained, consequence) = explain([found("LossJump", 90), plain])
    assert Finding.from_json(consequence.as_event()) == consequence
    assert (explained.because_of, consequence.because_of) == ("", explained.label)
    old = {"rule": "LossSpike", "step": 3, "severity": "note", "message": "", "remedy": ""}
    assert Finding.from_json(old).because_of == ""
    with pytest.raises(InputError, match="lacks remedy"):
        Finding.from_json({key: old[key] for key in old if key != "remedy"})


@pytest.mark.parametrize("cause", ["TermWithoutGradient", "HalfUnderflow"])
def test_what_loses_gradients_explains_outputs_and_samples_without_them(cause):
    (only,) = diagnose([found("OutputUnused", 599), found("SamplesIgnored", 15), found(cause, 31)])
    assert only.cause.rule == cause
