"""The benchmark of verdicts: sets a and b match, and it judges findings by the facts they name."""

import importlib

import pytest


@pytest.fixture
def verdicts(benchmark):
    return benchmark("verdicts")


@pytest.fixture
def judging(verdicts):
    return importlib.import_module("verdict_runs.judging")


def finding(rule, message, remedy="", severity="warning"):
    return {"rule": rule, "severity": severity, "subject": "", "message": message, "remedy": remedy}


def test_names_are_unique(verdicts):
    names = [case.name for each in verdicts.PLANTS for case in (*verdicts.PLANTS[each], *verdicts.HEALTHY[each])]
    assert len(names) == len(set(names))


def test_sets_a_and_b_plant_the_same_faults(verdicts):
    assert {plant.fault for plant in verdicts.PLANTS["a"]} == {plant.fault for plant in verdicts.PLANTS["b"]}


def test_every_fault_is_planted(verdicts):
    declared = importlib.import_module("verdict_runs.faults").FAULTS.values()
    assert set(declared) == {plant.fault for each in "ab" for plant in verdicts.PLANTS[each]}


def test_only_the_first_finding_above_a_note_can_name_the_cause_first(verdicts, judging):
    (plant,) = [plant for plant in verdicts.PLANTS["a"] if plant.name == "spots one wrong target"]
    right = finding("SampleSpike", "sample 'spot_017'", "exclude the sample")
    wrong = finding("SampleSpike", "sample 'spot_018'", "exclude the sample")
    note = finding("LossSpike", "spike", severity="note")
    assert judging.judge(plant, judging.Ran(ended="finished", findings=[note, right])).cause == 1
    assert judging.judge(plant, judging.Ran(ended="finished", findings=[wrong, right])).cause == 2
    told = judging.judge(plant, judging.Ran(ended="finished", findings=[wrong]))
    assert (told.told, told.cause, told.remedy) == (True, 0, "exclude the sample")
    assert not judging.judge(plant, judging.Ran(ended="finished", findings=[note])).told


def test_a_refusal_counts_as_the_first_finding(verdicts, judging):
    (plant,) = [plant for plant in verdicts.PLANTS["a"] if plant.name == "spot wrong axes"]
    told = judging.judge(plant, judging.Ran(ended="refused", message="expected axes opencv: pass --axes opencv"))
    assert (told.cause, bool(told.remedy)) == (1, True)


@pytest.mark.parametrize(
    ("flags", "advice", "left"),
    [
        ("--lr 1", "pass --lr 0.003", "--lr 0.003"),
        ("--lr 1", "lower --lr", ""),
        ("--lr-factor 100", "lower the learning rate", ""),
        ("--reset-every 100", "lower --lr", "--reset-every 100"),
        ('--stages "fit@0 normal=1"', "check the masks", '--stages "fit@0 normal=1"'),
    ],
)
def test_a_remedy_changes_the_flags_that_it_names(verdicts, flags, advice, left):
    commands = importlib.import_module("verdict_runs.commands")
    assert commands.advised_flags(flags, advice) == left
