"""One table of thresholds: the rules use it, the page shows it."""

import dataclasses
import math

import pytest

from fieldwatch.health import (
    DEFAULTS,
    GENERAL,
    NORMALS,
    SPLATS,
    VIDEO,
    GradientExploding,
    LossJump,
    TermConflict,
    rule_classes,
    rules_markdown,
)

CLASSES = pytest.mark.parametrize("rule", rule_classes(), ids=lambda rule: rule.__name__)


@CLASSES
def test_every_threshold_of_a_rule_stands_in_the_table_and_nowhere_else(rule):
    numbers = {f.name: f.default for f in dataclasses.fields(rule) if isinstance(f.default, int | float)}
    assert numbers == {name: default.value for name, default in DEFAULTS[rule.__name__].items()}


@CLASSES
def test_the_page_shows_every_rule_with_its_numbers(rule):
    section = rules_markdown().partition(f"## {rule.__name__}\n")[2].partition("\n## ")[0]
    assert rule.remedy in section
    assert (rule.__doc__ or "").partition("\n")[0] in section
    for name, default in DEFAULTS[rule.__name__].items():
        assert f"| `{name}` " in section
        assert default.reason in section


@CLASSES
def test_every_rule_is_in_a_set_or_asks_for_its_groups(rule):
    assert any(type(member) is rule for member in (*GENERAL, *VIDEO, *SPLATS, *NORMALS))


def test_the_table_names_rules_and_thresholds_that_exist():
    fields = {rule.__name__: {field.name for field in dataclasses.fields(rule)} for rule in rule_classes()}
    for variant, numbers in DEFAULTS.items():
        assert set(numbers) <= fields[variant.partition("/")[0]]


def test_every_number_has_a_reason_and_a_source():
    for numbers in DEFAULTS.values():
        for default in numbers.values():
            assert math.isfinite(default.value)
            assert default.reason
            assert default.source


def test_the_numbers_of_the_guides():
    """The seeds' warning signs, word for word."""
    expected = {
        ("Overfitting", "gap"): 5,
        ("GradientVanishing/epochs", "low"): 0.001,
        ("GradientExploding", "high"): 100,
        ("GroupImbalance", "low"): 0.1,
        ("GroupImbalance", "high"): 10,
        ("PoorSemantics", "low"): 0.7,
        ("LossJump", "limit"): 100,
        ("RayStarvation", "low"): 0,
        ("OccupancySaturated", "high"): 1,
        ("FragmentationHigh", "high"): 40,
        ("TermDominates", "ratio"): 3,
        ("GradientVanishing", "low"): 1e-7,
    }
    assert {key: DEFAULTS[key[0]][key[1]].value for key in expected} == expected


def test_the_video_set_uses_the_epoch_variants():
    epochs = [rule for rule in VIDEO if isinstance(rule, GradientExploding) and rule.ratio == 0]
    assert [rule.metrics for rule in epochs] == [("Train/Gradients/total_norm",)]


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        DEFAULTS["LossJump"]["ratio"] = DEFAULTS["LossJump"]["limit"]


@pytest.mark.parametrize(
    ("rule", "changes", "words"),
    [
        (LossJump, {"patience": 0}, r"LossJump\(patience=0\): wanted a finite number of at least 1"),
        (LossJump, {"ratio": math.nan}, r"LossJump\(ratio=nan\): wanted a finite number of at least 0"),
        (TermConflict, {"cosine": -0.5}, r"TermConflict\(cosine=-0.5\).*leave it out for the default"),
    ],
)
def test_thresholds_out_of_bounds_are_refused(rule, changes, words):
    with pytest.raises(ValueError, match=words):
        rule(**changes)
