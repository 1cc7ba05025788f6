"""Presets: each can be trained and matches its name."""

import pytest

from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.presets import PRESETS
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule
from fieldwatch.recon.pipelines.normals.stages import PAPER_STAGES


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_model_and_has_terms_from_the_first_step_to_the_last(name, scene_of):
    config = PRESETS[name]()
    plan = NormalsSchedule(config=config)
    for step in (0, config.steps // 3, config.steps - 1):
        assert plan.weights(step)
        assert plan.march_step(step) > 0
    model = NormalsModel(config, scene_of(config).starting_poses)
    model.sdf.activate(plan.levels(0))
    assert PRESETS[name]() == config


def test_the_numbers_of_pmni():
    pmni = PRESETS["pmni"]()
    assert (pmni.steps, pmni.stages, pmni.rays.rays_per_view) == (30_000, PAPER_STAGES, 512)
    assert (pmni.rays.warm_up_rays, pmni.rays.warm_up_rays_until) == (256, 500)
    assert (pmni.rays.views_per_step, pmni.poses.learned) == (0, False)
    assert pmni.sdf == NormalsConfig().sdf
    assert PRESETS["parity"]().rays == pmni.rays


def test_what_presets_differ_in():
    made = {name: make() for name, make in PRESETS.items()}
    assert {name for name, config in made.items() if config.poses.learned} == {"poses", "parity"}
    assert {name for name, config in made.items() if not config.terms.balanced} == {"parity"}
    assert {name for name, config in made.items() if config.rays.warm_up_rays} == {"pmni", "gpu", "parity"}
    assert {name for name, config in made.items() if "depth" in NormalsSchedule(config=config).weights(0)} == {
        "pmni",
        "gpu",
        "parity",
    }
    # Faint samples are dropped only where many rays make up for them.
    assert {name for name, config in made.items() if config.rendering.alpha_threshold} == {"cpu"}
    assert made["cpu"].rays.rays > made["default"].rays.rays
    assert made["default"].steps < made["cpu"].steps < made["pmni"].steps
