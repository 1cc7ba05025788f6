"""Guide of a run: it describes the plan of that run."""

from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.guide import training_guide
from fieldwatch.recon.pipelines.splats.schedule import make_plan


def test_phases_terms_growth_and_tests_stand_in_it_with_their_steps():
    text = training_guide(make_plan(SplatsConfig(schedule_scale=0.1, regularization="dn_consistency"), None))
    assert text.startswith("# Steps 0 to 1499")
    assert "| entropy | 700 to 899 |" in text
    assert "| `sdf_density` | 900 to 1499 |" in text
    assert "every 300 steps" in text
    assert "after step 899" in text
    assert "evaluated after 700, 1000, 1500 steps" in text
    assert "counts as 0.1 steps" in text


def test_what_does_not_happen_is_not_announced():
    plan = make_plan(SplatsConfig(schedule_scale=1.0, regularization="none"), 7000)
    text = training_guide(plan)
    assert text.startswith("# Steps 7000 to 14999")
    assert "reset" not in text.partition("# Metrics to watch")[0]
    assert "`rendering` | 7000 to 14999" in text
