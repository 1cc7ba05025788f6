"""Thresholds are declared in the rule, can be overridden per rule, and are validated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest

from fieldwatch.health import GENERAL, HealthRule, rules_markdown, threshold, thresholds_of
from fieldwatch.health.rules.gradients import GradientExploding, TermConflict
from fieldwatch.health.rules.losses import LossJump


@dataclass(frozen=True, kw_only=True)
class Low(HealthRule):
    """A metric is low."""

    metric: str = "a"
    low: float = threshold(0.5, unit="dB", reason="half of | what is usual", source="https://example.org/low")
    patience: int = threshold(3, unit="recordings", reason="one is no trend")

    def __call__(self, history):
        """Return nothing."""
        del history
        return ()


@dataclass(frozen=True, kw_only=True)
class LowByEpoch(Low):
    """A metric is low in an epoch."""

    reported_as: ClassVar[str] = "Low"
    metrics: Sequence[str] = ("b",)
    patience: int = threshold(1, unit="epochs", reason="an epoch is long")


def test_a_threshold_is_the_default_of_its_field_and_knows_where_it_comes_from():
    assert (Low().low, Low.low, Low(low=0.7).low) == (0.5, 0.5, 0.7)
    about = thresholds_of(Low)
    assert list(about) == ["low", "patience"]
    assert (about["low"].value, about["low"].unit, about["low"].source) == (0.5, "dB", "https://example.org/low")
    assert about["patience"].source == "chosen by the authors"


def test_a_variant_changes_some_thresholds_and_reports_under_the_name_of_the_rule():
    rule = LowByEpoch()
    assert (rule.low, rule.patience, rule.name) == (0.5, 1, "Low")
    assert rule.finding(3, "it is low").rule == "Low"
    assert thresholds_of(rule)["patience"].unit == "epochs"


@pytest.mark.parametrize("missing", ["unit", "reason", "source"])
def test_a_threshold_without_its_reasons_is_refused(missing):
    about = {"unit": "dB", "reason": "because", "source": "https://example.org"} | {missing: ""}
    with pytest.raises(ValueError, match=r"threshold\(0.5\).*''"):
        threshold(0.5, **about)


def test_the_page_shows_each_rule_once_with_its_own_thresholds():
    page = rules_markdown({"hair": (*GENERAL, Low(), LowByEpoch(), Low(low=0.9))})
    general, _, hair = page.partition("## Rules of hair runs")
    assert "### LossJump\n" in general
    low, _, variant = hair.partition("### LowByEpoch\n")
    assert low.count("### Low\n") == 1
    assert "| `low` | 0.5 | dB | half of &#124; what is usual | https://example.org/low |" in low
    assert "| `patience` | 1 | epochs | an epoch is long | chosen by the authors |" in variant
    assert "`low`" not in variant
    assert "(#low)" in variant


@pytest.mark.parametrize("rule", list(dict.fromkeys(type(rule) for rule in GENERAL)), ids=lambda rule: rule.__name__)
def test_the_page_shows_every_rule_with_its_numbers(rule):
    section = rules_markdown({}).partition(f"### {rule.__name__}\n")[2].partition("\n### ")[0]
    assert rule.remedy in section
    assert (rule.__doc__ or "").partition("\n")[0] in section
    for name, about in thresholds_of(rule).items():
        assert f"| `{name}` | {about.value:g} | {about.unit} |" in section


def test_the_page_says_where_a_rule_that_is_not_general_applies():
    page = rules_markdown({"hair": (GradientExploding(high=1.0),), "fur": ()})
    assert "*In:* every run." in page.partition("### GradientExploding\n")[2].partition("###")[0]
    assert "*In:* hair." not in page


@pytest.mark.parametrize(
    ("rule", "changes", "words"),
    [
        (LossJump, {"patience": 0}, r"LossJump\(patience=0\).*at least 1"),
        (LossJump, {"ratio": math.nan}, r"LossJump\(ratio=nan\).*at least 0"),
        (TermConflict, {"cosine": -0.5}, r"TermConflict\(cosine=-0.5\)"),
    ],
)
def test_thresholds_out_of_bounds_are_refused(rule, changes, words):
    with pytest.raises(ValueError, match=words):
        rule(**changes)
