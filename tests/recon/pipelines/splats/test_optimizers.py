"""Optimizers and learning rates: schedules, single exposures, the thickness only with its terms."""

from dataclasses import replace

import pytest
import torch

from fieldwatch import Terms
from fieldwatch.recon.pipelines.splats import RateOptions, Scene, SplatsConfig, SurfaceOptions, prepare_scene
from fieldwatch.recon.pipelines.splats.initialization import initial_model
from fieldwatch.recon.pipelines.splats.optimizers import SplatOptimizers, rates_of
from fieldwatch.recon.render import VisibleAdam

CONFIG = SplatsConfig(
    views=4,
    held_out=0,
    schedule_scale=0.01,
    regularization="density",
    exposure=True,
    surface=SurfaceOptions(beta="learnable"),
    rates=RateOptions(lr_iterations=None, lr_factor=2.0, lr_fall=0.1),
)
"""150 steps."""


@pytest.fixture(scope="module")
def scene() -> Scene:
    return prepare_scene(CONFIG)


def made(scene: Scene) -> SplatOptimizers:
    torch.manual_seed(0)
    return SplatOptimizers(CONFIG, scene, initial_model(CONFIG, scene))


def rate_of(optimizers: SplatOptimizers, name: str) -> float:
    return next(group["lr"] for group in optimizers.gaussians.param_groups if group.get("name") == name)


def test_rates_end_with_the_run_and_the_others_fall_over_its_second_half(scene: Scene) -> None:
    rates = rates_of(CONFIG, scene.plan)
    optimizers = made(scene)

    assert rates.decay_steps == 150
    assert rates.means == pytest.approx(3.2e-4)
    for step, share in ((0, 1.0), (75, 1.0), (150, 0.1)):
        optimizers.rates.apply(optimizers.gaussians, step, scene.extent)
        assert rate_of(optimizers, "log_scales") == pytest.approx(2 * 5e-3 * share)
    assert rate_of(optimizers, "means") == pytest.approx(1.6e-6 * scene.extent)


def test_without_a_fall_all_but_the_means_stay() -> None:
    plain = SplatsConfig(views=3, schedule_scale=0.01)
    rates = rates_of(plain, prepare_scene(plain).plan)

    assert (rates.fall, rates.decay_steps) == (1.0, 300)


def test_a_step_is_prepared_for_what_the_photo_showed(scene: Scene) -> None:
    optimizers = made(scene)
    ids = torch.tensor([3, 5])
    optimizers.set_rates(10, (2,), ids)

    assert isinstance(optimizers.gaussians, VisibleAdam)
    assert optimizers.gaussians.visible is ids
    exposures = optimizers.checkpoint_items()["exposure_optimizer"]
    assert exposures.visible.tolist() == [2]
    assert exposures.param_groups[0]["lr"] < 5e-3
    optimizers.set_rates(10, (2, 0, 2), ids)
    assert exposures.visible.tolist() == [0, 2]  # unique, as VisibleAdam requires


def test_the_thickness_is_stepped_with_the_density_alone(scene: Scene) -> None:
    optimizers = made(scene)
    value = torch.ones(())
    plain = Terms(rendering=(1.0, value))
    dense = Terms(rendering=(1.0, value), sdf_density=(1.0, value))

    assert len(optimizers.active(plain)) == 2
    assert optimizers.active(dense)[-1] is optimizers.checkpoint_items()["beta_optimizer"]


def test_only_what_is_learned_has_an_optimizer(scene: Scene) -> None:
    plain = replace(CONFIG, exposure=False, surface=SurfaceOptions())
    optimizers = SplatOptimizers(plain, scene, initial_model(plain, scene))

    assert list(optimizers.checkpoint_items()) == ["optimizer"]
