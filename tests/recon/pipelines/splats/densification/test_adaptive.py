"""Adaptive density control: which Gaussians are cloned, split and pruned, and the values of the new ones."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.recon.geometry import quaternion_to_matrix
from fieldwatch.recon.pipelines.splats import Gaussians, NotFiniteError, Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.densification import DensificationThresholds, clone, densify, split
from fieldwatch.recon.pipelines.splats.densification.adaptive import strongest_candidates
from fieldwatch.recon.render import DensificationStatistics

THRESHOLDS = DensificationThresholds(gradient=1.0, split_above=0.1, least_opacity=0.05, largest_scale=1.0)


def made(sizes, opacity=0.5):
    count = len(sizes)
    points = torch.arange(3.0 * count).view(count, 3)
    return Gaussians.from_points(points, torch.rand(count, 3), degree=1, opacity=opacity, spacing=torch.tensor(sizes))


def pulled(pulls, sightings=1.0, radii=0.0):
    statistics = DensificationStatistics(len(pulls))
    statistics.load_state_dict(
        {
            "pulls": torch.tensor(pulls) * sightings,
            "sightings": torch.full((len(pulls),), sightings),
            "radii": torch.full((len(pulls),), radii),
        }
    )
    return statistics


def set_opacity(gaussians, row, opacity):
    with torch.no_grad():
        gaussians.opacity_logits[row] = math.log(opacity / (1 - opacity))


def test_each_gets_what_it_needs():
    """Rows: small and large with a large gradient, small, transparent with a large gradient, large."""
    gaussians = made([0.05, 0.5, 0.05, 0.05, 0.5])
    set_opacity(gaussians, 3, 0.04)
    before = gaussians.rows(torch.arange(5))
    statistics = pulled([1.0, 2.0, 0.9, 5.0, 0.0], sightings=7.0)
    record = densify(gaussians, statistics, THRESHOLDS, step=0, reference_length=1.0)
    assert (record.before, record.after) == (5, 6)
    assert (record.cloned, record.split, record.children, record.pruned, record.held_back) == (1, 1, 2, 1, 0)
    assert (record.added, record.removed) == (3, 2)
    assert torch.equal(gaussians.means[:4], before.means[[0, 2, 4, 0]])
    assert torch.equal(gaussians.constant, before.constant[[0, 2, 4, 0, 1, 1]])
    assert statistics.gradients.tolist() == statistics.counts.tolist() == statistics.radii.tolist() == [0] * 6


def test_means_of_pulls_count_not_sums():
    gaussians = made([0.05])
    statistics = pulled([0.5], sightings=100.0)
    assert densify(gaussians, statistics, THRESHOLDS, step=0, reference_length=1.0).cloned == 0


def test_sizes_are_shares_of_the_extent():
    assert densify(made([0.5]), pulled([1.0]), THRESHOLDS, step=0, reference_length=10.0).cloned == 1
    assert densify(made([0.5]), pulled([1.0]), THRESHOLDS, step=0, reference_length=1.0).split == 1


def test_children_are_smaller_and_scatter_like_their_parent():
    gaussians = made([1.0])
    with torch.no_grad():
        gaussians.log_scales[:] = torch.tensor([0.1, 0.5, 2.0]).log()
        gaussians.quaternions[:] = torch.tensor([0.9, -0.2, 0.3, 0.1])
    axes = quaternion_to_matrix(gaussians.quaternions.detach())[0]
    parent = axes @ torch.diag(gaussians.scales.detach()[0] ** 2) @ axes.T
    gaussians.rearrange(torch.zeros(20_000, dtype=torch.int64))
    center = gaussians.means[0].detach().clone()
    split(gaussians, torch.arange(20_000), torch.Generator().manual_seed(0))
    assert len(gaussians) == 40_000
    torch.testing.assert_close(gaussians.scales[:1], torch.tensor([[0.1, 0.5, 2.0]]) / 1.6)
    offsets = gaussians.means.detach() - center
    torch.testing.assert_close(offsets.T @ offsets / len(offsets), parent, atol=0.05, rtol=0.03)
    own = axes @ torch.diag(gaussians.scales.detach()[-1] ** 2) @ axes.T
    torch.testing.assert_close(own, parent / 1.6**2)


def test_twins_are_exact_and_can_share_their_opacity():
    gaussians = made([0.1, 0.2])
    clone(gaussians, torch.tensor([1]))
    assert torch.equal(gaussians.means[1], gaussians.means[2])
    torch.testing.assert_close(gaussians.opacities, torch.full((3,), 0.5))
    clone(gaussians, torch.tensor([0, 2]), "shared")
    a, b = gaussians.opacities[[0, 3]].detach()
    assert a == b
    assert 1 - (1 - a) * (1 - b) == pytest.approx(0.5)
    assert gaussians.opacities[1] == 0.5


@pytest.mark.parametrize("opacity", [1e-6, 0.01, 0.9999])
def test_sharing_holds_for_all_opacities(opacity):
    gaussians = made([0.1], opacity=opacity)
    clone(gaussians, torch.tensor([0]), "shared")
    pair = 1 - (1 - gaussians.opacities.double()).prod()
    assert pair.item() == pytest.approx(opacity, rel=1e-3)


def test_the_cap_takes_the_strongest_and_of_equals_the_first():
    gaussians = made([0.05, 0.5, 0.05, 0.05])
    record = densify(gaussians, pulled([3.0, 2.0, 3.0, 3.0]), THRESHOLDS, step=0, reference_length=1.0, cap=6.9)
    assert (record.after, record.cloned, record.split, record.held_back) == (6, 2, 0, 2)
    assert torch.equal(gaussians.means[4:], gaussians.means[[0, 2]])


def test_room_that_pruning_makes_is_used():
    gaussians = made([0.05, 0.05, 0.05])
    set_opacity(gaussians, 0, 0.01)
    limited = DensificationThresholds(gradient=1.0, least_opacity=0.05, split_above=0.1, cap=3)
    record = densify(gaussians, pulled([0.0, 1.0, 2.0]), limited, step=0, reference_length=1.0, cap=100.0)
    assert (record.after, record.cloned, record.pruned, record.held_back) == (3, 1, 1, 1)


def test_above_the_cap_nothing_grows_and_nothing_is_taken():
    record = densify(made([0.05] * 5), pulled([1.0] * 5), THRESHOLDS, step=0, reference_length=1.0, cap=2.0)
    assert (record.after, record.held_back) == (5, 5)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=30), st.integers(-3, 40))
def test_the_strongest_are_as_many_as_fit_and_none_outside_is_stronger(pulls, room):
    values = torch.tensor(pulls)
    candidates = values >= 0.5
    chosen = strongest_candidates(values, candidates, room)
    assert int(chosen.sum()) == min(max(room, 0), int(candidates.sum()))
    left = values[candidates & ~chosen]
    assert not len(left) or not bool(chosen.any()) or values[chosen].min() >= left.max()


def test_what_is_too_large_goes_only_when_it_is_late():
    thresholds = DensificationThresholds(gradient=1.0, split_above=0.1, largest_scale=1.0, large_after=10)
    sizes = [0.5, 1.2, 1.2, 1.7]
    pulls = [0.0, 0.0, 1.0, 1.0]
    assert densify(made(sizes), pulled(pulls), thresholds, step=9, reference_length=1.0).pruned == 0
    record = densify(made(sizes), pulled(pulls), thresholds, step=10, reference_length=1.0)
    assert (record.pruned, record.split) == (2, 1)  # split, the third is small enough, the fourth is not


def test_radii_count_where_they_are_asked_for():
    thresholds = DensificationThresholds(gradient=1.0, largest_scale=1.0, largest_radius=20.0, large_after=0)
    statistics = pulled([0.0, 0.0])
    statistics.radii[1] = 21.0
    assert densify(made([0.05, 0.05]), statistics, thresholds, step=0, reference_length=1.0).pruned == 1


def test_what_is_drawn_wide_is_split_whether_it_pulls_or_not():
    thresholds = DensificationThresholds(gradient=1.0, split_above=0.1, split_radius=3.0)
    record = densify(made([0.05, 0.05]), pulled([0.0, 5.0], radii=3.5), thresholds, step=0, reference_length=1.0)
    assert (record.split, record.cloned, record.after) == (2, 0, 4)
    record = densify(made([0.05, 0.05]), pulled([0.0, 5.0], radii=2.5), thresholds, step=0, reference_length=1.0)
    assert (record.split, record.cloned, record.after) == (0, 1, 3)


def test_nothing_to_do_leaves_the_parameters_alone():
    gaussians = made([0.05, 0.05])
    means = gaussians.means
    statistics = pulled([0.5, 0.5])
    record = densify(gaussians, statistics, THRESHOLDS, step=0, reference_length=1.0)
    assert (record.added, record.removed) == (0, 0)
    assert gaussians.means is means
    assert statistics.gradients.tolist() == [0, 0]


def test_losing_all_is_an_error():
    with pytest.raises(ValueError, match="all 2 Gaussians"):
        densify(made([0.05, 0.05], opacity=0.01), pulled([2.0, 2.0]), THRESHOLDS, step=0, reference_length=1.0)


def test_what_is_not_finite_is_named_and_nothing_changes():
    gaussians = made([0.05, 0.05])
    statistics = pulled([2.0, math.nan])
    with pytest.raises(NotFiniteError, match=r"Gaussian 1 is not finite \(\[nan\]; 1 of 2"):
        densify(gaussians, statistics, THRESHOLDS, step=0, reference_length=1.0)
    with torch.no_grad():
        gaussians.quaternions[1, 2] = math.inf
    with pytest.raises(NotFiniteError, match="quaternions of Gaussian 1 is not finite"):
        densify(gaussians, pulled([2.0, 2.0]), THRESHOLDS, step=0, reference_length=1.0)
    assert len(gaussians) == 2


def test_statistics_of_other_gaussians_are_refused():
    with pytest.raises(ValueError, match=r"2 Gaussians.* 3"):
        densify(made([0.05, 0.05]), pulled([2.0] * 3), THRESHOLDS, step=0, reference_length=1.0)


@pytest.mark.parametrize("extent", [0.0, math.nan, math.inf])
def test_a_scene_without_an_extent_is_refused(extent):
    with pytest.raises(ValueError, match="reference_lengths"):
        densify(made([0.05]), pulled([2.0]), THRESHOLDS, step=0, reference_length=extent)


def test_moments_go_with_survivors_and_are_zero_for_the_new():
    gaussians = made([0.05, 0.5, 0.05])
    optimizer = make_optimizer(gaussians, Rates(), 1.0)
    gaussians.means.grad = torch.arange(9.0).view(3, 3)
    optimizer.step()
    moments = optimizer.state[gaussians.means]["exp_avg"].clone()
    assert moments[1:].all()
    densify(gaussians, pulled([0.0, 1.0, 1.0]), THRESHOLDS, step=0, reference_length=1.0)
    after = optimizer.state[gaussians.means]["exp_avg"]
    assert torch.equal(after[:2], moments[[0, 2]])
    assert after[2:].tolist() == [[0.0] * 3] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"gradient": 0.0},
        {"split_above": math.nan},
        {"least_opacity": 1.0},
        {"cap": 0},
        {"largest_radius": -1.0},
        {"split_radius": 0.0},
    ],
)
def test_thresholds_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValueError, match=r"numbers above 0|must be 1 or more"):
        DensificationThresholds(**wrong)
