"""Terms of the density on a GPU: values of the CPU, without a wait, and sums in a fixed order."""

import pytest
import torch

from fieldwatch.recon.geometry import Camera, quaternion_to_matrix
from fieldwatch.recon.losses import (
    Ellipsoids,
    Samples,
    better_normal_error,
    contributions,
    density,
    near_depth,
    sample_near,
    samples_on_surface_error,
    sdf_from_depth,
    take_rows,
)

pytestmark = pytest.mark.pretended
COUNT = 40
# Drawn here: the pretended device takes a generator for its own if it lies where one of its own was.
CHANCE = torch.Generator().manual_seed(0)
MEANS = torch.randn(COUNT, 3, generator=CHANCE) + torch.tensor([0.0, 0.0, 2.0])  # some are behind the camera
SCALES = 0.1 + torch.rand(COUNT, 3, generator=CHANCE)
QUATERNIONS = torch.randn(COUNT, 4, generator=CHANCE)
OPACITIES = torch.rand(COUNT, generator=CHANCE)
DEPTH = 1 + torch.rand(11, 17, generator=CHANCE)
OWNERS = torch.randint(COUNT, (50,), generator=CHANCE).sort().values
OFFSETS = 0.3 * torch.randn(50, 3, generator=CHANCE)
WEIGHTS = torch.randn(COUNT, 3, 3, generator=CHANCE)


def leaves(device):
    parts = (MEANS, SCALES, QUATERNIONS, OPACITIES, DEPTH)
    return [part.clone().to(device).requires_grad_() for part in parts]


def camera(device):
    eye = {"fx": 15.0, "fy": 14.0, "cx": 8.0, "cy": 6.0, "world_from_camera": torch.eye(4, device=device)}
    return Camera(name="eye", width=17, height=11, **eye)


def ellipsoids(parts):
    return Ellipsoids(**dict(zip(("means", "scales", "quaternions", "opacities"), parts[:4], strict=True)))


def drawn(visible, eye=None):
    parts = leaves("cuda")
    eye = eye or camera("cuda")
    made = ellipsoids(parts)
    near = near_depth(made, parts[-1], eye)
    chance = torch.Generator("cuda").manual_seed(3)
    return sample_near(made, 500, visible=visible & near, generator=chance), near


def outcome(device, eye=None):
    """Errors of given samples, and their gradients."""
    parts = leaves(device)
    made = ellipsoids(parts)
    eye = eye or camera(device)
    owners = OWNERS.to(device)
    samples = Samples(points=take_rows(made.means, owners) + OFFSETS.to(device), owners=owners)
    neighbors = (owners[:, None] + torch.arange(4, device=owners.device)) % COUNT
    contributed = contributions(samples.points, neighbors, made)
    distance, valid = sdf_from_depth(samples.points, parts[-1], eye)
    normals = better_normal_error(samples, neighbors, contributed, made)
    value = normals + samples_on_surface_error(distance, 2.0, valid) + density(contributed).mean()
    return [part.detach() for part in (value, *torch.autograd.grad(value, parts))]


def test_errors_and_gradients_are_those_of_the_cpu_in_a_fixed_order(fake_cuda):
    wanted = outcome("cpu")
    before = fake_cuda.ledger.copy()
    found = outcome("cuda")
    assert fake_cuda.ledger.since(before).unordered.total() == 0
    for ours, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.cpu(), right, rtol=1e-4, atol=1e-5)
        assert right.any()


def test_samples_are_of_visible_gaussians_near_the_map(fake_cuda):
    visible = torch.arange(COUNT, device="cuda") % 3 != 0
    samples, near = drawn(visible)
    counted = samples.owners.cpu().bincount(minlength=COUNT)
    allowed = (visible & near).cpu()
    assert torch.equal(counted > 0, allowed)
    assert counted[allowed].max() < 3 * counted.sum() / allowed.sum()
    assert torch.equal(samples.owners.cpu(), samples.owners.cpu().sort().values)


def test_drawing_and_comparing_wait_for_nothing(fake_cuda):
    visible = torch.ones(COUNT, dtype=torch.bool, device="cuda")
    eye = camera("cuda")  # its check waits
    for _ in range(2):  # the first time, constants are copied
        before = fake_cuda.ledger.copy()
        drawn(visible, eye)
        outcome("cuda", eye)
        counted = fake_cuda.ledger.since(before)
    assert not [where for _, where in counted.waits if where != "?"]  # "?" is the test, which uploads its numbers
    assert counted.unordered.total() == 0


def test_without_a_visible_gaussian_samples_say_so(fake_cuda):
    visible = torch.ones(COUNT, dtype=torch.bool, device="cuda")
    assert drawn(visible)[0].some.cpu()
    samples, _ = drawn(~visible)
    assert not samples.some.cpu()
    assert int(samples.owners.max().cpu()) < COUNT


def test_a_map_is_interpolated_up_to_its_border_and_beyond(fake_cuda):
    eye = camera("cpu")
    x, y = torch.meshgrid(torch.linspace(-1, 18, 39), torch.linspace(-1, 12, 27), indexing="xy")
    points = torch.stack([(x - eye.cx) / eye.fx, (y - eye.cy) / eye.fy, torch.ones_like(x)], -1).reshape(-1, 3)
    points[0] = torch.nan
    depth = leaves("cpu")[-1].detach()
    wanted, seen = sdf_from_depth(points, depth, eye)
    found, valid = sdf_from_depth(points.to("cuda"), depth.to("cuda"), camera("cuda"))
    assert torch.equal(valid.cpu(), seen)
    assert not seen[0]
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-5)


def test_rotations_are_those_of_the_cpu(fake_cuda):
    quaternions = QUATERNIONS.clone()
    quaternions[0] = 0
    results = []
    for device in ("cpu", "cuda"):
        leaf = quaternions.to(device).requires_grad_()
        made = quaternion_to_matrix(leaf)
        (gradient,) = torch.autograd.grad((made * WEIGHTS.to(device)).sum(), leaf)
        results.append([made.detach().cpu(), gradient.cpu()])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
