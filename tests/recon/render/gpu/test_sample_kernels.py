"""Samples near Gaussians by our own GPU kernels: values and gradients of torch, in any order of threads."""

from dataclasses import replace

import pytest
import torch

from fake_cuda.emulator import FORWARD, REVERSE, SHUFFLED
from fieldwatch.recon.geometry import Camera, exponential, rigid
from fieldwatch.recon.losses import Ellipsoids, Samples, near_depth, sample_near
from fieldwatch.recon.render.splats import (
    BlendedDepth,
    SampleComparison,
    View,
    sample_errors,
    sample_errors_on_gpu,
    sample_kernels_problem,
)

pytestmark = pytest.mark.pretended
WIDTH = 23
HEIGHT = 14
POSE = rigid(exponential(torch.tensor([0.1, -0.2, 0.3])), torch.tensor([0.2, -0.1, 0.4]))
LENS = {"width": WIDTH, "height": HEIGHT, "fx": 15.0, "fy": 14.0, "cx": 11.0, "cy": 6.0}
EYE = Camera(name="eye", world_from_camera=torch.linalg.inv(POSE.double()), **LENS)
TO_PLANE = SampleComparison(terms=("sdf_density", "better_normal", "samples_on_surface", "smoothing"), extent=1.7)
TO_MAP = SampleComparison(
    terms=("sdf_estimation", "better_normal", "samples_on_surface", "smoothing"), extent=1.7, share=1 / 16
)


def parts_of(count, seed=0):
    """Gaussians about a slanted plane, some behind the camera or beside the image, and the maps of the plane."""
    chance = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 11, generator=chance)
    means = noise[:, :3] * torch.tensor([2.0, 1.5, 0.1]) + torch.tensor([0.0, 0.0, 3.0])
    means[::7, 2] -= 5.0
    scales = 0.05 + 0.4 * noise[:, 3:6].abs()
    scales[::5, 1] = scales[::5, 0] = 0.03  # equally thin axes
    opacities = torch.sigmoid(2 * noise[:, 10])
    alpha = 0.5 + 0.5 * torch.rand(HEIGHT, WIDTH, generator=chance)
    depth = alpha * (3 + 0.3 * torch.rand(HEIGHT, WIDTH, generator=chance))
    return [means, scales, noise[:, 6:10], opacities, alpha, depth]


def neighbors_of(count, several):
    chance = torch.Generator().manual_seed(count)
    others = torch.randint(count, (count, several - 1), generator=chance)
    return torch.cat([torch.arange(count)[:, None], others], 1).int()


def ellipsoids(leaves):
    return Ellipsoids(**dict(zip(("means", "scales", "quaternions", "opacities"), leaves[:4], strict=True)))


def outcome(compare, parts, how):
    """Errors, and gradients of their weighted sum."""
    leaves = [part.clone().requires_grad_() for part in parts[: 6 if "sdf_estimation" in how.terms else 4]]
    errors = compare(leaves, how)
    total = torch.stack([(number + 1) * errors[name] for number, name in enumerate(how.terms)]).sum()
    return [part.detach().cpu() for part in (*errors.values(), *torch.autograd.grad(total, leaves))]


def by_kernels(visible, table, samples, seed=5):
    def compare(leaves, how):
        blended = None
        if "sdf_estimation" in how.terms:
            view = View(camera_from_world=POSE.to("cuda"), **LENS)
            blended = BlendedDepth(alpha=leaves[4], depth=leaves[5], view=view)
        return sample_errors_on_gpu(
            *(ellipsoids(leaves), visible.to("cuda"), table.to("cuda"), how, samples),
            blended=blended,
            generator=torch.Generator("cuda").manual_seed(seed),
        )

    return compare


def by_torch(visible, table, samples, seed=5):
    """In double precision, of the samples that the device draws."""

    def compare(leaves, how):
        made = ellipsoids(leaves)
        seen_from = None
        candidates = visible
        if "sdf_estimation" in how.terms:
            blended = BlendedDepth(alpha=leaves[4], depth=leaves[5], view=View(camera_from_world=POSE, **LENS))
            seen_from = (blended.before_background(), EYE)
            candidates = visible & near_depth(made, *seen_from)
            assert 0 < candidates.sum() < visible.sum()
        on_device = ellipsoids([leaf.detach().float().to("cuda") for leaf in leaves])
        chance = torch.Generator("cuda").manual_seed(seed)
        drawn = sample_near(on_device, samples, visible=candidates.to("cuda"), generator=chance)
        owners = drawn.owners.cpu()
        assert candidates[owners].all()
        # The point again, with its gradient: what it is from its Gaussian in standard deviations is given.
        offset = drawn.points.cpu().double() - made.means.detach()[owners]
        reach = (made.rotations.detach()[owners].mT @ offset[:, :, None])[..., 0] / made.scales.detach()[owners]
        points = made.means[owners] + (made.rotations[owners] * (reach * made.scales[owners])[:, None]).sum(-1)
        samples_here = Samples(points=points, owners=owners)
        errors = sample_errors(samples_here, made, table, how, seen_from=seen_from)
        return {name: error for name, (error, _) in errors.items()}

    return compare


def assert_close(found, wanted):
    assert len(found) == len(wanted)
    for ours, right in zip(found, wanted, strict=True):
        assert right.any()
        assert (ours - right).abs().max() <= 2e-4 * right.abs().max()


@pytest.mark.parametrize("how", [TO_PLANE, TO_MAP], ids=["plane", "map"])
@pytest.mark.parametrize(("count", "several", "samples"), [(150, 16, 300), (61, 3, 129)])
def test_values_and_gradients_are_those_of_torch_in_every_order(fake_cuda, how, count, several, samples):
    parts = parts_of(count)
    visible = torch.arange(count) % 4 > 0
    table = neighbors_of(count, several)
    found = []
    for order in (FORWARD, REVERSE, SHUFFLED):
        fake_cuda.emulator.order = order
        on_device = [part.to("cuda") for part in parts]
        found.append(outcome(by_kernels(visible, table, samples), on_device, how))
    assert_close(found[0], outcome(by_torch(visible, table, samples), [part.double() for part in parts], how))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_dense_and_thick_gaussians_keep_their_gradients(fake_cuda):
    """Densities above 1, where their logarithm has a slope all the same."""
    parts = parts_of(40)
    parts[3] = 0.9 + 0 * parts[3]
    parts[1] = parts[1] + 1
    how = replace(TO_MAP, share=1.0)
    visible = torch.ones(40, dtype=torch.bool)
    table = neighbors_of(40, 8)
    found = outcome(by_kernels(visible, table, 200), [part.to("cuda") for part in parts], how)
    assert_close(found, outcome(by_torch(visible, table, 200), [part.double() for part in parts], how))


@pytest.mark.parametrize("how", [TO_PLANE, TO_MAP], ids=["plane", "map"])
def test_without_a_visible_gaussian_nothing_counts(fake_cuda, how):
    parts = [part.to("cuda") for part in parts_of(40)]
    nobody = torch.zeros(40, dtype=torch.bool)
    assert not any(part.any() for part in outcome(by_kernels(nobody, neighbors_of(40, 4), 100), parts, how))


def test_one_gaussian_and_one_sample(fake_cuda):
    parts = [part.to("cuda") for part in parts_of(2)]
    visible = torch.tensor([False, True])
    found = outcome(by_kernels(visible, neighbors_of(2, 1), 1), parts, TO_PLANE)
    assert all(part.isfinite().all() for part in found)
    assert not found[4][0].any()  # the other one's mean has no gradient


@pytest.mark.parametrize("which", range(5))  # a map with such a depth has no candidates, as in torch
def test_a_value_that_is_not_a_number_shows(fake_cuda, which):
    parts = parts_of(40)
    parts[which][1] = torch.nan
    visible = torch.ones(40, dtype=torch.bool)
    how = replace(TO_MAP, share=1.0)
    parts = [part.to("cuda") for part in parts]
    found = outcome(by_kernels(visible, neighbors_of(40, 40), 400), parts, how)
    assert found[0].isnan()


def test_a_comparison_waits_for_nothing_and_launches_few_kernels(fake_cuda):
    parts = [part.to("cuda") for part in parts_of(60)]
    visible = torch.ones(60, dtype=torch.bool, device="cuda")
    table = neighbors_of(60, 4).to("cuda")
    compare = by_kernels(visible, table, 100)
    assert sample_kernels_problem() is None  # the trial waits
    for _ in range(2):
        before = fake_cuda.ledger.copy()
        leaves = [part.requires_grad_() for part in parts]
        errors = compare(leaves, TO_MAP)
        torch.autograd.grad(torch.stack(list(errors.values())).sum(), leaves)
        counted = fake_cuda.ledger.since(before)
    assert not [where for _, where in counted.waits if where != "?"]  # "?" is the test, which uploads its numbers
    assert counted.unordered.total() == 0
    ours = {name: number for name, number in counted.launches.items() if name.startswith("surface_")}
    assert set(ours.values()) == {1}
    assert len(ours) == 6
    assert sum(counted.launches[name] for name in ("amax", "cumsum", "randint", "randn", "sort", "zeros")) == 7
