"""The native kernels of volume rendering against plain torch: blending to rounding, marching to the bit."""

import pytest
import torch

from fieldwatch.recon.render import (
    BoundedRays,
    Cells,
    PackedSamples,
    composite,
    composite_sections,
    native_available,
    section_alpha,
    section_opacities,
    transmittance,
)
from fieldwatch.recon.render.sdf.alpha import section_alpha_reference
from fieldwatch.recon.render.sdf.compositing import composite_reference
from fieldwatch.recon.render.sdf.marching import OccupancyMaps, build_maps, build_maps_reference, march, march_reference

TOLERANCE = 1e-6  # of the largest entry
COUNTS = [0, 3, 1, 0, 0, 70, 1, 64, 5, 129, 0]  # samples of rays: none, one, and about one and two blocks of the kernel


@pytest.fixture(autouse=True)
def kernels():
    there, reason = native_available()
    assert there, reason


def close(native, exact):
    """Within rounding of what double precision gives."""
    if native.shape != exact.shape or not native.numel():
        return native.shape == exact.shape
    return float((native.double() - exact).detach().abs().max()) <= TOLERANCE * float(exact.detach().abs().max())


def ray_index():
    return torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))


def double(tensors):
    return [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in tensors]


def gradients(outputs, inputs, pulls):
    total = sum((out * pull.to(out.dtype)).sum() for out, pull in zip(outputs, pulls, strict=True))
    return torch.autograd.grad(total, inputs)


def compare(native, reference, inputs, *, weighed=(True, True, True, True, True)):
    """Outputs and gradients of a blending; only the outputs that are `weighed` count."""
    exact = double(inputs)
    ours = native(*inputs)
    theirs = reference(*exact)
    for name in ("weights", "opacity", "depth"):
        assert close(getattr(ours, name), getattr(theirs, name)), name
    flat = [(out.weights, out.opacity, out.depth, *out.values) for out in (ours, theirs)]
    chosen = [[part for part, kept in zip(out, weighed, strict=False) if kept] for out in flat]
    pulls = [torch.randn_like(part) for part in chosen[0]]
    for a, b in zip(*flat, strict=True):
        assert close(a, b)
    for a, b in zip(gradients(chosen[0], inputs, pulls), gradients(chosen[1], exact, pulls), strict=True):
        assert a.dtype == torch.float32
        assert close(a, b)


ALPHAS = {
    "open": lambda alpha: alpha,
    "faint": lambda alpha: alpha * 1e-3,
    "clear here and there": lambda alpha: alpha.masked_fill(torch.rand(len(alpha)) < 0.3, 0.0),
    "solid here and there": lambda alpha: alpha.masked_fill(torch.rand(len(alpha)) < 0.1, 1.0),
    "all clear": torch.zeros_like,
    "all solid": torch.ones_like,
}


@pytest.mark.parametrize("change", ALPHAS.values(), ids=ALPHAS.keys())
@pytest.mark.parametrize("widths", [(), (3,), (1, 6)])
def test_blending_is_that_of_torch(change, widths):
    rays = ray_index()
    count = sum(COUNTS)
    alpha = change(torch.rand(count) ** 3).requires_grad_()
    inputs = [alpha, torch.rand(count).requires_grad_()]
    inputs += [torch.randn(count, width).requires_grad_() for width in widths]

    def by(blend):
        return lambda a, t, *values: blend(a, rays, len(COUNTS), t, *values)

    compare(by(composite), by(composite_reference), inputs)
    reaching = composite_reference(alpha.double(), rays, len(COUNTS), torch.zeros(count).double()).weights / alpha
    seen = (alpha > 0).detach()
    assert close(transmittance(alpha, rays, len(COUNTS))[seen], reaching[seen].detach())


def packed(gap=0.3):
    """Samples of random rays; here and there one does not begin where the one before it ends."""
    rays = ray_index()
    count = sum(COUNTS)
    step = 0.05
    start = step * (torch.arange(count) + (torch.rand(count) < gap).cumsum(0))
    end = step * (torch.arange(count) + 1 + (torch.rand(count) < gap).cumsum(0))
    end = torch.where(end > start, end, start + step)
    follows = torch.rand(count - 1) > gap
    start[1:] = torch.where(follows, end[:-1], start[1:])
    return PackedSamples(t_start=start, t_end=end, ray_index=rays, n_rays=len(COUNTS))


@pytest.mark.parametrize("sharpness", [5.0, 60.0, 2000.0])
@pytest.mark.parametrize("weighed", [(False, True, True, True), (True, True, True, True), (False, True, False, False)])
def test_sections_are_blended_as_in_parts(sharpness, weighed):
    samples = packed()
    sections = samples.sections()
    values = (0.02 * torch.randn(len(sections.distances)) + 0.01).requires_grad_()
    normals = torch.randn(len(values), 3).requires_grad_()
    s = torch.tensor(sharpness, requires_grad=True)
    inputs = [values, s, normals] if weighed[3] else [values, s]

    def parts(f, inverse, *quantities):
        start = f[sections.start]
        end = f[sections.end]
        means = [0.5 * (q[sections.start] + q[sections.end]) for q in quantities]
        middles = samples.midpoints.to(f.dtype)
        return composite_reference(
            section_alpha_reference(start, end, inverse), samples.ray_index, samples.n_rays, middles, *means
        )

    compare(
        lambda f, inverse, *q: composite_sections(f, inverse, samples, sections, *q),
        parts,
        inputs,
        weighed=weighed,
    )


def test_light_of_sections_is_that_of_the_parts():
    samples = packed()
    sections = samples.sections()
    values = 0.02 * torch.randn(len(sections.distances))
    alpha, reaching = section_opacities(values, 80.0, samples, sections)
    exact = section_alpha_reference(values.double()[sections.start], values.double()[sections.end], 80.0)
    assert close(alpha, exact)
    assert close(reaching, transmittance(exact, samples.ray_index, samples.n_rays))


def test_other_precisions_are_blended_in_torch():
    samples = packed()
    sections = samples.sections()
    values = 0.02 * torch.randn(len(sections.distances))
    normals = torch.randn(len(sections.distances), 3)
    single = composite_sections(values, 80.0, samples, sections, normals)
    twice = composite_sections(values.double(), 80.0, samples, sections, normals.double())
    assert (single.opacity.dtype, twice.opacity.dtype) == (torch.float32, torch.float64)
    for a, b in zip(
        (single.opacity, single.depth, *single.values), (twice.opacity, twice.depth, *twice.values), strict=True
    ):
        assert close(a, b)
    light = section_opacities(values.double(), 80.0, samples, sections)
    assert close(section_opacities(values, 80.0, samples, sections).transmittance, light.transmittance)


@pytest.mark.parametrize("sharpness", [1.0, 50.0, 1e4])
def test_opacities_and_their_gradients_are_those_of_double_precision(sharpness):
    start, end = (0.2 * torch.randn(7, 131) for _ in range(2))
    inputs = [start.requires_grad_(), end.requires_grad_(), torch.tensor(sharpness, requires_grad=True)]
    exact = double(inputs)
    pull = torch.randn(7, 131)
    ours = section_alpha(*inputs)
    theirs = section_alpha_reference(*exact)
    assert close(ours, theirs)
    for a, b in zip(gradients([ours], inputs, [pull]), gradients([theirs], exact, [pull]), strict=True):
        assert close(a, b)


def test_a_faint_section_keeps_its_digits():
    """In front of a surface the opacity is tiny, and still right to seven digits: no difference of large numbers."""
    start = torch.tensor([0.5, 0.3, 0.1, -0.5, -0.3])
    end = start - 1e-4
    exact = section_alpha_reference(start.double(), end.double(), 60.0)
    assert torch.allclose(section_alpha(start, end, 60.0).double(), exact, rtol=2e-7, atol=0)


def test_what_is_not_a_number_stays_on_its_ray():
    rays = torch.tensor([0, 1, 1, 2])
    alpha = torch.tensor([0.5, torch.nan, 0.5, 0.25])
    out = composite(alpha, rays, 3, torch.ones(4))
    assert out.opacity.isnan().tolist() == [False, True, False]
    assert out.opacity[[0, 2]].tolist() == [0.5, 0.25]
    assert section_alpha(torch.tensor([torch.nan, 0.0]), torch.tensor([0.0, torch.nan]), 5.0).isnan().all()


def many():
    rays = torch.arange(300).repeat_interleave(torch.randint(0, 40, (300,)))
    step = 0.01 * torch.arange(len(rays))
    samples = PackedSamples(t_start=step, t_end=step + 0.01, ray_index=rays, n_rays=300)
    return samples, samples.sections()


def test_the_number_of_threads_changes_no_bit():
    samples, sections = many()
    assert len(samples) > 4000  # or the kernels take one thread anyway
    values = (0.1 * torch.randn(len(sections.distances))).requires_grad_()
    normals = torch.randn(len(values), 3).requires_grad_()
    s = torch.tensor(40.0, requires_grad=True)
    alpha = torch.rand(len(samples)).requires_grad_()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        fused = composite_sections(values, s, samples, sections, normals)
        single = composite(alpha, samples.ray_index, samples.n_rays, samples.midpoints)
        outputs = (fused.opacity, fused.depth, fused.values[0], single.depth)
        slopes = torch.autograd.grad([part.square().sum() for part in outputs], (values, normals, s, alpha))
        found.append((*outputs, *slopes))
    torch.set_num_threads(1)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_sections_of_other_samples_are_refused():
    samples = packed()
    sections = samples.sections()
    values = torch.zeros(len(sections.distances))
    for wrong in (
        sections._replace(start=sections.start + 1, end=sections.end + 1),
        sections._replace(end=sections.start),
        sections._replace(start=torch.zeros_like(sections.start), end=torch.ones_like(sections.end)),
        PackedSamples(
            t_start=torch.zeros(1), t_end=torch.ones(1), ray_index=torch.zeros(1).long(), n_rays=1
        ).sections(),
    ):
        with pytest.raises(ValueError, match=r"samples\.sections\(\)"):
            composite_sections(values, 10.0, samples, wrong)
    with pytest.raises(ValueError, match="outside 0 to 8"):
        composite_sections(
            values,
            10.0,
            PackedSamples(t_start=samples.t_start, t_end=samples.t_end, ray_index=samples.ray_index, n_rays=9),
            sections,
        )


def test_a_second_derivative_is_refused():
    start = torch.tensor([0.1, 0.2], requires_grad=True)
    alpha = section_alpha(start, start.detach() - 0.1, 10.0)
    with pytest.raises(RuntimeError, match=r"native .*create_graph=True"):
        torch.autograd.grad(alpha.sum(), start, create_graph=True)


GRIDS = (
    Cells(resolution=16, low=(-1.0, -1.2, -0.8), high=(1.0, 1.0, 1.0)),
    Cells(resolution=1),
    Cells(resolution=33),
)


def occupied(cells, share):
    return torch.rand((cells.resolution,) * 3) < share


def lines():
    """From outside, from inside, past the box, along its axes and faces, and nowhere."""
    origins = torch.randn(40, 3)
    origins[:20] *= 3 / origins[:20].norm(dim=-1, keepdim=True)
    origins[20:] *= 0.3
    origins[1] = torch.tensor([0.0, 5.0, 3.0])
    directions = torch.where(torch.arange(40)[:, None] < 20, 0.5 * torch.randn(40, 3) - origins, torch.randn(40, 3))
    axes = torch.eye(3).repeat(8, 1)
    through = torch.tensor([0.0, 0.125, -0.5, 0.9999, 1.0, -1.0, 1.0001, 0.06]).repeat_interleave(3)[:, None] * (
        1 - axes
    )
    origins = torch.cat([origins, through - 2.5 * axes])
    directions = torch.cat([directions, axes])
    directions[1] = torch.tensor([0.0, 0.0, -1.0])
    rays = BoundedRays.in_box(origins, directions / directions.norm(dim=-1, keepdim=True), (-1.1,) * 3, (1.1,) * 3)
    assert bool((rays.near == rays.far).any())
    return rays


@pytest.mark.parametrize("cells", GRIDS, ids=["box", "one cell", "odd"])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_marching_is_that_of_torch_to_the_bit(cells, share):
    rays = lines()
    maps = build_maps(occupied(cells, share))
    for step in (0.7, 0.0117, 0.004):
        for jitter in (None, torch.rand(len(rays))):
            whole = march_reference(cells, maps, rays, step, jitter=jitter, max_samples=None, chunk=1 << 20)
            for most, chunk in (
                (None, 1 << 20),
                (None, 1500),
                (len(whole) // 2, 1 << 20),
                (len(whole) // 2, 1500),
                (0, 900),
            ):
                found = march(cells, maps, rays, step, jitter=jitter, max_samples=most, chunk=chunk)
                expected = whole if most is None or len(whole) <= most else whole.first_rays(most)
                assert found.n_rays == expected.n_rays
                for name in ("t_start", "t_end", "ray_index"):
                    assert torch.equal(getattr(found, name), getattr(expected, name)), (step, most, chunk, name)
        assert share < 1 or len(whole) > 0


def test_threads_march_alike():
    rays = lines()
    cells = GRIDS[0]
    maps = build_maps(occupied(cells, 0.3))
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(march(cells, maps, rays, 0.003, jitter=None, max_samples=9000, chunk=4000))
    torch.set_num_threads(1)
    assert torch.equal(found[0].t_start, found[1].t_start)
    assert torch.equal(found[0].ray_index, found[1].ray_index)


@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_maps_are_those_of_torch(size):
    for share in (0.0, 0.05, 1.0):
        table = torch.rand(size, size, size) < share
        ours = build_maps(table)
        theirs = build_maps_reference(table)
        assert isinstance(ours, OccupancyMaps)
        assert torch.equal(ours.occupied, theirs.occupied)
        assert torch.equal(ours.dilated, theirs.dilated)
