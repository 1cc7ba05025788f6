"""Health rules of splats: each reports an injected fault and stays silent on healthy values."""

import numpy as np
import pytest

from fieldwatch.health.rules.losses import LossNotDecreasing
from fieldwatch.health.rules.parameters import ParameterDrift
from fieldwatch.health.rules.quality import Collapse
from fieldwatch.health.rules.samples import SampleSpike
from fieldwatch.health.rules.timing import SlowStart
from fieldwatch.recon.pipelines.splats.rules import (
    SPLATS_RULES,
    CollapseOnTestViews,
    DegenerateGaussians,
    Floaters,
    GrowthCapBinds,
    NonFiniteGaussians,
    PopulationCollapse,
    PruneRefused,
    ResetsTooOften,
)

RECORDED = {"stride": 10}


def flat(value, count=100):
    return np.full(count, float(value))


def risen(low, high, at=50, count=100):
    """Return low values that become high at a recording."""
    return np.where(np.arange(count) < at, low, high)


def shares(make, kind, values, **options):
    return make(({f"Population/{kind}": values}, RECORDED), **options)


def sizes(make, *counts, each=40, first=0, **options):
    """Return a history in which each number of Gaussians holds for 40 steps."""
    return make(({"Model/size": np.repeat(np.asarray(counts, float), each)}, {"first": first}), **options)


def growth(step, *, before=60_000, held_back=9000, **facts):
    return {"kind": "growth", "step": step, "before": before, "after": before, "held_back": held_back} | {
        "growth_until": 3000,
        **facts,
    }


def capped(make, *events, steps=3000):
    return make({"Loss/total": flat(0.1, steps)}, events=events)


@pytest.mark.parametrize(
    ("kind", "healthy", "fault", "words"),
    [
        ("transparent", 0.45, 0.6, "60% of the Gaussians are transparent"),
        ("giant", 0.04, 0.06, "6% of the Gaussians are giant"),
        ("needle", 0.45, 0.7, "70% of the Gaussians are needles"),
        ("never_visible", 0.15, 0.3, "30% of the Gaussians were visible in no training photo"),
    ],
)
def test_useless_gaussians_are_named_by_their_kind_once_there_were_many_for_long(make, kind, healthy, fault, words):
    rule = DegenerateGaussians()
    faulty = shares(make, kind, risen(healthy, fault))
    (found,) = rule(faulty)
    assert (found.step, found.severity, found.subject) == (790, "warning", f"Population/{kind}")
    assert words in found.message
    assert "prune" in found.remedy
    faulty.discard(791)
    assert len(rule(faulty)) == 1
    faulty.discard(790)
    assert rule(faulty) == ()
    assert rule(shares(make, kind, flat(healthy))) == ()
    assert rule(shares(make, kind, np.where(np.arange(100) % 30 < 28, fault, healthy))) == ()


@pytest.mark.parametrize(
    ("giant", "psnr", "severity"),
    [
        (flat(0.35), [17.5, 19.5, 20.0], "note"),
        (flat(0.35), [15.0, 16.0, 16.5], "warning"),
        (flat(0.35), [17.5, 20.5, 19.0], "warning"),
        (np.linspace(0.2, 0.35, 100), [17.5, 19.5, 20.0], "warning"),
    ],
)
def test_giant_gaussians_of_few_points_are_a_note_if_photos_are_rendered_well(make, giant, psnr, severity):
    photos = {"Test/psnr": np.array(psnr), "Baseline/Test/psnr": np.full(3, 14.8)}
    plan = {"kind": "plan", "step": 0, "steps": 991}
    (found,) = DegenerateGaussians()(
        make(({"Population/giant": giant}, RECORDED), (photos, {"stride": 400}), events=[plan])
    )
    assert found.severity == severity


@pytest.mark.parametrize("excuse", ["reset", "window"])
def test_what_fades_on_purpose_is_excused_and_what_stays_transparent_is_not(make, excuse):
    rule = DegenerateGaussians()
    faded = risen(0.1, 0.9, at=20, count=50)
    if excuse == "reset":
        options = {"events": [{"kind": "reset", "step": step} for step in (190, 400)]}
    else:
        options = {"windows": {"entropy_regularization": (100, 490)}}
    assert len(rule(shares(make, "transparent", faded))) == 1
    assert rule(shares(make, "transparent", faded, **options)) == ()
    assert len(rule(shares(make, "giant", faded, **options))) == 1
    stays = np.concatenate([faded, flat(0.9, 100)])
    assert [found.step for found in rule(shares(make, "transparent", stays, **options))] == [
        1000 if excuse == "reset" else 1090
    ]


@pytest.mark.parametrize("share", [1e-5, np.nan])
def test_one_gaussian_that_is_not_finite_is_an_error_at_once(make, share):
    rule = NonFiniteGaussians()
    (found,) = rule(shares(make, "non_finite", risen(0.0, share)))
    assert (found.step, found.severity, found.subject) == (500, "error", "Population/non_finite")
    assert "last checkpoint" in found.remedy
    assert rule(shares(make, "non_finite", flat(0))) == ()


def test_a_population_that_falls_by_more_than_half_is_named_at_that_step(make):
    rule = PopulationCollapse()
    faulty = sizes(make, 50_000, 20_000)
    (found,) = rule(faulty)
    assert (found.step, found.severity, found.subject) == (40, "warning", "Model/size")
    assert "60% of the Gaussians: 50,000 became 20,000" in found.message
    faulty.discard(40)
    assert rule(faulty) == ()
    assert rule(sizes(make, 50_000, 30_000, 16_000, 9000)) == ()


def test_a_declared_prune_may_take_most_but_not_nearly_all(make):
    rule = PopulationCollapse()
    prune = [{"kind": "prune", "step": 39}]
    assert rule(sizes(make, 50_000, 10_000, events=prune)) == ()
    (found,) = rule(sizes(make, 50_000, 1000, events=prune))
    assert found.message == "a prune removed 98% of the Gaussians: 50,000 became 1,000."
    late = [{"kind": "prune", "step": 20}]
    assert len(rule(sizes(make, 50_000, 10_000, events=late))) == 1


def test_a_prune_that_was_not_done_is_said(make):
    facts = {"kind": "prune", "step": 39, "before": 50_000, "below": 0.5}
    (found,) = PruneRefused()(sizes(make, 50_000, 50_000, events=[{**facts, "removed": 0, "refused": 49_900}]))
    assert (found.step, found.severity, found.subject) == (39, "warning", "prune")
    assert "opacity 0.5 would" in found.message
    assert "49,900 of 50,000 Gaussians" in found.message
    assert PruneRefused()(sizes(make, 50_000, 20_000, events=[{**facts, "removed": 30_000, "refused": 0}])) == ()


def test_many_floaters_are_said_and_few_are_not(make):
    def found(**facts: int):
        return Floaters()(sizes(make, 10_000, 9000, events=[{"kind": "prune", "step": 39, "before": 10_000, **facts}]))

    (removed,) = found(floaters=300)
    assert (removed.step, removed.severity) == (39, "note")
    assert "floaters removed: 300" in removed.message
    (kept,) = found(floaters=0, floaters_kept=4000)
    assert "4,000 of 10,000" in kept.message
    assert found(floaters=20) == found(hidden=500) == ()


def test_a_fall_at_a_phase_border_is_seen_in_the_new_phase(make):
    history = sizes(make, 50_000, 10_000, windows={"entropy": (0, 39), "surface": (40, 79)})
    assert [found.step for found in PopulationCollapse()(history)] == [40]


def test_no_gaussians_at_all_divide_nothing(make):
    assert PopulationCollapse()(sizes(make, 0, 0, 100)) == ()


def test_a_cap_that_binds_long_before_growth_ends_is_noted(make):
    rule = GrowthCapBinds()
    events = [growth(step, held_back=0) for step in range(100, 1000, 100)]
    binding = [growth(step) for step in range(1000, 1300, 100)]
    faulty = capped(make, *events, *binding)
    (found,) = rule(faulty)
    assert (found.step, found.severity) == (1200, "note")
    assert "at 60,000 Gaussians: 9,000" in found.message
    assert "at step 1200" in found.message
    assert "--growth-cap" in found.remedy
    faulty.discard(1200)
    assert rule(faulty) == ()


@pytest.mark.parametrize(
    "events",
    [
        [growth(step, held_back=500) for step in range(100, 1300, 100)],
        [growth(100, held_back=0), *(growth(step) for step in range(2400, 3000, 100))],
        [growth(step, drawn=200) for step in range(100, 1300, 100)],
        [growth(step, held_back=9000 * (step % 300 > 0)) for step in range(100, 1300, 100)],
    ],
    ids=["few", "at the end", "mcmc fills its cap by design", "now and then"],
)
def test_a_cap_that_does_its_work_is_not(make, events):
    assert GrowthCapBinds()(capped(make, *events)) == ()


def test_held_out_quality_is_compared_with_the_best_of_the_whole_run(make):
    """With one evaluation per phase, as in splats runs, a comparison within the phase is impossible."""
    (rule,) = (rule for rule in SPLATS_RULES if isinstance(rule, CollapseOnTestViews))
    windows = {"entropy": (7000, 8999), "density": (9000, 11_999), "late": (12_000, 14_999)}
    fell = make(({"Test/psnr": [27.0, 28.0, 24.5]}, {"first": 7000, "stride": 3000}), windows=windows)
    (found,) = rule(fell)
    assert (found.step, found.message) == (13_000, "Test/psnr collapsed from 28.00 to 24.50 dB.")
    held = make(({"Test/psnr": [27.0, 28.0, 25.5]}, {"first": 7000, "stride": 3000}), windows=windows)
    assert rule(held) == ()
    assert Collapse(metrics=("Test/psnr",), warmup=1, patience=1)(fell) == ()


def test_an_evaluation_right_after_a_prune_is_excused_and_a_later_one_is_not(make):
    (rule,) = (rule for rule in SPLATS_RULES if isinstance(rule, CollapseOnTestViews))
    tests = ({"Test/psnr": [28.0, 24.0, 24.0]}, {"first": 7000, "stride": 500})
    found = rule(make(tests, events=[{"kind": "prune", "step": 7400}]))
    assert [finding.step for finding in found] == [8000]
    assert [finding.step for finding in rule(make(tests))] == [7500]


@pytest.mark.parametrize(("large", "named"), [(343, True), (14, False)])
def test_a_collapse_names_the_densification_that_removed_large_gaussians(make, large, named):
    (rule,) = (rule for rule in SPLATS_RULES if isinstance(rule, CollapseOnTestViews))
    tests = ({"Test/psnr": [18.9, 19.2, 16.1, 17.4]}, {"first": 74, "stride": 75})
    growth = {"kind": "growth", "step": 159, "before": 1500, "after": 1288, "too_large": large}
    (found,) = rule(make(tests, events=[growth]))
    assert ("343 of 1,500" in found.message) == named
    assert ("--largest-size 0" in found.remedy) == named


FIRST = 7000
"""First step of a run that continues a trained model."""


def test_warm_ups_count_from_the_first_step_of_a_run_that_begins_late(make):
    rule = DegenerateGaussians()
    history = make(({"Population/giant": flat(0.9)}, {"first": FIRST, "stride": 10}))
    assert [found.step for found in rule(history)] == [FIRST + 10 * (rule.warmup + rule.patience - 1)]


def test_a_samples_warm_up_counts_from_the_first_window(make):
    """The rendering term is declared from the run's first step, so its phase starts there."""
    losses = flat(0.1, 1200)
    names = [f"view_{i % 10}" for i in range(1200)]
    losses += 0.001 * np.random.default_rng(3).standard_normal(1200)
    losses[[60, 900]] = 0.3
    windows = {"rendering": (FIRST, FIRST + 8000)}
    history = make(({"Loss/total": losses}, {"first": FIRST, "samples": names}), windows=windows)
    assert [found.step for found in SampleSpike()(history)] == [FIRST + 900]


def test_drift_is_judged_in_the_first_phase_of_a_run_that_begins_late(make):
    drift = {"Parameters/means_mean": risen(0.1, 9.0, at=6, count=12), "Parameters/means_std": flat(0.3, 12)}
    early, late = (
        make(({"Loss/total": flat(1, 600)}, {"first": first}), (drift, {"first": first + 49, "stride": 50}))
        for first in (0, FIRST)
    )
    assert [found.step for found in ParameterDrift()(early)] == [449]
    assert [found.step for found in ParameterDrift()(late)] == [FIRST + 449]


def test_a_trained_model_that_does_not_get_better_is_no_finding(make):
    steady = 0.1 + 0.001 * np.sin(np.arange(1300))
    assert len(LossNotDecreasing()(make({"Loss/total": steady}))) == 1
    assert LossNotDecreasing()(make(({"Loss/total": steady}, {"first": FIRST}))) == ()


def test_a_slow_start_is_seen_wherever_the_run_begins(make):
    seconds = 500 + 0.1 * np.arange(40)
    history = make(({"Loss/total": flat(1, 40)}, {"first": FIRST, "seconds": seconds}))
    assert [found.step for found in SlowStart()(history)] == [FIRST + 16]


def resets(make, every, *, rate=0.05):
    events = [{"kind": "reset", "step": step} for step in range(every, 1000, every)]
    return make({"LearningRate/opacity_logits": flat(rate, 1000)}, events=events)


def test_resets_before_opacities_recovered(make):
    """At a rate of 0.05, opacities need about 92 steps from 0.01 to 0.5."""
    (found,) = ResetsTooOften()(resets(make, 20))
    assert (found.step, found.subject) == (80, "reset")
    assert "92 steps" in found.message
    assert "--reset-every" in found.remedy
    assert ResetsTooOften()(resets(make, 150)) == ()
    assert ResetsTooOften()(make({"Loss/total": flat(0.1, 1000)})) == ()


def test_a_random_start_loses_its_unseen_gaussians_by_design(make):
    plan = {"kind": "plan", "step": 0, "steps": 30_000}
    early = sizes(make, 10_000, 3000, each=300, events=[plan])
    assert PopulationCollapse()(early) == ()
    late = sizes(make, 10_000, 3000, each=300, first=5000, events=[plan])
    assert [found.step for found in PopulationCollapse()(late)] == []
    late = sizes(make, 10_000, 3000, each=900, events=[plan])
    assert [found.step for found in PopulationCollapse()(late)] == [900]
