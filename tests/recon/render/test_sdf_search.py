"""The search of the kernel finds what evaluating every section finds, to the bit, with fewer evaluations."""

import math
from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.render import BoundedRays, HashEncoding, HashSdf, PackedSamples, points_along, section_opacities
from fieldwatch.recon.render.sdf_search import SectionSearch, searches_natively, visible_sections

RAYS = 200


@pytest.fixture(scope="module")
def sdf():
    """A sphere with dents of some thousandths, nowhere steeper than 1.5."""
    generator = torch.Generator().manual_seed(1)
    encoding = HashEncoding(levels=4, base_resolution=4, finest_resolution=32, table_bits=12)
    field = HashSdf(encoding=encoding, radius=0.6, generator=generator)
    with torch.no_grad():
        field.hidden[0].weight[:, 3:] = 0.05
        field.encoding.table.uniform_(-0.02, 0.02, generator=generator)
    field.activate(4.0)
    return field


@pytest.fixture(scope="module")
def rays():
    """Rays from all sides that pass the center at 0 to 0.9."""
    generator = torch.Generator().manual_seed(2)
    directions = torch.nn.functional.normalize(torch.randn(RAYS, 3, generator=generator), dim=1)
    across = torch.linalg.cross(directions, torch.randn(RAYS, 3, generator=generator))
    across = torch.nn.functional.normalize(across, dim=1)
    passing = torch.linspace(0, 0.9, RAYS)[torch.randperm(RAYS, generator=generator)]
    return BoundedRays.in_sphere(passing[:, None] * across - 2 * directions, directions, 0.995)


def strides_of(rays, length):
    """Strides from each ray's start to behind its end, without every fifth one."""
    number = torch.arange(int(2 / length) + 2)
    start = rays.near[:, None] + number * length
    taken = (start < rays.far[:, None] + 2 * length) & (number % 5 != 3)
    ray_index, number = torch.nonzero(taken, as_tuple=True)
    near = rays.near[ray_index]
    return PackedSamples(
        t_start=near + number * length, t_end=near + (number + 1) * length, ray_index=ray_index, n_rays=len(rays)
    )


def searched(sharpness, parts, length, alpha_threshold, unseen=1e-3):
    """The search of a training."""
    return SectionSearch(
        parts=parts,
        slope=1.5,
        reach=0.75 * length + 8 / sharpness,
        dark=math.log(unseen / 2) / sharpness - 1.5 * length / parts,
        sharpness=sharpness,
        unseen=unseen,
        alpha_threshold=alpha_threshold,
    )


def by_evaluating_all(sdf, rays, strides, search):
    """The same sections in plain operations, rays that are reached, evaluations, and the light in front of sections."""
    strides = strides.clipped(rays.far)
    values = sdf(points_along(rays, strides.midpoints, strides.ray_index))
    reached = strides.counts > 0
    sections = strides
    if search.parts > 1:
        dark = values < search.dark
        darkness = torch.full((len(rays),), torch.inf)
        darkness.scatter_reduce_(0, strides.ray_index[dark], strides.t_end[dark], "amin")
        near = (values.abs() <= search.reach) & (strides.t_start < darkness[strides.ray_index])
        reached = strides.selected(near | dark).counts > 0
        sections = strides.selected(near).subdivided(search.parts)
    ends = sections.sections()
    light = section_opacities(sdf(points_along(rays, ends.distances, ends.ray_index)), search.sharpness, sections, ends)
    visible = (light.transmittance >= search.unseen) & (light.alpha >= search.alpha_threshold)
    return sections.selected(visible), reached, len(values) + len(ends.distances), light.transmittance


@pytest.mark.parametrize("alpha_threshold", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("surface", [(40.0, 1, 0.02), (200.0, 4, 0.04), (1200.0, 12, 0.03)])
@torch.no_grad()
def test_sections_are_those_of_evaluating_all_to_the_bit(sdf, rays, surface, alpha_threshold):
    strides = strides_of(rays, surface[-1])
    search = searched(*surface, alpha_threshold)
    assert searches_natively(sdf, rays, strides)
    wanted, reached, evaluations, _ = by_evaluating_all(sdf, rays, strides, search)
    found = visible_sections(sdf, rays, strides, search)
    for name in ("t_start", "t_end", "ray_index"):
        assert torch.equal(getattr(found.samples, name), getattr(wanted, name))
    assert torch.equal(found.reached, reached)
    assert len(wanted) > 2 * RAYS
    assert found.evaluated < 0.8 * evaluations


@torch.no_grad()
def test_what_faint_sections_take_of_the_light_is_not_forgotten(sdf, rays):
    strides = strides_of(rays, 0.03)
    _, _, _, light = by_evaluating_all(sdf, rays, strides, searched(1200.0, 12, 0.03, 1e-3))
    some = light[(light > 0.02) & (light < 0.98)]
    # Thresholds just above the light in front of a section. A section is visible if faint ones take nothing.
    for unseen in (some[:: len(some) // 20] * (1 + 1e-6)).tolist():
        search = searched(1200.0, 12, 0.03, 1e-3, unseen)
        wanted, *_ = by_evaluating_all(sdf, rays, strides, search)
        found = visible_sections(sdf, rays, strides, search).samples
        assert torch.equal(found.t_start, wanted.t_start)


@torch.no_grad()
def test_rays_do_not_depend_on_others_nor_on_threads(sdf, rays):
    strides = strides_of(rays, 0.03)
    search = searched(1200.0, 12, 0.03, 1e-3)
    found = visible_sections(sdf, rays, strides, search)
    torch.set_num_threads(3)
    by_threads = visible_sections(sdf, rays, strides, search)
    torch.set_num_threads(1)
    assert torch.equal(found.samples.t_start, by_threads.samples.t_start)
    assert found.evaluated == by_threads.evaluated
    first = strides.first_rays(len(strides) // 3)
    fewer = visible_sections(sdf, rays, first, search).samples
    assert fewer.n_rays == first.n_rays
    assert torch.equal(fewer.t_start, found.samples.t_start[found.samples.ray_index < first.n_rays])


@torch.no_grad()
def test_no_strides_have_no_sections(sdf, rays):
    none = strides_of(rays, 0.03).selected(torch.zeros(len(strides_of(rays, 0.03)), dtype=torch.bool))
    found = visible_sections(sdf, rays, none, searched(1200.0, 12, 0.03, 1e-3))
    assert len(found.samples) == found.evaluated == 0
    assert not found.reached.any()


@torch.no_grad()
def test_a_ray_beside_the_box_is_refused(sdf, rays):
    beside = replace(rays, origins=rays.origins + 1.5)
    with pytest.raises(ValueError, match="outside"):
        visible_sections(sdf, beside, strides_of(rays, 0.03), searched(1200.0, 12, 0.03, 1e-3))


@torch.no_grad()
def test_a_ray_that_is_not_a_number_finds_nothing_and_leaves_the_others(sdf, rays):
    strides = strides_of(rays, 0.03)
    search = searched(1200.0, 12, 0.03, 1e-3)
    origins = rays.origins.clone()
    origins[7] = torch.nan
    found = visible_sections(sdf, rays, strides, search).samples
    broken = visible_sections(sdf, replace(rays, origins=origins), strides, search).samples
    assert torch.equal(broken.t_start, found.t_start[found.ray_index != 7])


def test_double_precision_is_not_for_the_kernel(sdf, rays):
    strides = strides_of(rays, 0.03)
    assert not searches_natively(sdf, replace(rays, origins=rays.origins.double()), strides)
