"""Splats by our own GPU kernels: images and gradients of the reference, in any order of threads, without a wait."""

import pytest
import torch

from fake_cuda.emulator import FORWARD, REVERSE, SHUFFLED
from fieldwatch.recon.render import View, rasterize
from fieldwatch.recon.render.splats import kernels, rasterization, splat_kernels_problem

pytestmark = pytest.mark.pretended
PARTS = ("means", "quaternions", "scales", "opacities", "dc", "rest", "features")
MAPS = ("features", "alpha", "depth", "normals")


def scene(count, *, seed=0, scale=0.1, z=2.0, features=2):
    """Return Gaussians in front of a camera as the tensors of PARTS."""
    chance = torch.Generator().manual_seed(seed)
    means = torch.randn(count, 3, generator=chance) * torch.tensor([0.8, 0.6, 0.3]) + torch.tensor([0.0, 0.0, z])
    parts = [means, torch.randn(count, 4, generator=chance)]
    parts += [scale * (0.2 + torch.rand(count, 3, generator=chance)), 0.05 + 0.94 * torch.rand(count, generator=chance)]
    parts += [torch.randn(count, width, 3, generator=chance) for width in (1, 15)]
    return dict(zip(PARTS, [*parts, torch.randn(count, features, generator=chance)], strict=True))


def turned(size, device):
    """Return a camera that is turned and moved, with a principal point off the center."""
    c, s = 0.9887710779, 0.1494381325
    pose = torch.tensor([[c, 0, s, 0.1], [0, 1, 0, -0.05], [-s, 0, c, 0.2], [0, 0, 0, 1]])
    width, height = size
    return View(camera_from_world=pose.to(device), fx=31.0, fy=29.0, cx=17.3, cy=11.9, width=width, height=height)


def rendered(parts, backend, *, size=(37, 21), dtype=torch.float32, **options):
    """Return the maps, the radii and the gradients of a rendering, on the CPU and for all Gaussians."""
    device = "cuda" if backend == "kernels" else "cpu"
    leaves = {name: part.clone().to(device, dtype).requires_grad_() for name, part in parts.items()}
    *shape, dc, rest, features = leaves.values()
    settings = {"depth": "planar", "normals": True, "sh_degree": 2, "background": torch.rand(3 + features.shape[1])}
    settings |= options
    settings["background"] = torch.linspace(0, 1, 3 + features.shape[1]).to(device, dtype)
    output = rasterize(
        *shape, turned(size, device), spherical_harmonics=(dc, rest), features=features, backend=backend, **settings
    )
    maps = {name: getattr(output, name) for name in MAPS if getattr(output, name) is not None}
    weights = torch.rand(21, 37, 5, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    height, width = output.alpha.shape
    weights = weights.repeat(-(-height // 21), -(-width // 37), 4)[:height, :width]
    loss = sum(
        (value * weights[..., : value.shape[-1]] if value.dim() == 3 else value * weights[..., 0]).sum()
        for value in maps.values()
    )
    loss.backward()
    results = {name: value.detach().cpu() for name, value in maps.items()}
    results |= {f"gradient of {name}": leaf.grad.cpu() for name, leaf in leaves.items()}
    count = len(parts["means"])
    ids = output.ids.cpu() if output.visible is None else torch.arange(count)
    for name, value in (("radii", output.radii), ("view-space gradient", output.means2d.grad)):
        whole = torch.zeros(count, *value.shape[1:], dtype=value.dtype)
        results[name] = whole.index_copy(0, ids, value.detach().cpu())
    if output.median_depth is not None:
        results["median depth"] = output.median_depth.detach().cpu()
        results["median ids"] = output.median_ids.cpu()
    return results


CASES = {
    "planar": (scene(80), {}),
    "centers": (scene(80, seed=1), {"depth": "center", "normals": False, "sh_degree": 3, "antialiased": True}),
    "colors": (scene(40, seed=2, features=0), {"depth": None, "normals": False, "sh_degree": 0}),
    "one": (scene(1, seed=3), {}),
    "none": (scene(0), {}),
    "all culled": (scene(20, z=-3.0), {}),
    "huge": (scene(12, seed=4, scale=3.0), {"sh_degree": 1}),
    "needles": (scene(60, seed=5) | {"scales": torch.tensor([[0.5, 1e-4, 1e-3]]).repeat(60, 1)}, {}),
    "many channels": (scene(30, seed=6, features=15), {}),
    "odd size": (scene(50, seed=7), {"size": (3, 65)}),
}


@pytest.mark.parametrize("name", CASES)
def test_images_and_gradients_are_those_of_the_reference_in_every_order(fake_cuda, name):
    parts, options = CASES[name]
    wanted = rendered(parts, "reference", dtype=torch.float64, **options)
    several = []
    for order in (FORWARD, REVERSE, SHUFFLED):
        fake_cuda.emulator.order = order
        several.append(rendered(parts, "kernels", **options))
    for result, value in wanted.items():
        assert all(torch.equal(several[0][result], other[result]) for other in several[1:]), result
        found = several[0][result].double()
        if value.numel():
            # Of the whole: a pixel at the threshold of an ellipse may count in one precision and not in the other.
            assert float((found - value).norm()) <= 2e-3 * float(value.norm()) + 1e-6, result


def test_the_median_and_absolute_gradients_are_those_of_the_cpu(fake_cuda):
    parts, _ = CASES["planar"]
    options = {"median": True, "absgrad": True, "features": parts["dc"][:, 0], "depth": "planar"}
    outputs = []
    for device, backend in (("cpu", "native"), ("cuda", "kernels")):
        shape = [parts[name].clone().to(device).requires_grad_() for name in PARTS[:4]]
        given = {**options, "features": options["features"].to(device)}
        output = rasterize(*shape, turned((37, 21), device), backend=backend, **given)
        output.features.sum().backward()
        outputs.append(output)
    cpu, gpu = outputs
    assert (cpu.median_ids == gpu.median_ids.cpu()).float().mean() > 0.99
    same = cpu.median_ids == gpu.median_ids.cpu()
    torch.testing.assert_close(gpu.median_depth.cpu()[same], cpu.median_depth[same], rtol=1e-4, atol=1e-5)
    assert torch.equal(gpu.visible.cpu().nonzero()[:, 0], cpu.ids)
    torch.testing.assert_close(gpu.absgrad.cpu()[cpu.ids], cpu.absgrad, rtol=2e-3, atol=2e-3)


def test_a_gaussian_that_is_not_finite_is_not_drawn(fake_cuda):
    parts, _ = CASES["planar"]
    spoiled = {name: part.clone() for name, part in parts.items()}
    spoiled["means"][3] = torch.nan
    spoiled["scales"][5, 0] = torch.inf
    spoiled["opacities"][7] = torch.nan
    kept = [i for i in range(80) if i not in (3, 5, 7)]
    left = rendered({name: part[kept] for name, part in parts.items()}, "kernels")
    found = rendered(spoiled, "kernels")
    assert torch.equal(found["features"], left["features"])
    assert not found["gradient of means"][[3, 5, 7]].any()


def test_too_little_room_is_mended_by_rendering_again(fake_cuda, monkeypatch):
    parts, options = CASES["planar"]
    wanted = rendered(parts, "kernels", **options)
    monkeypatch.setattr(kernels, "_LEAST_ROOM", 8)
    monkeypatch.setattr(kernels, "_ROOM", kernels._Room())
    before = fake_cuda.ledger.copy()
    found = rendered(parts, "kernels", **options)
    assert fake_cuda.ledger.since(before).launches["list_pairs"] == 2
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    before = fake_cuda.ledger.copy()
    rendered(parts, "kernels", **options)
    assert fake_cuda.ledger.since(before).launches["list_pairs"] == 1


def test_more_than_2_to_the_31_pairs_are_refused(fake_cuda):
    count = 530_000  # times 4096 tiles
    one = scene(1, scale=1e5)
    shape = [one[name][:1].expand(count, *one[name].shape[1:]).contiguous().to("cuda") for name in PARTS[:4]]
    view = View(camera_from_world=torch.eye(4, device="cuda"), fx=9.0, fy=9.0, cx=9.0, cy=9.0, width=65536, height=16)
    with pytest.raises(ValueError, match="2\\^31"):
        rasterize(*shape, view, depth="center", backend="kernels")


def test_a_steady_rendering_waits_for_nothing(fake_cuda):
    parts = {name: part.to("cuda").requires_grad_() for name, part in CASES["planar"][0].items()}
    *shape, dc, rest, _ = parts.values()
    view = turned((37, 21), "cuda")
    for _ in range(2):
        before = fake_cuda.ledger.copy()
        output = rasterize(
            *shape, view, spherical_harmonics=(dc, rest), depth="planar", normals=True, backend="kernels"
        )
        torch.autograd.grad(output.features.sum() + output.depth.sum(), list(parts.values())[:-1])
    counted = fake_cuda.ledger.since(before)
    assert counted.waits.total() == counted.unordered.total() == 0
    assert counted.launches.total() <= 20


def test_wrong_inputs_are_refused(fake_cuda):
    parts, _ = CASES["colors"]
    shape = [parts[name].to("cuda") for name in PARTS[:4]]
    view = turned((37, 21), "cuda")
    with pytest.raises(ValueError, match="24 channels"):
        rasterize(*shape, view, features=torch.ones(40, 25, device="cuda"), backend="kernels")
    with pytest.raises(ValueError, match="nothing to render"):
        rasterize(*shape, view, backend="kernels")
    with pytest.raises(TypeError, match="float32"):
        rasterize(*(part.double() for part in shape), view, depth="center", backend="kernels")
    with pytest.raises(ValueError, match="GPU"):
        rasterize(*(part.cpu() for part in shape), turned((37, 21), "cpu"), depth="center", backend="kernels")


def test_auto_takes_kernels_that_were_tried_and_torch_otherwise(fake_cuda):
    parts, _ = CASES["colors"]
    shape = [parts[name].to("cuda") for name in PARTS[:4]]
    view = turned((37, 21), "cuda")
    assert splat_kernels_problem() is None
    assert rasterize(*shape, view, depth="center").visible is not None
    # Double precision, many channels and kernels that differ are torch's.
    assert rasterize(*(part.double() for part in shape), view, depth="center").visible is None
    assert rasterize(*shape, view, features=torch.ones(40, 19, device="cuda")).visible is None
    fake_cuda.emulator.verdicts["splats_project.cu", 0] = "they differ"
    assert rasterize(*shape, view, depth="center").visible is None
    assert rasterization.splat_kernels_problem() == "they differ"
