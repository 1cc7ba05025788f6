"""MCMC densification: the image is preserved, dead Gaussians move, the cap holds, the noise matches its formula."""

import math

import pytest
import torch

from fieldwatch.recon.geometry import quaternion_to_matrix
from fieldwatch.recon.pipelines.splats import Gaussians, NotFiniteError, Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.densification import (
    McmcOptions,
    add_copies,
    add_sgld_noise,
    mean_opacity,
    mean_scale,
    relocate,
    relocate_and_add,
    relocated_opacity,
    relocated_scale_factor,
)
from fieldwatch.recon.render import View, rasterize


def made(opacities, size=0.2):
    opacities = torch.tensor(opacities)
    count = len(opacities)
    points = torch.stack([torch.linspace(-1, 1, count), torch.zeros(count), torch.full((count,), 4.0)], -1)
    sizes = torch.full((count,), size)
    colors = torch.linspace(0.2, 0.9, 3 * count).view(count, 3)
    gaussians = Gaussians.from_points(points, colors, degree=0, spacing=sizes)
    with torch.no_grad():
        gaussians.opacity_logits.copy_(opacities.logit())
    return gaussians


def rendered(gaussians):
    view = View(camera_from_world=torch.eye(4), fx=60.0, fy=60.0, cx=32.0, cy=32.0, width=64, height=64)
    parts = (gaussians.means, gaussians.quaternions, gaussians.scales, gaussians.opacities)
    with torch.no_grad():
        return rasterize(
            *parts, view, spherical_harmonics=gaussians.harmonics, sh_degree=0, eps2d=0.0, backend="reference"
        ).features


def paper_scale(opacity, copies):
    """Eq. 9 as printed in the paper, with its double sum."""
    share = 1 - (1 - opacity) ** (1 / copies)
    total = sum(
        math.comb(i - 1, k) * (-1) ** k * share ** (k + 1) / math.sqrt(k + 1)
        for i in range(1, copies + 1)
        for k in range(i)
    )
    return opacity / total


@pytest.mark.parametrize("copies", [1, 2, 3, 7, 20, 51])
@pytest.mark.parametrize("opacity", [0.005, 0.3, 0.9, 0.999])
def test_sharing_is_that_of_the_paper(copies, opacity):
    whole = torch.tensor([opacity], dtype=torch.float64)
    number = torch.tensor([copies])
    share = relocated_opacity(whole, number)
    assert 1 - (1 - share.item()) ** copies == pytest.approx(opacity)
    assert relocated_scale_factor(whole, number).item() == pytest.approx(paper_scale(opacity, copies), rel=1e-9)


def test_rows_with_different_numbers_of_copies_do_not_mix():
    opacities = torch.tensor([0.2, 0.7, 0.9], dtype=torch.float64)
    copies = torch.tensor([1, 5, 2])
    expected = [paper_scale(o, n) for o, n in zip(opacities.tolist(), copies.tolist(), strict=True)]
    torch.testing.assert_close(relocated_scale_factor(opacities, copies), torch.tensor(expected, dtype=torch.float64))
    assert expected[0] == pytest.approx(1)


@pytest.mark.parametrize(("opacity", "copies"), [(0.3, 1), (0.6, 1), (0.6, 3), (0.9, 2)])
def test_the_image_stays_when_the_dead_move(opacity, copies):
    gaussians = made([opacity] + [0.001] * copies)
    before = rendered(gaussians)
    assert relocate(gaussians) == copies
    after = rendered(gaussians)
    assert (gaussians.means == gaussians.means[0]).all()
    assert (gaussians.opacities > 0.005).all()
    careless = made([opacity] * (copies + 1))
    careless.means.data[:] = gaussians.means.data
    careless.constant.data[:] = gaussians.constant.data
    error = (after - before).abs().max()
    worst = (rendered(careless) - before).abs().max()
    assert error < 0.08 * before.max()  # eq. 9 preserves light along a line, not per pixel: 6 % at 0.9
    assert error < 0.35 * worst  # plain copies are several times as far off


def test_the_image_stays_when_more_are_drawn():
    gaussians = made([0.5, 0.7])
    before = rendered(gaussians)
    add_copies(gaussians, 2, generator=torch.Generator().manual_seed(0))
    assert len(gaussians) == 4
    assert (rendered(gaussians) - before).abs().max() < 0.06 * before.max()


def test_the_living_are_drawn_by_opacity():
    gaussians = made([0.8, 0.2, 0.001], size=1.0)
    gaussians.rearrange(torch.tensor([0, 1] + [2] * 6000))
    places = gaussians.means[:2].clone()
    assert relocate(gaussians, generator=torch.Generator().manual_seed(0)) == 6000
    at_first = (gaussians.means[2:] == places[0]).all(1)
    at_second = (gaussians.means[2:] == places[1]).all(1)
    assert bool((at_first | at_second).all())
    assert at_first.float().mean().item() == pytest.approx(0.8, abs=0.02)


def test_moments_of_both_are_forgotten_and_others_stay():
    gaussians = made([0.5, 0.001, 0.6])
    optimizer = make_optimizer(gaussians, Rates(), 1.0)
    (gaussians.means.sin().sum() + gaussians.opacities.sum()).backward()
    optimizer.step()
    with torch.no_grad():
        gaussians.opacity_logits[2] = -5.0  # almost never sampled, but not dead
    relocate(gaussians, generator=torch.Generator().manual_seed(0))
    moments = optimizer.state[gaussians.means]["exp_avg"]
    assert [bool(row.any()) for row in moments] == [False, False, True]


def test_growth_stops_at_the_cap_and_counts():
    gaussians = made([0.5] * 98 + [0.001] * 2)
    record = relocate_and_add(gaussians, McmcOptions(cap=1000))
    assert (record.before, record.after, record.relocated, record.drawn, record.held_back) == (100, 105, 2, 5, 0)
    record = relocate_and_add(gaussians, McmcOptions(cap=1000), cap=107.5)
    assert (record.after, record.drawn, record.held_back) == (107, 2, 3)
    assert relocate_and_add(gaussians, McmcOptions(cap=50)).after == 107


def test_the_same_seed_draws_the_same():
    results = []
    for _ in range(2):
        gaussians = made([0.5, 0.6, 0.001] * 20)
        generator = torch.Generator().manual_seed(4)
        relocate_and_add(gaussians, McmcOptions(), generator=generator)
        add_sgld_noise(gaussians, McmcOptions(), 1e-4, generator)
        results.append(gaussians.rows())
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_all_dead_and_not_finite_are_refused():
    with pytest.raises(ValueError, match=r"all 2 Gaussians.*0\.005"):
        relocate_and_add(made([0.001, 0.002]), McmcOptions())
    gaussians = made([0.5, 0.5])
    gaussians.log_scales.data[0] = math.inf
    with pytest.raises(NotFiniteError, match="log_scales of Gaussian 0"):
        relocate_and_add(gaussians, McmcOptions())


def test_an_opaque_one_can_be_shared():
    gaussians = made([0.5, 0.001])
    gaussians.opacity_logits.data[0] = 40.0
    relocate(gaussians)
    gaussians.refuse_not_finite()


def test_noise_has_the_shape_of_the_covariance_and_spares_the_opaque():
    gaussians = made([0.002, 0.9])
    gaussians.rearrange(torch.tensor([0] * 20_000 + [1]))
    gaussians.log_scales.data[:] = torch.tensor([0.02, 0.1, 0.4]).log()
    gaussians.quaternions.data[:] = torch.tensor([0.8, 0.1, -0.5, 0.2])
    before = gaussians.means.detach().clone()
    add_sgld_noise(gaussians, McmcOptions(), 2e-5, torch.Generator().manual_seed(0))
    moved = (gaussians.means - before).detach()
    assert moved[-1].abs().max() == 0
    axes = quaternion_to_matrix(gaussians.quaternions.detach()[:1])[0]
    covariance = axes @ torch.diag(torch.tensor([0.02, 0.1, 0.4]) ** 2) @ axes.T
    factor = 5e5 * 2e-5 / (1 + math.exp(100 * (0.002 - 0.005)))
    expected = factor**2 * covariance @ covariance.T
    torch.testing.assert_close(
        moved[:-1].T @ moved[:-1] / 20_000, expected, rtol=0.05, atol=0.01 * expected.max().item()
    )


def test_terms_pull_opacity_and_size_down():
    gaussians = made([0.5, 0.7])
    assert mean_opacity(gaussians).item() == pytest.approx(0.6)
    assert mean_scale(gaussians).item() == pytest.approx(0.2)
    (mean_opacity(gaussians) + mean_scale(gaussians)).backward()
    assert (gaussians.opacity_logits.grad > 0).all()
    assert (gaussians.log_scales.grad > 0).all()


@pytest.mark.parametrize("wrong", [{"cap": 0}, {"dead": 0.0}, {"noise": math.nan}, {"share": -0.1}])
def test_settings_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValueError, match="cap of 1 or more"):
        McmcOptions(**wrong)
