"""Initial Gaussians: at points, in filled gaps, at random positions, or loaded."""

from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.pipelines.splats import DensificationOptions, Scene, SplatsConfig, SurfaceOptions, prepare_scene
from fieldwatch.recon.pipelines.splats.initialization import initial_model, target_box

CONFIG = SplatsConfig(views=6, held_out=3)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return prepare_scene(CONFIG)


def without_points(scene: Scene) -> Scene:
    photos = scene.photos
    return replace(scene, photos=photos.having(points=photos.points[:0], colors=photos.colors[:0]))


def test_a_gaussian_lies_on_every_point(scene: Scene) -> None:
    model = initial_model(CONFIG, scene)

    assert torch.equal(model.gaussians.means.detach(), scene.photos.points)
    assert model.mip is None
    assert model.exposures is None
    assert model.log_beta is None


def test_gaps_are_filled_and_the_cap_holds_from_the_start(scene: Scene) -> None:
    filled = replace(CONFIG, growth_options=DensificationOptions(fill_points=500))
    capped = replace(CONFIG, growth_options=DensificationOptions(fill_points=500, growth_cap=1000))

    torch.manual_seed(0)
    assert len(scene.photos.points) <= len(initial_model(filled, scene).gaussians) <= len(scene.photos.points) + 500
    assert len(initial_model(capped, scene).gaussians) == 1000


def test_without_points_they_are_scattered_where_the_cameras_look(scene: Scene) -> None:
    low, high = target_box(scene.photos)
    torch.manual_seed(0)
    means = initial_model(CONFIG, without_points(scene)).gaussians.means.detach()

    assert len(means) == 20_000
    assert bool(((means >= low) & (means <= high)).all())
    middle = (low + high) / 2
    assert middle.norm() < 0.5  # the solids are around the origin


def test_loaded_gaussians_are_taken_as_they_are_and_pruned_only_when_asked(scene: Scene) -> None:
    gaussians = initial_model(CONFIG, scene).gaussians
    with torch.no_grad():
        gaussians.opacity_logits[:100] = -5.0
    loaded = replace(scene, cloud=gaussians.to_cloud(), loaded=12_000)

    kept = initial_model(CONFIG, loaded).gaussians
    assert torch.equal(kept.opacity_logits.detach(), gaussians.opacity_logits.detach())
    pruning = replace(CONFIG, prune_on_load=True, surface=SurfaceOptions(prune_below=0.05))
    assert len(initial_model(pruning, loaded).gaussians) == len(gaussians) - 100


def test_what_was_asked_for_is_learned_beside(scene: Scene) -> None:
    config = replace(CONFIG, mip=True, exposure=True, antialiased=True, surface=SurfaceOptions(beta="learnable"))
    model = initial_model(config, scene)

    assert model.antialiased
    assert model.exposures is not None
    assert len(model.exposures) == len(scene.photos.train)
    assert model.mip is not None
    assert set(model.checkpoint_items()) == {"gaussians", "mip", "exposures", "beta"}
    assert {"exposures", "beta"} <= set(model.groups())
