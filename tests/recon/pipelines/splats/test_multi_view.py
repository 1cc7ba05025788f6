"""Multi-view terms of a step: when they act, what they reach, and what they do without a neighbor."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fieldwatch.recon.pipelines.splats import PRESETS, SplatsConfig, SurfaceOptions, prepare_scene
from fieldwatch.recon.pipelines.splats.initialization import initial_model
from fieldwatch.recon.pipelines.splats.multi_view import MULTI_VIEW_TERMS, multi_view_terms
from fieldwatch.recon.pipelines.splats.objective import RenderedView, geometry_outputs

WEIGHTS = {"multi_view_depth_weight": 0.2, "multi_view_photo_weight": 0.3}


def config_with(**changed: Any) -> SplatsConfig:
    surface = SurfaceOptions(multi_view_samples=3000, **changed)
    return SplatsConfig(views=40, held_out=0, schedule_scale=0.002, longer_side=64, surface=surface)


def terms_of(config: SplatsConfig, step: int = 20, bands: int = 1, scene: Any = None) -> Any:
    scene = scene or prepare_scene(config)
    torch.manual_seed(0)
    model = initial_model(config, scene)
    with torch.no_grad():
        model.gaussians.log_scales[:, 2] -= 2
        model.gaussians.opacity_logits.fill_(3.0)
    view = scene.photo_view(0)
    output = model.render(view.camera, bands=bands, **geometry_outputs(config, scene, step))
    rendered = RenderedView(step=step, model=model, output=output, view=view, bands=bands)
    torch.manual_seed(1)
    return multi_view_terms(config, scene, rendered), model


def test_both_terms_act_from_their_iteration_on_and_reach_the_gaussians() -> None:
    config = config_with(**WEIGHTS)
    terms, model = terms_of(config)
    assert set(terms) == set(MULTI_VIEW_TERMS)
    for name, weight in zip(MULTI_VIEW_TERMS, WEIGHTS.values(), strict=True):
        assert terms[name].weight == weight
        assert terms[name].value.item() > 0
        (slope,) = torch.autograd.grad(terms[name].value, [model.gaussians.means], retain_graph=True)
        assert bool(slope.any())
        assert bool(slope.isfinite().all())
    plan = prepare_scene(config_with(**WEIGHTS, multi_view_from=9000)).plan
    assert [plan.acts(name, step) for name in MULTI_VIEW_TERMS for step in (17, 18, 29)] == [False, True, True] * 2


@pytest.mark.parametrize("name", MULTI_VIEW_TERMS)
def test_a_weight_of_0_leaves_the_other_term(name: str) -> None:
    terms, _ = terms_of(config_with(**WEIGHTS | {f"{name}_weight": 0.0}))
    assert set(terms) == set(MULTI_VIEW_TERMS) - {name}


def test_bands_change_nothing() -> None:
    config = config_with(**WEIGHTS)
    whole, _ = terms_of(config)
    parts, _ = terms_of(config, bands=4)
    assert [parts[name].value.item() for name in parts] == pytest.approx(
        [whole[name].value.item() for name in whole], rel=1e-4
    )


def test_a_view_without_neighbors_and_other_recipes_have_no_term() -> None:
    # Three cameras around the scene have nothing in common at ten degrees.
    config = replace(config_with(**WEIGHTS), views=3)
    assert prepare_scene(config).neighbors[0] == ()
    terms, _ = terms_of(config)
    assert not terms
    others = prepare_scene(replace(config_with(**WEIGHTS), regularization="dn_consistency")).plan
    assert not any(others.acts(name, 20) for name in MULTI_VIEW_TERMS)


def test_the_preset_rooms_is_cpu_with_these_terms() -> None:
    rooms = PRESETS["rooms"]()
    assert replace(rooms, surface=PRESETS["cpu"]().surface) == PRESETS["cpu"]()
    plan = prepare_scene(replace(rooms, views=3, held_out=0, longer_side=64)).plan
    assert all(plan.acts(name, plan.total - 1) for name in MULTI_VIEW_TERMS)
