"""The native kernels against plain torch in double precision, forward and backward; plain torch against differences.

`FIELDWATCH_SPLAT_CASES=2000 pytest tests/reference/test_splats.py -k random` compares so many drawn at random.
"""

import math
import os
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from fieldwatch.recon.render import View, native_available, rasterize
from fieldwatch.recon.render.splats.projection import project
from fieldwatch.recon.render.splats.stages import GaussianTensors, RasterOptions

TOLERANCE = 1e-5  # of the largest entry
DELICATE = 3  # times the error that single precision costs plain torch, where that is more
ROUNDING = 2e-6  # relative, of an alpha or a transmittance in single precision
MOST_UNDECIDED = 2  # pixels of a picture
RANDOM_CASES = int(os.environ.get("FIELDWATCH_SPLAT_CASES", "110"))
OUTPUTS = ("features", "alpha", "depth", "normals", "median_depth")


@dataclass
class Case:
    """Gaussians and the camera that looks at them."""

    name: str
    count: int = 150
    size: tuple[int, int] = (48, 48)
    center: tuple[float, float] = (0.5, 0.5)
    sizes: tuple[float, float] = (-3.0, 0.6)  # mean and deviation of the scales' logarithms
    deep: tuple[float, float] = (2.0, 6.0)
    wide: float = 0.5
    opacity: float = 1.0
    degree: int = 3
    options: dict = field(default_factory=dict)
    change: object = None
    seed: int = 0

    def gaussians(self, dtype):
        chance = torch.Generator().manual_seed(self.seed)

        def normal(*shape):
            return torch.randn(shape, generator=chance, dtype=torch.float32)

        z = torch.rand(self.count, generator=chance) * (self.deep[1] - self.deep[0]) + self.deep[0]
        means = torch.stack([normal(self.count) * self.wide * z, normal(self.count) * self.wide * z, z], -1)
        parts = {
            "means": means,
            "quaternions": normal(self.count, 4),
            "scales": (normal(self.count, 3) * self.sizes[1] + self.sizes[0]).exp(),
            "opacities": torch.sigmoid(normal(self.count) + self.opacity),
            "dc": normal(self.count, 1, 3),
            "rest": normal(self.count, 15, 3) * 0.3,
        }
        if self.change:
            self.change(parts)
        return {name: part.to(dtype).requires_grad_() for name, part in parts.items()}

    def view(self):
        width, height = self.size
        turned = torch.eye(4)
        angle = 0.2
        turned[0, 0] = turned[2, 2] = math.cos(angle)
        turned[0, 2] = math.sin(angle)
        turned[2, 0] = -math.sin(angle)
        turned[:3, 3] = torch.tensor([0.3, -0.1, 0.4])
        focal = 0.9 * width
        return View(
            camera_from_world=turned,
            fx=focal,
            fy=1.1 * focal,
            cx=width * self.center[0],
            cy=height * self.center[1],
            width=width,
            height=height,
        )


def flat(parts):
    parts["scales"][:, 1] = 0.0


def needles(parts):
    parts["scales"][:, 0] = 3.0
    parts["scales"][:, 1:] = 1e-4


def points(parts):
    parts["scales"][:] = 0.0


def huge(parts):
    parts["scales"][::7] = 200.0


def unnormalized(parts):
    parts["quaternions"] *= torch.linspace(0.01, 50, len(parts["quaternions"]))[:, None]


def lost(parts):
    """Make one of a kind each not finite: nobody sees them, and the rest is as if they were not there."""
    parts["means"][0, 0] = math.nan
    parts["means"][1] = math.inf
    parts["scales"][2, 1] = math.inf
    parts["quaternions"][3, 2] = math.nan
    parts["opacities"][4] = math.nan
    parts["quaternions"][5] = 0.0  # this one is drawn, unturned


CASES = [
    Case("plain"),
    Case("not a multiple of the tile", size=(37, 21)),
    Case("one pixel", size=(1, 1), sizes=(-1.0, 0.3)),
    Case("wide image", size=(130, 9)),
    Case("principal point off center", center=(0.15, 0.8)),
    Case("principal point off the image", center=(-0.4, 1.3)),
    Case("behind and around the camera", deep=(-4.0, 4.0), wide=1.5),
    Case("off screen", wide=4.0, sizes=(-1.0, 0.5)),
    Case("huge", change=huge),
    Case("flat", change=flat),
    Case("needles", change=needles),
    Case("points", change=points),
    Case("dense and opaque", count=600, sizes=(-1.5, 0.4), opacity=4.0),
    Case("faint", opacity=-5.0),
    Case("one", count=1),
    Case("none", count=0),
    Case("none visible", deep=(-6.0, -2.0)),
    Case("quaternions of any length", change=unnormalized),
    Case("antialiased", options={"antialiased": True}, sizes=(-4.5, 0.5)),
    Case("antialiased points", options={"antialiased": True, "eps2d": 0.1}, change=flat),
    Case("degree 0", degree=0),
    Case("degree 2", degree=2),
    Case("planar", options={"depth": "planar"}),
    Case(
        "opaque ones near the camera", 101, (29, 18), sizes=(-1.78, 0.94), deep=(-0.9, 3.1), opacity=0.8, seed=147633724
    ),
    Case("planar and flat", options={"depth": "planar"}, change=flat),
]


@pytest.fixture(autouse=True)
def kernels():
    there, reason = native_available()
    if not there:
        pytest.skip(reason)


def drawn(parts, view, backend, **options):
    chosen = {"depth": "center", "normals": True, "median": True} | options
    harmonics = (parts["dc"], parts["rest"])
    gaussians = [parts[name] for name in ("means", "quaternions", "scales", "opacities")]
    return rasterize(*gaussians, view, spherical_harmonics=harmonics, backend=backend, **chosen)


def pull(picture, seed=1, at=None):
    """Pull at every output in random directions, and go backward; only at some pixels if `at` says so."""
    chance = torch.Generator().manual_seed(seed)
    outputs = [seen(getattr(picture, name), at) for name in OUTPUTS]
    weights = [torch.randn(part.shape, generator=chance, dtype=torch.float64) for part in outputs]
    loss = sum((part * weight.to(part)).sum() for part, weight in zip(outputs, weights, strict=True))
    if loss.requires_grad:
        loss.backward()


def seen(image, at):
    """The pixels of an image that count; 0 elsewhere."""
    return image if at is None else image * at.view(*at.shape, *[1] * (image.ndim - 2)).to(image)


def undecided(case):
    """Pixels where an alpha or a transmittance of double precision lies within rounding of a cut.

    The cuts: 1/255, where a Gaussian counts; 0.99, where its gradient ends; 1e-4 of the light, where a pixel is
    opaque; half of it, where the median is.
    """
    parts = [part.detach() for part in case.gaussians(torch.float64).values()][:4]
    view = case.view()
    projected = project(
        GaussianTensors(*parts), view, RasterOptions(antialiased=case.options.get("antialiased", False))
    )
    y, x = torch.meshgrid(torch.arange(view.height) + 0.5, torch.arange(view.width) + 0.5, indexing="ij")
    dx, dy = (torch.stack([x, y], -1)[:, :, None] - projected.means2d).unbind(-1)
    l1, l2, l3 = projected.whitening.unbind(-1)
    alphas = projected.alphas * torch.exp(-((l1 * dx + l2 * dy).square() + (l3 * dy).square()) / 2)
    alphas = alphas[..., torch.argsort(projected.depths, stable=True)]
    light = (1 - torch.where(alphas >= 1 / 255, alphas.clamp_max(0.99), 0)).cumprod(-1)
    distances = [
        (values / cut - 1).abs() for values, cut in ((alphas, 1 / 255), (alphas, 0.99), (light, 1e-4), (light, 0.5))
    ]
    return (torch.stack(distances) < ROUNDING).any(-1).any(0)


def gap(computed, expected):
    """Return the largest difference, relative to the largest expected entry."""
    if expected is None or expected.numel() == 0:
        assert computed is None or computed.numel() == 0 or not computed.any()
        return 0.0
    assert torch.isfinite(computed).all()
    return ((computed.double() - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item()


def attempts(case, at=None):
    """Draw a case with native kernels, with torch in single and in double precision, and go backward."""
    pictures = []
    gradients = []
    for backend, dtype in (("native", torch.float32), ("reference", torch.float32), ("reference", torch.float64)):
        parts = case.gaussians(dtype)
        pictures.append(drawn(parts, case.view(), backend, sh_degree=case.degree, **case.options))
        pull(pictures[-1], at=at)
        gradients.append({name: part.grad for name, part in parts.items()} | {"means2d": pictures[-1].means2d.grad})
    return pictures, gradients


def excess(ours, single, wanted):
    """By how much each is off, for those off by more than the tolerance and clearly more than plain torch is."""
    off = {name: (gap(ours[name], wanted[name]), gap(single[name], wanted[name])) for name in wanted}
    return {name: gaps for name, gaps in off.items() if gaps[0] > max(TOLERANCE, DELICATE * gaps[1])}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_native_is_the_reference_forward_and_backward(case):
    pictures, gradients = attempts(case)
    assert torch.equal(pictures[0].ids, pictures[2].ids)
    shown = [{name: getattr(picture, name) for name in (*OUTPUTS, "radii", "means2d")} for picture in pictures]
    assert excess(*shown) == {}
    assert excess(*gradients) == {}


def case_of(number: int) -> Case:
    """A case of its number alone. (hypothesis also tries constants of whatever modules happen to be loaded.)"""
    random = np.random.default_rng(number)
    sizes = (float(random.uniform(-4.5, -1.0)), float(random.uniform(0.1, 1.0)))
    nearest = float(random.uniform(-3.0, 2.0))
    opacity = float(random.uniform(-3.0, 3.0))
    mode = [{}, {"depth": "planar"}, {"antialiased": True}][random.integers(3)]
    count = int(random.integers(201))
    width = int(random.integers(1, 71))
    height = int(random.integers(1, 71))
    deep = (nearest, nearest + 4.0)
    seed = int(random.integers(1 << 31))
    return Case("random", count, (width, height), sizes=sizes, deep=deep, opacity=opacity, options=mode, seed=seed)


@pytest.mark.parametrize("number", range(RANDOM_CASES))
def test_native_is_the_reference_on_gaussians_drawn_at_random(number):
    """The same ones always, but for pixels that rounding may decide either way.

    Of 2,000 drawn evenly all held. In eight a gradient was off by 1.0e-5 to 1.3e-5, where plain torch in single
    precision is off by 4e-6 to 4e-5. Rounding could decide 33 of their 2.4 million pixels, at most two to a picture,
    and in one it did: which Gaussian is the median. FIELDWATCH_SPLAT_CASES=2000
    draws more. Drawn by hypothesis (edges, and constants of the modules that were loaded) a gradient was off by 1.4e-5
    twice: of opacity, where two Gaussians' pulls all but cancel, and of quaternions of 34 Gaussians, one of them near.
    """
    case = case_of(number)
    unsure = undecided(case)
    pictures, gradients = attempts(case, ~unsure)
    assert torch.equal(pictures[0].ids, pictures[2].ids)
    shown = [{name: seen(getattr(picture, name), ~unsure) for name in OUTPUTS} for picture in pictures]
    assert excess(*({"radii": picture.radii} | images for picture, images in zip(pictures, shown, strict=True))) == {}
    assert excess(*gradients) == {}
    assert unsure.sum() <= MOST_UNDECIDED
    apart = (pictures[0].alpha.double() - pictures[2].alpha)[unsure].abs()
    assert (apart < 1.001 / 255).all()  # one Gaussian at the threshold


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 9, 16, 32])
def test_features_of_any_width(channels):
    case = Case("features")
    results = []
    for backend, dtype in (("native", torch.float32), ("reference", torch.float64)):
        parts = case.gaussians(dtype)
        values = torch.linspace(-1, 2, case.count * channels).view(case.count, channels).to(dtype).requires_grad_()
        gaussians = [parts[name] for name in ("means", "quaternions", "scales", "opacities")]
        background = torch.linspace(0, 1, channels, dtype=dtype)
        picture = rasterize(*gaussians, case.view(), features=values, background=background, backend=backend)
        picture.features.square().sum().backward()
        results.append((picture.features, values.grad, *(part.grad for part in gaussians)))
    assert max(gap(*pair) for pair in zip(*results, strict=True)) < TOLERANCE


def test_what_is_not_finite_is_not_drawn_and_gets_no_gradient():
    case = Case("lost", change=lost)
    for backend, dtype in (("native", torch.float32), ("reference", torch.float64)):
        parts = case.gaussians(dtype)
        picture = drawn(parts, case.view(), backend)
        pull(picture)
        assert not set(range(5)) & set(picture.ids.tolist())
        assert all(torch.isfinite(getattr(picture, name)).all() for name in OUTPUTS)
        assert all(torch.isfinite(part.grad).all() and not part.grad[:5].any() for part in parts.values())


def test_a_color_that_is_not_finite_is_seen():
    parts = Case("color").gaussians(torch.float32)
    with torch.no_grad():
        parts["dc"][:, 0, 1] = math.nan
    picture = drawn(parts, Case("color").view(), "native")
    assert picture.features.isnan().any()
    assert not picture.alpha.isnan().any()


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(threads):
    results = []
    for count in (1, threads):
        torch.set_num_threads(count)
        parts = Case("threads", count=400, size=(70, 70)).gaussians(torch.float32)
        picture = drawn(parts, Case("threads", size=(70, 70)).view(), "native", absgrad=True)
        pull(picture)
        outputs = [getattr(picture, name) for name in (*OUTPUTS, "ids", "radii", "absgrad")]
        results.append([*outputs, *(part.grad for part in parts.values())])
    assert all(torch.equal(one, more) for one, more in zip(*results, strict=True))


def test_magnitudes_are_at_least_the_gradient_and_more_where_pixels_disagree():
    parts = Case("absgrad").gaussians(torch.float32)
    picture = drawn(parts, Case("absgrad").view(), "native", absgrad=True)
    pull(picture)
    assert (picture.absgrad >= picture.means2d.grad.abs() * (1 - 1e-4) - 1e-4).all()
    assert picture.absgrad.sum() > 1.5 * picture.means2d.grad.abs().sum()


def test_magnitudes_of_a_single_pixel_are_the_gradient():
    case = Case("pixel", size=(1, 1), sizes=(-1.0, 0.3))
    picture = drawn(case.gaussians(torch.float32), case.view(), "native", absgrad=True)
    pull(picture)
    torch.testing.assert_close(picture.absgrad, picture.means2d.grad.abs())


@pytest.mark.parametrize("options", [{}, {"antialiased": True}, {"depth": "planar"}], ids=str)
def test_the_reference_has_the_gradients_of_differences(options):
    case = Case("differences", count=3, size=(6, 5), sizes=(-1.0, 0.3), deep=(2.0, 3.0), wide=0.2)
    parts = case.gaussians(torch.float64)

    def outputs(*values):
        picture = drawn(dict(zip(parts, values, strict=True)), case.view(), "reference", **options)
        return picture.features, picture.alpha, picture.depth, picture.normals

    assert torch.autograd.gradcheck(outputs, tuple(parts.values()), eps=1e-7, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_planar_depth_has_no_bias_on_a_slanted_plane(backend):
    """Flat Gaussians on the plane z = 3 + x / 2: their blended planar depth is the plane's own."""
    across = torch.linspace(-2, 2, 40)
    x, y = (part.flatten() for part in torch.meshgrid(across, across, indexing="xy"))
    means = torch.stack([x, y, 3 + x / 2], -1)
    half = math.atan(0.5) / 2
    quaternions = torch.tensor([math.cos(half), 0.0, -math.sin(half), 0.0]).expand(len(means), 4)
    scales = torch.tensor([0.08, 0.08, 1e-4]).expand(len(means), 3)
    view = View(camera_from_world=torch.eye(4), fx=60.0, fy=60.0, cx=24.0, cy=24.0, width=48, height=48)
    right = (torch.arange(48) + 0.5 - 24) / 60
    surface = (3 / (1 - right / 2)).expand(48, 48)
    errors = {}
    for mode in ("center", "planar"):
        opacities = torch.full((len(means),), 0.95)
        drawn_plane = rasterize(means, quaternions, scales, opacities, view, depth=mode, median=True, backend=backend)
        errors[mode] = (drawn_plane.expected_depth() - surface).abs().mean().item()
        errors["median", mode] = (drawn_plane.median_depth - surface).abs().mean().item()
    assert errors["planar"] < 0.002
    assert errors["planar"] < 0.2 * errors["center"]
    assert errors["median", "planar"] < 0.2 * errors["median", "center"]


def test_gsplat_draws_what_the_reference_draws(gpu):
    pytest.importorskip("gsplat")
    case = Case("gpu", opacity=0.0)
    results = []
    for backend, device, dtype in (("gsplat", gpu, torch.float32), ("reference", "cpu", torch.float64)):
        parts = {name: part.detach().to(device).requires_grad_() for name, part in case.gaussians(dtype).items()}
        picture = drawn(parts, case.view(), backend, median=False)
        (picture.features.square().sum() + picture.depth.sum() + picture.normals.square().sum()).backward()
        results.append((picture.features, picture.depth, *(part.grad for part in parts.values())))
    assert max(gap(ours.cpu(), wanted) for ours, wanted in zip(*results, strict=True)) < 1e-3
