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


def test_the_guides_run_is_that_of_the_guide():
    seeds = PRESETS["seeds"]()
    assert (seeds.steps, seeds.stages, seeds.rays.rays_per_view) == (30_000, PAPER_STAGES, 512)
    assert (seeds.rays.views_per_step, seeds.poses.learned) == (0, False)
    assert seeds.sdf == NormalsConfig().sdf


def test_what_presets_differ_in():
    made = {name: make() for name, make in PRESETS.items()}
    assert {name for name, config in made.items() if config.poses.learned} == {"poses", "parity"}
    assert {name for name, config in made.items() if not config.terms.balanced} == {"parity"}
    assert {name for name, config in made.items() if "depth" in NormalsSchedule(config=config).weights(0)} == {
        "seeds",
        "parity",
    }
    assert made["default"].steps < made["cpu"].steps < made["seeds"].steps
