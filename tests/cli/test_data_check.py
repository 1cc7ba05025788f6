"""The check before the first step: errors keep a training from starting, warnings go into its record."""

import pytest

from fieldwatch.cli.data_check import check_data
from fieldwatch.cli.doctor_report import DataFinding
from fieldwatch.cli.output import BadInput
from fieldwatch.record import Terminal
from fieldwatch.registry import Job


def finding(name, severity):
    return DataFinding(name=name, severity=severity, message=f"{name} is off.", remedy=f"--{name} 3")


def job(*findings):
    return Job(headline="", total=1, train=lambda *_: None, check=lambda preset: [*findings, *(preset or [])])


def test_errors_are_refused_with_their_remedies_and_the_flag_that_leaves_the_check_out():
    with pytest.raises(BadInput) as refused:
        check_data(job(finding("focal", "error"), finding("weak", "warning")), None, Terminal(quiet=True))
    assert all(text in str(refused.value) for text in ("focal is off", "--focal 3", "--no-doctor"))
    assert "weak" not in str(refused.value)


def test_warnings_are_returned_for_the_record_and_the_preset_reaches_the_check():
    found = check_data(job(finding("weak", "warning")), [finding("lr", "warning")], Terminal(quiet=True))
    assert [(each["name"], each["severity"], each["certain"]) for each in found] == [
        ("weak", "warning", False),
        ("lr", "warning", False),
    ]


def test_without_a_check_nothing_is_found():
    assert check_data(Job(headline="", total=1, train=lambda *_: None), None, Terminal(quiet=True)) == ()
