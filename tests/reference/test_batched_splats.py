"""The batched torch backend against the tile-by-tile reference, forward and backward, and its own repetition."""

import pytest
import torch

from fieldwatch.recon.render import View, rasterize


def gaussians(count, dtype, *, opacity=0.5, scale=-2.5):
    chance = torch.Generator().manual_seed(count)

    def normal(*shape):
        return torch.randn(shape, generator=chance, dtype=torch.float64).to(dtype)

    means = torch.cat([normal(count, 2), normal(count, 1).abs() * 2 + 1.5], -1)
    parts = [means, normal(count, 4), (normal(count, 3) * 0.6 + scale).exp(), torch.sigmoid(normal(count) + opacity)]
    return [part.requires_grad_() for part in (*parts, normal(count, 5))]


def camera(width, height):
    return View(
        camera_from_world=torch.eye(4),
        fx=0.9 * width,
        fy=0.9 * width,
        cx=0.52 * width,
        cy=0.47 * height,
        width=width,
        height=height,
    )


def rendered(parts, view, backend, **options):
    """Return what a view shows, and the gradients of a weighted sum of all of it."""
    *shape, features = parts
    output = rasterize(
        *shape, view, features=features, depth="planar", normals=True, median=True, backend=backend, **options
    )
    weights = torch.linspace(-1, 2, view.width * view.height, dtype=features.dtype).reshape(view.height, view.width)
    total = ((output.features + output.normals.sum(-1, keepdim=True)) * weights[..., None]).sum()
    total = total + ((output.depth + output.alpha) * weights).sum()
    leaves = [*parts, output.means2d]
    gradients = torch.autograd.grad(total, leaves)
    images = [output.features, output.alpha, output.depth, output.normals, output.median_depth, output.median_ids]
    return [image.detach() for image in images], list(gradients), output.absgrad


CASES = {
    "a few": (40, (33, 18), {}),
    "deep lists": (900, (40, 30), {"opacity": -2.0, "scale": -1.5}),  # several chunks per tile
    "opaque": (900, (70, 37), {"opacity": 4.0, "scale": -1.5}),  # pixels that finish early, alphas at the ceiling
    "one tile": (60, (9, 7), {}),
}


@pytest.mark.parametrize(("count", "size", "options"), CASES.values(), ids=CASES.keys())
def test_images_and_gradients_are_those_of_the_reference(count, size, options):
    parts = gaussians(count, torch.float64, **options)
    images, gradients, _ = rendered(parts, camera(*size), "batched")
    wanted_images, wanted_gradients, _ = rendered(parts, camera(*size), "reference")
    assert wanted_images[1].max() > 0.3
    torch.testing.assert_close(images, wanted_images, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients, wanted_gradients, rtol=1e-9, atol=1e-11)


def test_absolute_gradients_are_those_of_the_kernels():
    parts = gaussians(300, torch.float32)
    *_, ours = rendered(parts, camera(50, 40), "batched", absgrad=True)
    *_, wanted = rendered(parts, camera(50, 40), "native", absgrad=True)
    assert wanted.max() > 0
    torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-4 * float(wanted.max()))


def test_a_repetition_is_the_same_to_the_bit():
    parts = gaussians(500, torch.float32)
    first, second = (rendered(parts, camera(50, 40), "batched") for _ in range(2))
    for one, other in zip(first[0] + first[1], second[0] + second[1], strict=True):
        assert torch.equal(one, other)


def test_an_empty_view_is_empty():
    parts = gaussians(20, torch.float32)
    behind = [parts[0].detach() * torch.tensor([1.0, 1.0, -1.0]), *parts[1:]]
    output = rasterize(*behind[:4], camera(20, 20), features=behind[4], median=True, backend="batched")
    assert output.alpha.abs().max() == 0
    assert (output.median_ids == -1).all()
    assert output.features.requires_grad
    output.features.sum().backward()
