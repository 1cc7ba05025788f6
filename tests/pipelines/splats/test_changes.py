"""Growth, resets and the prune: done when due, each with its event; a prune that would leave nothing is not done."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fieldwatch import Run
from fieldwatch.pipelines.splats import GrowthOptions, Scene, SplatModel, SplatsConfig, prepare_scene
from fieldwatch.pipelines.splats.beginning import first_model
from fieldwatch.pipelines.splats.changes import Changes
from fieldwatch.record import read_history

SHORT = SplatsConfig(
    views=3, held_out=0, schedule_scale=0.01, regularization="density", growth_options=GrowthOptions(reset_every=3000)
)
"""Growth after steps 4 .. 69, every 20th; resets at 30 and 60; prune after step 89; 150 steps."""


@pytest.fixture(scope="module")
def scene() -> Scene:
    return prepare_scene(SHORT)


def events_of(
    config: SplatsConfig, scene: Scene, folder: Path, steps: range, opacity: float = 0.7
) -> tuple[list[Any], SplatModel, Changes]:
    """Run a stretch of a schedule without training; every Gaussian is pulled at."""
    torch.manual_seed(0)
    model = first_model(config, scene)
    with torch.no_grad():
        model.gaussians.opacity_logits.copy_(
            torch.linspace(-3, 3, len(model.gaussians)) + torch.logit(torch.tensor(opacity))
        )
    changes = Changes(config, scene, model)
    with Run(folder, sinks=(), rules=()) as run:
        for step in run.steps(steps.stop, first=steps.start):
            if changes.looks(step.index):
                changes.tally.pulls += 1e-3
                changes.tally.sightings += 1
            step.record({"Model/size": len(model.gaussians)})
            changes.apply(run, step)
    history = read_history(folder)
    events = [event for kind in ("growth", "reset", "prune") for event in history.events(kind)]
    return sorted(events, key=lambda event: event["step"]), model, changes


def kinds(events: list[Any]) -> list[tuple[str, int]]:
    return [(event["kind"], event["step"]) for event in events]


def test_growth_and_resets_come_when_they_are_due(scene: Scene, tmp_path: Path) -> None:
    events, model, changes = events_of(SHORT, scene, tmp_path, range(65))

    assert kinds(events) == [("growth", 19), ("reset", 29), ("growth", 39), ("growth", 59), ("reset", 59)]
    assert events[0]["cloned"] + events[0]["split"] > 0
    assert events[0]["after"] == events[2]["before"]
    assert len(changes.tally.pulls) == len(model.gaussians)


def test_the_prune_takes_the_transparent(scene: Scene, tmp_path: Path) -> None:
    events, model, changes = events_of(SHORT, scene, tmp_path, range(85, 95))

    (prune,) = events
    assert (prune["kind"], prune["step"], prune["refused"]) == ("prune", 89, 0)
    assert prune["after"] == len(model.gaussians) == prune["before"] - prune["removed"]
    assert bool((model.gaussians.opacities >= 0.5).all())
    assert len(changes.tally.pulls) == len(model.gaussians)


def test_a_prune_that_would_leave_next_to_nothing_is_not_done(scene: Scene, tmp_path: Path) -> None:
    events, model, _ = events_of(SHORT, scene, tmp_path, range(85, 95), opacity=0.001)

    (prune,) = events
    assert prune["removed"] == 0
    assert prune["refused"] > 0.98 * prune["before"]
    assert len(model.gaussians) == prune["before"]


def test_mcmc_growth_moves_and_draws_and_never_resets(scene: Scene, tmp_path: Path) -> None:
    config = replace(SHORT, growth_options=GrowthOptions(growth="mcmc", growth_cap=4500, reset_every=3000))
    events, model, changes = events_of(config, prepare_scene(config), tmp_path, range(65))

    assert kinds(events) == [("growth", 19), ("growth", 39), ("growth", 59)]
    assert len(model.gaussians) == 4500
    before = model.gaussians.means.detach().clone()
    changes.shake(10, 1e-3)
    assert not torch.equal(model.gaussians.means.detach(), before)
    after = model.gaussians.means.detach().clone()
    changes.shake(120, 1e-3)
    assert torch.equal(model.gaussians.means.detach(), after)


def test_absolute_gradients_are_summed_while_growth_looks(scene: Scene) -> None:
    config = replace(SHORT, growth_options=GrowthOptions(growth_gradient="absolute"))
    changes = Changes(config, scene, first_model(config, scene))

    assert changes.magnitudes(10)
    assert not changes.magnitudes(100)
    assert not Changes(SHORT, scene, first_model(SHORT, scene)).magnitudes(10)


def test_the_3d_filter_follows_every_change(scene: Scene, tmp_path: Path) -> None:
    config = replace(SHORT, mip=True)
    _, model, _ = events_of(config, scene, tmp_path, range(25))

    assert model.mip is not None
    assert len(model.mip.widths) == len(model.gaussians)
