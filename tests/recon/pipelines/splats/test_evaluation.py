"""Evaluations: their scores, and that they leave training unaffected."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.losses import Lpips
from fieldwatch.recon.pipelines.splats.evaluation import evaluate, surface_metrics
from fieldwatch.recon.pipelines.splats.exposure import Exposures, exposed
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.rates import Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.tags import SPLATS_METRICS
from fieldwatch.recon.render import image_similarity


class Plain(Lpips):
    """A cheap replacement of the network that records its calls."""

    def __init__(self):
        nn.Module.__init__(self)
        self.seen = []

    def forward(self, image, photo):
        self.seen.append(tuple(image.shape))
        return 3 * (image - photo).abs().mean((1, 2, 3))


def exposures_of(scene):
    return Exposures([scene.photos.names[i] for i in scene.photos.train])


def with_pictures(scene, change):
    """Return the scene with other pixels."""
    read = scene.photos.read
    return replace(scene, photos=scene.photos.having(read=lambda index: change(index, read(index))))


def masked(index, picture, *, spoiled):
    mask = torch.zeros(picture.image.shape[:2], dtype=torch.uint8)
    mask[10:30, 5:25] = 255
    image = picture.image.clone()
    image[mask == 0] += spoiled
    return PhotoPixels(image=image, mask=mask)


@torch.no_grad()
def test_scores_are_those_of_the_papers(tiny_scene, tiny_model):
    result = evaluate(tiny_model, tiny_scene)
    by_hand = []
    for index in tiny_scene.photos.test:
        view = tiny_scene.photo_view(index)
        image = tiny_model.render(view.camera).features.clamp(0, 1)
        mse = (image.double() - view.image.double()).square().mean()
        by_hand.append((-10 * math.log10(mse), float(image_similarity(image, view.image).ssim)))
    assert [row.psnr for row in result.rows] == pytest.approx([psnr for psnr, _ in by_hand], abs=1e-3)
    assert [row.ssim for row in result.rows] == pytest.approx([ssim for _, ssim in by_hand], abs=1e-5)
    assert result.metrics["Test/psnr"] == pytest.approx(sum(psnr for psnr, _ in by_hand) / len(by_hand), abs=1e-3)
    assert result.score == result.metrics["Test/psnr"]
    assert result.metrics["Test/loss"] == result.metrics["Test/l1"]
    assert result.metrics["Test/num_gaussians_K"] == pytest.approx(0.3)
    assert result.metrics["Test/render_time_ms"] > 0


def test_colors_brighter_than_a_screen_are_clamped(tiny_scene, tiny_model):
    white = with_pictures(tiny_scene, lambda _, picture: PhotoPixels(image=torch.full_like(picture.image, 255)))
    tiny_model.background = torch.full((3,), 4.0)
    tiny_model.gaussians.opacity_logits.data.fill_(-20)
    assert evaluate(tiny_model, white).metrics["Test/psnr"] == pytest.approx(100)


def test_every_tag_is_declared(tiny_scene, tiny_model):
    tiny_model.exposures = exposures_of(tiny_scene)
    result = evaluate(tiny_model, tiny_scene, lpips=Plain())
    for name in result.metrics:
        SPLATS_METRICS.require(name)
    assert {"Test/lpips", "Test/psnr_fitted", "Test/ssim_fitted", "Test/psnr_gap", "Surface/mean_distance"} <= set(
        result.metrics
    )


def test_pixels_outside_the_mask_do_not_count(tiny_scene, tiny_model):
    one, other = (
        evaluate(tiny_model, with_pictures(tiny_scene, lambda i, p, s=spoiled: masked(i, p, spoiled=s)))
        for spoiled in (0, 77)
    )
    for name in ("Test/psnr", "Test/ssim", "Test/l1", "Test/train_psnr"):
        assert one.metrics[name] == pytest.approx(other.metrics[name], abs=1e-5)
    view = with_pictures(tiny_scene, lambda i, p: masked(i, p, spoiled=0)).photo_view(tiny_scene.photos.test[0])
    with torch.no_grad():
        inside = (tiny_model.render(view.camera).features.clamp(0, 1) - view.image)[10:30, 5:25]
    assert one.rows[0].psnr == pytest.approx(-10 * math.log10(inside.square().mean()), abs=1e-3)
    assert one.rows[0].l1 == pytest.approx(float(inside.abs().mean()), abs=1e-5)


def test_photos_without_a_pixel_are_left_out_and_all_of_them_are_refused(tiny_scene, tiny_model):
    def black(index, picture, without):
        value = 0 if index in without else 255
        mask = torch.full(picture.image.shape[:2], value, dtype=torch.uint8)
        return PhotoPixels(image=picture.image, mask=mask)

    some = with_pictures(tiny_scene, lambda i, p: black(i, p, {0}))
    assert [row.name for row in evaluate(tiny_model, some).rows] == ["view_003.png", "view_006.png"]
    none = with_pictures(tiny_scene, lambda i, p: black(i, p, {0, 3, 6}))
    with pytest.raises(ValueError, match="masks of all 3 photos"):
        evaluate(tiny_model, none)


def test_without_held_out_photos_the_training_photos_are_scored_and_it_is_said(tiny_scene, tiny_model):
    everything = tuple(range(len(tiny_scene.photos)))
    result = evaluate(tiny_model, replace(tiny_scene, photos=tiny_scene.photos.having(train=everything, test=())))
    assert not result.held_out
    assert len(result.rows) == len(everything)
    assert "Test/train_psnr" not in result.metrics
    assert "Test/psnr_gap" not in result.metrics


def test_the_fitted_score_forgives_exposure_and_the_other_does_not(tiny_scene, tiny_model):
    before = evaluate(tiny_model, tiny_scene)
    darker = with_pictures(tiny_scene, lambda _, p: PhotoPixels(image=(p.image.float() * 0.4).byte()))
    tiny_model.exposures = exposures_of(darker)
    result = evaluate(tiny_model, darker).metrics
    assert result["Test/psnr_fitted"] > result["Test/psnr"] + 1
    assert result["Test/psnr"] == result["Test/psnr_as_drawn"]  # the transforms are still the identity
    assert result["Test/psnr_gap"] == pytest.approx(result["Test/train_psnr"] - result["Test/psnr"])
    tiny_model.exposures.raw.data[:] = torch.rand_like(tiny_model.exposures.raw)
    assert evaluate(tiny_model, tiny_scene).metrics["Test/psnr_as_drawn"] == before.metrics["Test/psnr"]
    assert "Test/psnr_as_drawn" not in before.metrics


def test_held_out_photos_are_drawn_under_the_mean_map_of_their_neighbors(tiny_scene, tiny_model):
    exposures = tiny_model.exposures = exposures_of(tiny_scene)
    exposures.raw.data += 0.1 * torch.rand_like(exposures.raw)
    row = evaluate(tiny_model, tiny_scene).rows[1]
    view = tiny_scene.photo_view(tiny_scene.photos.names.index(row.name))
    with torch.no_grad():
        image = exposed(tiny_model.render(view.camera).features, exposures.between(row.name)).clamp(0, 1)
    assert row.psnr == pytest.approx(-10 * math.log10((image - view.image).square().mean()), abs=1e-3)


def test_training_photos_are_scored_under_their_own_map(tiny_scene, tiny_model):
    exposures = tiny_model.exposures = exposures_of(tiny_scene)
    exposures.raw.data += 0.1 * torch.rand_like(exposures.raw)
    by_hand = []
    for place, index in enumerate(tiny_scene.photos.train):
        with torch.no_grad():
            seen = exposures(tiny_model.render(tiny_scene.views[index]).features, place).clamp(0, 1)
        by_hand.append(-10 * math.log10((seen - tiny_scene.photo_view(index).image).square().mean()))
    result = evaluate(tiny_model, tiny_scene).metrics["Test/train_psnr"]
    assert result == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-3)


def test_the_worst_views_come_first_with_their_images(tiny_scene, tiny_model):
    spoiled = with_pictures(
        tiny_scene, lambda i, p: PhotoPixels(image=255 - p.image) if i == tiny_scene.photos.test[1] else p
    )
    result = evaluate(tiny_model, spoiled)
    values = [one.score.psnr for one in result.worst]
    assert values == sorted(row.psnr for row in result.rows)[: len(values)]
    assert result.worst[0].index == tiny_scene.photos.test[1]
    with torch.no_grad():
        drawn = tiny_model.render(spoiled.views[result.worst[0].index]).features.clamp(0, 1)
    assert torch.equal(result.worst[0].image, drawn)


def test_distances_are_those_of_opaque_centers(tiny_scene):
    points = torch.tensor([[0.0, 0, 1], [0, 0, 2], [0, 0, -4], [0, 0, 100]])
    gaussians = Gaussians.from_points(points, torch.zeros(4, 3), degree=0, opacity=0.9, spacing=torch.full((4,), 0.1))
    gaussians.opacity_logits.data[3] = -3
    scene = replace(tiny_scene, distance=lambda points: points[:, 2] - 2, extent=50.0)
    result = surface_metrics(SplatModel(gaussians, torch.zeros(3)), scene)
    assert result == pytest.approx(
        {"Surface/mean_distance": (1 + 0 + 6) / 3, "Surface/median_distance": 1.0, "Surface/within_1_percent": 1 / 3}
    )
    assert surface_metrics(SplatModel(gaussians, torch.zeros(3)), replace(scene, distance=None)) == {}
    gaussians.opacity_logits.data.fill_(-3)
    assert surface_metrics(SplatModel(gaussians, torch.zeros(3)), scene) == {}


def test_lpips_sees_each_held_out_view_once_and_what_the_mask_leaves(tiny_scene, tiny_model):
    lpips = Plain()
    result = evaluate(tiny_model, with_pictures(tiny_scene, lambda i, p: masked(i, p, spoiled=0)), lpips=lpips)
    assert lpips.seen == [(1, 3, 40, 40)] * 3
    counted = result.rows[0].l1 * 20 * 20 / 40**2
    assert result.rows[0].lpips == pytest.approx(3 * counted, rel=1e-4)


def trained(scene, evaluating):
    """Train a few steps with a random background and return the resulting state."""
    torch.manual_seed(3)
    gaussians = Gaussians.from_points(scene.photos.points, scene.photos.colors, degree=1)
    model = SplatModel(gaussians, torch.zeros(3), exposures=exposures_of(scene))
    optimizer = make_optimizer(gaussians, Rates(decay_steps=10), scene.extent)
    for step in range(5):
        view = scene.photo_view(scene.photos.train[step % 6])
        model.background = torch.rand(3)
        drawn = model.render(view.camera)
        optimizer.zero_grad()
        (drawn.features - view.image).square().mean().backward()
        if evaluating:  # between backward and update, where interference is most likely
            evaluate(model, scene, lpips=Plain())
        optimizer.visible = drawn.ids
        optimizer.step()
    return [*gaussians.rows(), torch.rand(2)], gaussians.means.grad.clone(), gaussians.training


def test_training_is_the_same_bit_by_bit_with_and_without_it(tiny_scene):
    plain = trained(tiny_scene, evaluating=False)
    evaluated = trained(tiny_scene, evaluating=True)
    assert all(torch.equal(one, other) for one, other in zip(plain[0], evaluated[0], strict=True))
    assert torch.equal(plain[1], evaluated[1])
    assert plain[2] == evaluated[2]


def test_it_asks_for_no_gradient(tiny_scene, tiny_model):
    result = evaluate(tiny_model, tiny_scene)
    assert tiny_model.gaussians.means.grad is None
    assert all(not one.image.requires_grad for one in result.worst)


@torch.no_grad()
def test_the_baseline_is_the_mean_color_of_the_training_photos(tiny_scene, tiny_model):
    result = evaluate(tiny_model, tiny_scene)
    color = torch.stack([tiny_scene.photo_view(i).image.mean(dim=(0, 1)) for i in tiny_scene.photos.train]).mean(0)
    errors = [(tiny_scene.photo_view(i).image - color).square().mean() for i in tiny_scene.photos.test]
    by_hand = [-10 * math.log10(float(error)) for error in errors]
    assert result.metrics["Baseline/Test/psnr"] == pytest.approx(sum(by_hand) / len(by_hand), abs=0.2)


@torch.no_grad()
def test_masked_pixels_do_not_count_in_the_baseline(tiny_scene, tiny_model):
    clean = evaluate(tiny_model, with_pictures(tiny_scene, lambda i, p: masked(i, p, spoiled=0)))
    spoiled = evaluate(tiny_model, with_pictures(tiny_scene, lambda i, p: masked(i, p, spoiled=90)))
    assert spoiled.mean_color_psnr == pytest.approx(clean.mean_color_psnr, abs=1e-4)
