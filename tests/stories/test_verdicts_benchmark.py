"""The benchmark of verdicts: sets a and b match, and it judges findings by the facts they name."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


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
    assert set(declared) == {plant.fault for each in "abt" for plant in verdicts.PLANTS[each]}


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


def plant_of_c(verdicts, name):
    (plant,) = [plant for plant in verdicts.PLANTS["c"] if plant.name == name]
    return plant


def test_a_plant_of_set_c_breaks_its_run_and_its_repair_mends_it(verdicts, tmp_path):
    plant = plant_of_c(verdicts, "offers ranked backward")
    assert plant.broken(tmp_path / "broken", 0) < plant.good
    assert plant.repaired("check the sign of the loss")(tmp_path / "repaired", 0) >= plant.good


def test_a_healthy_run_of_set_c_is_sound(verdicts, tmp_path):
    (run,) = [run for run in verdicts.HEALTHY["c"] if run.name == "graph"]
    assert run.train(tmp_path / "run", 0) >= run.good


def test_a_plant_of_set_d_breaks_its_run_and_its_repair_mends_it(verdicts, tmp_path):
    (plant,) = [plant for plant in verdicts.PLANTS["d"] if plant.name == "films factors begin at zero"]
    assert plant.broken(tmp_path / "broken", 0) < plant.good
    assert plant.repaired("initialize the factors")(tmp_path / "repaired", 0) >= plant.good


def test_a_healthy_run_of_set_d_is_sound(verdicts, tmp_path):
    (run,) = [run for run in verdicts.HEALTHY["d"] if run.name == "films with Adagrad"]
    assert run.train(tmp_path / "run", 0) >= run.good


def test_a_plant_of_set_g_breaks_its_run_and_its_repair_mends_it(verdicts, tmp_path):
    (plant,) = [plant for plant in verdicts.PLANTS["g"] if plant.name == "mortar standardized by rows"]
    assert plant.broken(tmp_path / "broken", 0) < plant.good
    assert plant.repaired("standardize each column")(tmp_path / "repaired", 0) >= plant.good


def test_a_healthy_run_of_set_g_is_sound(verdicts, tmp_path):
    (run,) = [run for run in verdicts.HEALTHY["g"] if run.name == "mortar one strength of ten far off"]
    assert run.train(tmp_path / "run", 0) >= run.good


def test_a_plant_of_set_h_breaks_its_run_and_its_repair_mends_it(verdicts, tmp_path):
    (plant,) = [plant for plant in verdicts.PLANTS["h"] if plant.name == "harvest one head five times"]
    assert plant.broken(tmp_path / "broken", 0) < plant.good
    assert plant.repaired("give each crop its own head")(tmp_path / "repaired", 0) >= plant.good


def test_a_healthy_run_of_set_h_is_sound(verdicts, tmp_path):
    (run,) = [run for run in verdicts.HEALTHY["h"] if run.name == "tides with gaps"]
    assert run.train(tmp_path / "run", 0) >= run.good


def test_a_plant_of_set_i_breaks_its_run_and_its_repair_mends_it(verdicts, tmp_path):
    (plant,) = [plant for plant in verdicts.PLANTS["i"] if plant.name == "foghorns one horn of all"]
    assert plant.broken(tmp_path / "broken", 0) < plant.good
    assert plant.repaired("use a sigmoid for each horn")(tmp_path / "repaired", 0) >= plant.good


def test_a_healthy_run_of_set_i_is_sound(verdicts, tmp_path):
    (run,) = [run for run in verdicts.HEALTHY["i"] if run.name == "parish a third of the edges left out"]
    assert run.train(tmp_path / "run", 0) >= run.good


def test_a_plant_of_set_j_breaks_its_run_and_its_repair_mends_it(verdicts, tmp_path):
    (plant,) = [plant for plant in verdicts.PLANTS["j"] if plant.name == "bakery norm of one number"]
    assert plant.broken(tmp_path / "broken", 0) < plant.good
    assert plant.repaired(plant.ideal)(tmp_path / "repaired", 0) >= plant.good


def test_a_healthy_run_of_set_j_is_sound(verdicts, tmp_path):
    (run,) = [run for run in verdicts.HEALTHY["j"] if run.name == "bakery heavy tails"]
    assert run.train(tmp_path / "run", 0) >= run.good


def test_a_plant_of_set_k_breaks_its_run_and_its_repair_mends_it(verdicts, tmp_path):
    (plant,) = [plant for plant in verdicts.PLANTS["k"] if plant.name == "clinic rows dropped on one side"]
    assert plant.broken(tmp_path / "broken", 0) < plant.good
    assert plant.repaired(plant.ideal)(tmp_path / "repaired", 0) >= plant.good


def test_a_healthy_run_of_set_k_is_sound(verdicts, tmp_path):
    (run,) = [run for run in verdicts.HEALTHY["k"] if run.name == "dairy gaps left out"]
    assert run.train(tmp_path / "run", 0) >= run.good


def test_a_plant_of_set_l_breaks_its_run_and_its_repair_mends_it(verdicts, tmp_path):
    (plant,) = [plant for plant in verdicts.PLANTS["l"] if plant.name == "bookshop only what was bought"]
    assert plant.broken(tmp_path / "broken", 0) < plant.good
    assert plant.repaired(plant.ideal)(tmp_path / "repaired", 0) >= plant.good


def test_a_healthy_run_of_set_l_is_sound(verdicts, tmp_path):
    (run,) = [run for run in verdicts.HEALTHY["l"] if run.name == "luggage rare kinds count more"]
    assert run.train(tmp_path / "run", 0) >= run.good


@pytest.mark.parametrize(
    ("advice", "settings"),
    [
        ("clip the gradients", {"kind": "rnn", "gain": 1.2, "clip": 1.0}),
        ("lower the learning rate", {"kind": "rnn", "gain": 1.2, "clip": None, "rate": 5e-4}),
        ("set lr=0.002", {"kind": "rnn", "gain": 1.2, "clip": None, "rate": 0.002}),
        ("initialize the recurrent weights", {}),
    ],
)
def test_an_advice_changes_the_settings_that_it_speaks_of(verdicts, advice, settings):
    scripts = importlib.import_module("verdict_runs.scripts")
    known = {}

    def program(folder, seed, **given):
        known.update(given)
        return 0.0

    named = scripts.Named(
        kind="gradients",
        cause="explod",
        fixes=(
            scripts.Fix(words="clip", settings={"clip": 1.0}),
            scripts.Fix(words="init"),
            scripts.Fix(words=r"learning rate|\blr\b", settings={"rate": 5e-4}, rate="rate"),
        ),
    )
    script = scripts.Script(program=program, good=0.0)
    script.plant("explodes", named, kind="rnn", gain=1.2, clip=None).repaired(advice)("run", 0)
    assert known == settings


def test_a_rule_is_credited_for_the_first_finding_that_names_the_cause(verdicts, judging):
    scores = importlib.import_module("verdict_runs.scores")
    plant = plant_of_c(verdicts, "cells one mask inverted")
    right = finding("WrongSample", "sample 'slide-23.tif'", "look at the sample")
    beside = finding("Beside", "the loss is high")
    plants = [judging.Ran(ended="finished", findings=found) for found in ([right, beside], [beside, right], [])]
    healthy = [judging.Ran(ended="finished", findings=found) for found in ([beside, beside], [])]
    assert scores.rule_scores([(ran, judging.judge(plant, ran)) for ran in plants], healthy) == {
        "Beside": {"cause_first": 0, "told": 2, "false_alarms": 1},
        "WrongSample": {"cause_first": 1, "told": 2, "false_alarms": 0},
    }


def test_the_page_of_rules_shows_the_stored_scores(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    rule_scores = importlib.import_module("rule_scores")
    totals = {"plants": 9, "told": 8, "cause_first": 7, "repaired": 6, "healthy": 5, "false_alarms": 4}
    rules = {"Known": {"cause_first": 3, "told": 4, "false_alarms": 1}}
    scores = {"c": {"commit": "0123abc", "seed": 1, "totals": totals, "rules": rules}}
    page = "# Rules\n\nAll.\n\n## Losses\n\n### Known\n\nText.\n\n### Other\n\nText.\n"
    made = rule_scores.with_scores(page, scores)
    assert "| c | 9 | 8 | 7 | 6 | 5 | 4 | 0123abc | 1 |" in made
    assert made.index("| c |") < made.index("## Losses")
    known, other = made.split("### ")[1:]
    assert re.findall(r"\d+", known) == ["3", "1", "5"]
    assert re.findall(r"\d+", other) == []
    assert rule_scores.with_scores(page, {}) == page
