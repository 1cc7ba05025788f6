"""Densification, resets and the prune: each when due, with its event; a prune that would leave nothing is skipped."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fieldwatch import Outputs, Ranks, Run
from fieldwatch.recon.pipelines.splats import DensificationOptions, Scene, SplatModel, SplatsConfig, prepare_scene
from fieldwatch.recon.pipelines.splats.densifier import Densifier
from fieldwatch.recon.pipelines.splats.floaters import Sightings
from fieldwatch.recon.pipelines.splats.initialization import initial_model
from fieldwatch.recon.pipelines.splats.support import supported_by
from fieldwatch.record import read_history

SHORT = SplatsConfig(
    views=3,
    held_out=0,
    schedule_scale=0.01,
    regularization="density",
    growth_options=DensificationOptions(reset_every=3000),
)
"""Growth after steps 4 .. 69, every 20th; resets at 30 and 60; prune after step 89; 150 steps."""


@pytest.fixture(scope="module")
def scene() -> Scene:
    return prepare_scene(SHORT)


def events_of(
    config: SplatsConfig, scene: Scene, folder: Path, steps: range, opacity: float = 0.7
) -> tuple[list[Any], SplatModel, Densifier]:
    """Run a part of a schedule without training, with a large view-space gradient of every Gaussian."""
    torch.manual_seed(0)
    model = initial_model(config, scene)
    with torch.no_grad():
        model.gaussians.opacity_logits.copy_(
            torch.linspace(-3, 3, len(model.gaussians)) + torch.logit(torch.tensor(opacity))
        )
    densifier = Densifier(config, scene, model)
    with Run(folder, outputs=Outputs(sinks=(), rules=())) as run:
        for step in run.steps(steps.stop, first=steps.start):
            if densifier.collects_statistics(step.index):
                densifier.statistics.gradients += 1e-3
                densifier.statistics.counts += 1
            step.record({"Model/size": len(model.gaussians)})
            densifier.densify_and_prune(run, step)
    history = read_history(folder)
    events = [event for kind in ("growth", "reset", "prune") for event in history.events(kind)]
    return sorted(events, key=lambda event: event["step"]), model, densifier


def kinds(events: list[Any]) -> list[tuple[str, int]]:
    return [(event["kind"], event["step"]) for event in events]


def test_growth_and_resets_come_when_they_are_due(scene: Scene, tmp_path: Path) -> None:
    events, model, densifier = events_of(SHORT, scene, tmp_path, range(65))

    assert kinds(events) == [("growth", 19), ("reset", 29), ("growth", 39), ("growth", 59), ("reset", 59)]
    assert events[0]["cloned"] + events[0]["split"] > 0
    assert events[0]["after"] == events[2]["before"]
    assert len(densifier.statistics.gradients) == len(model.gaussians)


def test_the_prune_takes_the_transparent(scene: Scene, tmp_path: Path) -> None:
    events, model, densifier = events_of(SHORT, scene, tmp_path, range(85, 95))

    (prune,) = events
    assert (prune["kind"], prune["step"], prune["refused"]) == ("prune", 89, 0)
    assert prune["after"] == len(model.gaussians) == prune["before"] - prune["removed"]
    assert bool((model.gaussians.opacities >= 0.5).all())
    assert len(densifier.statistics.gradients) == len(model.gaussians)


def test_a_prune_that_would_leave_next_to_nothing_is_not_done(scene: Scene, tmp_path: Path) -> None:
    events, model, _ = events_of(SHORT, scene, tmp_path, range(85, 95), opacity=0.001)

    (prune,) = events
    assert prune["removed"] == 0
    assert prune["refused"] > 0.98 * prune["before"]
    assert len(model.gaussians) == prune["before"]


def test_the_prune_leaves_what_the_photos_show_of_more_gaussians_than_pixels(scene: Scene, tmp_path: Path) -> None:
    """Every Gaussian contributes less than the minimum, but together they make up the scene."""
    surface = replace(SHORT.surface, prune_below=0.0, prune_hidden=1e6)
    config = replace(SHORT, surface=surface)
    initial = initial_model(config, scene)
    with torch.no_grad():
        initial.gaussians.opacity_logits.fill_(2.0)
    densifier = Densifier(config, scene, initial)
    light = Sightings.of_local(initial, scene.training_views, Ranks()).light
    with Run(tmp_path, outputs=Outputs(sinks=(), rules=())) as run:
        for step in run.steps(91, first=89):
            densifier.densify_and_prune(run, step)

    (prune,) = read_history(tmp_path).events("prune")
    left = Sightings.of_local(initial, scene.training_views, Ranks()).light
    assert prune["refused"] == 0
    assert 0 < prune["hidden"] == prune["removed"] < prune["before"]
    assert left.sum() > 0.7 * light.sum()


def test_what_floats_before_a_camera_is_removed_after_a_densification(tmp_path: Path) -> None:
    growth = DensificationOptions(prune_floaters=0.7, reset_every=0)
    # The filter has one width per Gaussian, which must keep up.
    config = replace(SHORT, views=8, mip=True, growth_options=growth)
    scene = prepare_scene(config)
    model = initial_model(config, scene)
    camera = scene.training_views[0]
    with torch.no_grad():
        model.gaussians.opacity_logits.fill_(2.0)
        model.gaussians.means[-3:] = camera.position + 0.3 * camera.rotation[2]
    densifier = Densifier(config, scene, model)
    with Run(tmp_path, outputs=Outputs(sinks=(), rules=())) as run:
        for step in run.steps(40, first=38):
            if step.index == 39:
                densifier.statistics.gradients += 1e-3
                densifier.statistics.counts += 1
            densifier.densify_and_prune(run, step)

    (prune,) = read_history(tmp_path).events("prune")
    assert prune["step"] == 39
    # Each of the three has been cloned or split.
    assert prune["floaters"] == prune["removed"] == 6
    assert len(densifier.statistics.gradients) == len(model.gaussians) == prune["before"] - 6


def test_the_photos_limit_growth_unless_a_cap_is_given(scene: Scene, tmp_path: Path) -> None:
    config = replace(SHORT, data=tmp_path)
    limited, *_ = events_of(config, scene, tmp_path / "limited", range(20))[0]
    capped = replace(config, growth_options=replace(config.growth_options, growth_cap=6000))
    free, *_ = events_of(capped, scene, tmp_path / "capped", range(20))[0]

    assert limited["after"] == supported_by(scene.photos) < free["after"] == 6000
    assert (limited["held_back"], limited["unsupported"] > 0) == (0, True)
    assert free["held_back"] > 0


def test_mcmc_growth_moves_and_draws_and_never_resets(scene: Scene, tmp_path: Path) -> None:
    config = replace(SHORT, growth_options=DensificationOptions(growth="mcmc", growth_cap=4500, reset_every=3000))
    events, model, densifier = events_of(config, prepare_scene(config), tmp_path, range(65))

    assert kinds(events) == [("growth", 19), ("growth", 39), ("growth", 59)]
    assert len(model.gaussians) == 4500
    before = model.gaussians.means.detach().clone()
    densifier.add_sgld_noise(10, 1e-3)
    assert not torch.equal(model.gaussians.means.detach(), before)
    after = model.gaussians.means.detach().clone()
    densifier.add_sgld_noise(120, 1e-3)
    assert torch.equal(model.gaussians.means.detach(), after)


def test_absolute_gradients_are_summed_while_statistics_are_collected(scene: Scene) -> None:
    config = replace(SHORT, growth_options=DensificationOptions(growth_gradient="absolute"))
    densifier = Densifier(config, scene, initial_model(config, scene))

    assert densifier.needs_absgrad(10)
    assert not densifier.needs_absgrad(100)
    assert not Densifier(SHORT, scene, initial_model(SHORT, scene)).needs_absgrad(10)


def test_the_3d_filter_follows_every_change(scene: Scene, tmp_path: Path) -> None:
    config = replace(SHORT, mip=True)
    _, model, _ = events_of(config, scene, tmp_path, range(25))

    assert model.mip is not None
    assert len(model.mip.widths) == len(model.gaussians)


def test_a_model_that_is_evaluated_has_not_just_grown_or_been_reset(tmp_path: Path) -> None:
    """A densification after 40 steps and a reset after 60 coincide with evaluations: both are deferred by one step."""
    config = replace(SHORT, test_iterations=(4000, 6000))
    events, *_ = events_of(config, prepare_scene(config), tmp_path, range(65))

    assert kinds(events) == [("growth", 19), ("reset", 29), ("growth", 40), ("growth", 60), ("reset", 60)]


def test_the_exported_stage_0_has_not_just_been_pruned() -> None:
    config = replace(SHORT, surface=replace(SHORT.surface, surface_from=8000), test_iterations=(9000,))
    plan = prepare_scene(config).plan
    due = [step for step in range(150) if plan.due_after(step, lambda index: index == plan.prune_after)]
    assert (plan.prune_after, due) == (89, [90])
    assert not any(plan.due_after(step, lambda _: True) for step in (79, 89, 149))


def test_statistics_of_steps_are_added_up_and_those_of_no_step_are_none(scene: Scene) -> None:
    densifier = Densifier(SHORT, scene, initial_model(SHORT, scene))
    one = densifier.statistics_at(10)
    assert one is not None
    one.gradients += 2.0
    one.counts += 1.0
    one.radii += 3.0
    densifier.add(one)
    densifier.add(None)
    densifier.add(one)

    assert float(densifier.statistics.gradients.unique()) == 4.0
    assert float(densifier.statistics.counts.unique()) == 2.0
    assert float(densifier.statistics.radii.unique()) == 3.0
    assert densifier.statistics_at(100) is None
    # What a single view adds is part of the sums already.
    own = densifier.statistics_at(10, alone=True)
    densifier.add(own)
    assert float(densifier.statistics.gradients.unique()) == 4.0
    assert densifier.statistics_at(100, alone=True) is None
