"""Opacities and blending of sections in one go, from what is known at their ends."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.render.sdf.alpha import section_alpha
from fieldwatch.recon.render.sdf.compositing import Composited, composite, transmittance
from fieldwatch.recon.render.sdf.compositing_native import (
    fits_native,
    indices_fit,
    native_composite_sections,
    native_section_opacities,
    raise_faults,
    scalar_fits,
)
from fieldwatch.recon.render.sdf.samples import PackedSamples, Sections

_NOT_THEIRS = 8  # NO_SECTION in native/compositing.c


class SectionOpacities(NamedTuple):
    """What light meets along rays.

    Attributes:
        alpha: opacity of each section.
        transmittance: share of light in front of it.
    """

    alpha: Float[Tensor, " samples"]
    transmittance: Float[Tensor, " samples"]


def composite_sections(
    values: Float[Tensor, " ends"],
    inverse_deviation: Float[Tensor, ""] | float,
    samples: PackedSamples,
    sections: Sections,
    *quantities: Float[Tensor, "ends _"],
) -> Composited:
    """Blend samples of a field that is known at the ends of their sections.

    The same as `composite` with `section_alpha` of the values at both ends, the samples' midpoints, and the mean of
    each quantity at both ends, in one pass over each ray where it is single precision on the CPU. There opacities and
    light are double precision throughout and never rounded in between. Gradients flow to the values, the inverse
    deviation and the quantities; not to distances. Not twice differentiable.

    Args:
        values: signed distance at the ends, positive outside.
        inverse_deviation: s of the surface.
        samples: which rays they belong to, and where.
        sections: `samples.sections()`.
        quantities: known at the ends too: gradients of the field for normals, not normalised.

    Raises:
        ValueError: samples are not sorted by ray or name a ray that is not there; sections of other samples.
    """
    _check_sections(values, samples, sections)
    if _takes(values, samples, sections, *quantities) and scalar_fits(inverse_deviation):
        outputs = native_composite_sections(values, inverse_deviation, samples, sections, quantities)
        return Composited(weights=outputs[0], opacity=outputs[1], depth=outputs[2], values=outputs[3:])
    start, end = (values.index_select(0, at) for at in (sections.start, sections.end))
    means = [0.5 * (q.index_select(0, sections.start) + q.index_select(0, sections.end)) for q in quantities]
    alpha = section_alpha(start, end, inverse_deviation)
    return composite(alpha, samples.ray_index, samples.n_rays, samples.midpoints, *means)


@torch.no_grad()
def section_opacities(
    values: Float[Tensor, " ends"],
    inverse_deviation: Float[Tensor, ""] | float,
    samples: PackedSamples,
    sections: Sections,
) -> SectionOpacities:
    """Return opacity of sections and the light that reaches them, without gradient: to leave out what nobody sees.

    Args:
        values: signed distance at the ends, positive outside.
        inverse_deviation: s of the surface.
        samples: which rays they belong to.
        sections: `samples.sections()`.

    Raises:
        ValueError: as `composite_sections`.
    """
    _check_sections(values, samples, sections)
    if _takes(values, samples, sections):
        return SectionOpacities(*native_section_opacities(values, float(inverse_deviation), samples, sections))
    alpha = section_alpha(values[sections.start], values[sections.end], inverse_deviation)
    return SectionOpacities(alpha, transmittance(alpha, samples.ray_index, samples.n_rays))


def _takes(values: Tensor, samples: PackedSamples, sections: Sections, *quantities: Tensor) -> bool:
    """Whether the native kernel does."""
    indices_match = indices_fit(len(samples), samples.ray_index, sections.start, sections.end)
    return indices_match and fits_native(values, *quantities) and fits_native(samples.t_start, samples.t_end)


def _check_sections(values: Tensor, samples: PackedSamples, sections: Sections) -> None:
    """By their numbers; the kernels look at each one besides."""
    if not (len(sections.start) == len(sections.end) == len(samples) and len(sections.distances) == len(values)):
        raise_faults(_NOT_THEIRS, samples.n_rays)
