"""Loss terms of a step: when each acts, its weight, and that its gradient reaches the Gaussians."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from fieldwatch import Terms
from fieldwatch.recon.pipelines.splats import Scene, SplatModel, SplatsConfig, SurfaceOptions, prepare_scene
from fieldwatch.recon.pipelines.splats.algorithm import loss_terms
from fieldwatch.recon.pipelines.splats.initialization import initial_model
from fieldwatch.recon.pipelines.splats.neighborhood import Neighborhood
from fieldwatch.recon.pipelines.splats.objective import RenderedView, density_acts, geometry_outputs, step_psnr
from fieldwatch.recon.pipelines.splats.quality import score_image

SHORT = SplatsConfig(views=3, held_out=0, schedule_scale=0.002, longer_side=64)
"""Iterations 7000, 9000, 15000 are steps 14, 18, 30."""


def span(_: str) -> nullcontext[None]:
    return nullcontext()


@cache
def scene_of(config: SplatsConfig) -> Scene:
    return prepare_scene(config)


def drawn_at(config: SplatsConfig, step: int) -> tuple[Scene, SplatModel, RenderedView]:
    scene = scene_of(config)
    torch.manual_seed(0)
    model = initial_model(config, scene)
    with torch.no_grad():  # isotropic Gaussians have no meaningful normals
        model.gaussians.quaternions.add_(0.3 * torch.randn(len(model.gaussians), 4))
        model.gaussians.log_scales.add_(0.3 * torch.randn(len(model.gaussians), 3))
        model.gaussians.opacity_logits.fill_(1.5)  # otherwise no pixel has the depth of a surface
    wanted = geometry_outputs(config, scene, step)
    view = scene.photo_view(0)
    drawn = model.render(view.camera, **wanted)
    return scene, model, RenderedView(step=step, model=model, output=drawn, view=view)


def terms_at(config: SplatsConfig, step: int) -> tuple[Terms, SplatModel]:
    scene, model, one = drawn_at(config, step)
    torch.manual_seed(1)
    with Neighborhood(config.surface.neighbors) as neighborhood:
        return loss_terms(config, scene, one, neighborhood, span), model


def with_surface(regularization: Any, **changed: Any) -> SplatsConfig:
    return replace(SHORT, regularization=regularization, surface=replace(SurfaceOptions(), samples=400, **changed))


@pytest.mark.parametrize(
    ("regularization", "expected"),
    [
        ("none", {5: set(), 15: set(), 25: set()}),
        (
            "planar",
            {5: set(), 15: {"depth_normal_consistency"}, 25: {"depth_normal_consistency"}},
        ),
        ("density", {5: set(), 15: {"entropy_regularization"}, 25: {"sdf_density", "better_normal"}}),
        ("sdf", {5: set(), 15: {"entropy_regularization"}, 25: {"sdf_estimation", "better_normal"}}),
        (
            "dn_consistency",
            {
                5: set(),
                15: {"entropy_regularization", "depth_normal_consistency"},
                25: {"depth_normal_consistency", "sdf_density", "better_normal"},
            },
        ),
    ],
)
def test_terms_act_in_their_windows_and_reach_the_gaussians(
    regularization: Any, expected: Mapping[int, set[str]]
) -> None:
    config = with_surface(regularization)
    for step, names in expected.items():
        terms, model = terms_at(config, step)

        assert set(terms) == names | {"rendering"}
        for name in names:
            (weight, value) = terms[name]
            gradients = torch.autograd.grad(
                weight * value, list(model.gaussians.parameters()), retain_graph=True, allow_unused=True
            )
            reached = [gradient for gradient in gradients if gradient is not None]
            assert any(bool(gradient.any()) for gradient in reached), name
            assert all(bool(gradient.isfinite().all()) for gradient in reached), name


def test_terms_at_every_fifth_step_weigh_five_times_as_much_but_in_the_fork() -> None:
    often = with_surface("density")
    seldom = with_surface("density", density_every=5)
    literal = with_surface("density", density_every=5, literal=True)

    assert [density_acts(seldom, scene_of(seldom), step) for step in range(18, 25)] == [
        *(False, True, False, False, False, False, True)
    ]
    weights = [terms_at(config, 24)[0]["sdf_density"].weight for config in (often, seldom, literal)]
    assert weights == pytest.approx([0.2, 1.0, 0.2])
    assert "sdf_density" not in terms_at(seldom, 25)[0]


def test_options_have_their_terms() -> None:
    config = with_surface(
        "density", samples_on_surface_weight=0.2, smoothing_weight=0.3, flatness_weight=0.4, beta="weighted_average"
    )
    terms, _ = terms_at(config, 25)

    assert {name: terms[name].weight for name in ("samples_on_surface", "smoothing", "flatness")} == {
        "samples_on_surface": 0.2,
        "smoothing": 0.3,
        "flatness": 0.4,
    }
    assert all(term.value.item() > 0 for term in map(terms.__getitem__, terms))


def test_a_learned_thickness_gets_a_gradient_of_the_density() -> None:
    terms, model = terms_at(with_surface("density", beta="learnable"), 25)
    assert model.log_beta is not None
    terms.total.backward()

    assert model.log_beta.grad is not None
    assert float(model.log_beta.grad) != 0


def test_the_psnr_of_a_step_covers_the_pixels_that_the_evaluation_compares() -> None:
    _, _, one = drawn_at(SHORT, 5)
    mask = torch.zeros(*one.view.image.shape[:2], 1)
    mask[:, :20] = 1
    masked = replace(one.view, mask=mask)
    spoilt = replace(masked, image=torch.where(mask > 0, masked.image, 1 - masked.image))

    psnr = step_psnr(one.output, masked).item()
    assert psnr == pytest.approx(score_image(one.output.features.detach(), masked).psnr, abs=1e-3)
    assert step_psnr(one.output, spoilt).item() == psnr
    assert step_psnr(one.output, replace(masked, mask=torch.zeros_like(mask))).isnan()


@pytest.mark.parametrize("regularization", ["planar", "dn_consistency"])
def test_a_mask_hides_pixels_from_every_term(regularization: Any) -> None:
    config = with_surface(regularization)
    scene, model, one = drawn_at(config, 15)
    mask = torch.zeros(*one.view.image.shape[:2], 1)
    hidden = replace(one, view=replace(one.view, mask=mask))

    terms = loss_terms(config, scene, hidden, Neighborhood(16), span)

    assert terms["rendering"].value.item() == 0
    assert terms["depth_normal_consistency"].value.item() == 0
    assert len(model.gaussians)


def test_the_literal_depth_normal_term_is_the_forks() -> None:
    ours, forks = (with_surface("dn_consistency", literal=literal) for literal in (False, True))
    values = [terms_at(config, 15)[0]["depth_normal_consistency"].value.item() for config in (ours, forks)]

    assert values[0] != pytest.approx(values[1], rel=1e-3)
    border = 1 - (126 * 126) / (128 * 128)
    assert values[1] > border  # the border's error is 1


def test_white_backgrounds_are_drawn_white() -> None:
    def draw(config: SplatsConfig) -> float:
        return drawn_at(config, 0)[2].output.features[0, 0].mean().item()

    assert draw(replace(SHORT, background="white")) > 0.99
    assert draw(SHORT) < 0.01


@pytest.mark.parametrize("regularization", ["density", "sdf"])
def test_samples_compared_in_chunks_give_the_same_terms_and_gradients(regularization: Any) -> None:
    config = with_surface(regularization, samples_on_surface_weight=0.1, smoothing_weight=0.1, beta="weighted_average")

    def terms(chunks: int) -> tuple[dict[str, float], dict[str, torch.Tensor], torch.Tensor]:
        scene, model, one = drawn_at(config, 20)
        torch.manual_seed(1)
        with Neighborhood(config.surface.neighbors) as neighborhood:
            found = loss_terms(config, scene, replace(one, bands=chunks), neighborhood, span)
        found.total.backward()
        slopes = {name: part.grad for name, part in model.gaussians.named_parameters() if part.grad is not None}
        return {name: float(value.detach()) for name, (_, value) in found.items()}, slopes, torch.rand(1)

    (whole, slopes, left) = terms(1)
    (parts, others, also_left) = terms(7)
    assert len(whole) == 5
    assert parts == pytest.approx(whole, rel=1e-5)
    assert slopes.keys() == others.keys()
    for name, slope in slopes.items():
        assert (others[name] - slope).norm() <= 1e-5 * slope.norm(), name
    assert torch.equal(left, also_left)  # the same number of random numbers was sampled


def test_samples_of_a_view_come_from_its_own_generator() -> None:
    config = with_surface("density")
    scene, _, one = drawn_at(config, 20)

    def total(seed: int) -> torch.Tensor:
        own = replace(one, generator=torch.Generator().manual_seed(seed))
        return loss_terms(config, scene, own, neighborhood, span).total

    before = torch.get_rng_state()
    with Neighborhood(config.surface.neighbors) as neighborhood:
        assert total(3) == total(3) != total(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_opaque_black_gaussian_before_a_transparent_photo_costs_something() -> None:
    """Over a black background it costs nothing; over a random color its gradient makes it transparent."""
    scene = scene_of(SHORT)
    view = scene.photo_view(0)
    assert view.alpha is not None
    empty = replace(view, image=torch.zeros_like(view.image), alpha=torch.zeros_like(view.alpha))

    def gradient(config: SplatsConfig) -> torch.Tensor:
        torch.manual_seed(0)
        model = initial_model(config, scene)
        with torch.no_grad():
            model.gaussians.constant.fill_(-5.0)  # clamped to black
            model.gaussians.opacity_logits.fill_(1.5)
        drawn = model.render(view.camera, degree=0)
        one = RenderedView(step=0, model=model, output=drawn, view=empty)
        terms = loss_terms(config, scene, one, Neighborhood(16), span)
        terms.total.backward()
        found = model.gaussians.opacity_logits.grad
        assert found is not None
        return found

    assert float(gradient(SHORT).sum()) > 1e-4
    assert float(gradient(replace(SHORT, transparency="background")).abs().max()) < 1e-6


def test_a_dark_photo_without_alpha_is_not_left_to_a_black_background() -> None:
    """Over a black background, transparent Gaussians show it as well as black ones; over a random color they do not."""
    scene = scene_of(SHORT)
    view = scene.photo_view(0)
    dark = replace(view, image=torch.zeros_like(view.image), alpha=None)

    def gradient(config: SplatsConfig) -> torch.Tensor:
        torch.manual_seed(0)
        model = initial_model(config, scene)
        with torch.no_grad():
            model.gaussians.constant.fill_(-5.0)  # clamped to black
        one = RenderedView(step=0, model=model, output=model.render(view.camera, degree=0), view=dark)
        loss_terms(config, scene, one, Neighborhood(16), span).total.backward()
        found = model.gaussians.opacity_logits.grad
        assert found is not None
        return found

    # A step down this gradient makes them opaque.
    assert float(gradient(replace(SHORT, transparency="everywhere")).sum()) < -1e-4
    assert float(gradient(SHORT).abs().max()) < 1e-6


def test_opaque_photos_draw_no_random_color() -> None:
    scene, model, one = drawn_at(SHORT, 0)
    opaque = replace(one, view=replace(one.view, alpha=None))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    loss_terms(SHORT, scene, opaque, Neighborhood(16), span)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(model.gaussians) > 0
    assert scene.photos.transparent
