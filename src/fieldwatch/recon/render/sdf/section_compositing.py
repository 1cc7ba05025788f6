"""Fused opacity and blending of sections, from field values at their ends."""

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

_NO_SECTION = 8  # NO_SECTION in native/compositing.c


class SectionOpacities(NamedTuple):
    """Opacity and transmittance along rays.

    Attributes:
        alpha: opacity of each section.
        transmittance: transmittance in front of each section.
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
    """Blend samples of a field with values known at the ends of their sections.

    This equals `composite` with `section_alpha` of the end values, the midpoints of the samples, and the mean of each
    quantity over both ends. Single precision on the CPU runs as one pass over each ray, with opacity and transmittance
    in double precision throughout. Gradients flow to the values, the inverse deviation and the quantities, but not to
    the distances. Not twice differentiable.

    Args:
        values: signed distance at the ends, positive outside.
        inverse_deviation: s, the inverse width of the surface.
        samples: samples to blend.
        sections: result of `samples.sections()`.
        quantities: values at the ends to blend as well, such as unnormalized field gradients for normals.

    Raises:
        ValueError: the samples are not sorted by ray or name missing rays, or the sections belong to other samples.
    """
    _check_sections(values, samples, sections)
    if _fits_kernel(values, samples, sections, *quantities) and scalar_fits(inverse_deviation):
        outputs = native_composite_sections(values, inverse_deviation, samples, sections, quantities)
        return Composited(weights=outputs[0], opacity=outputs[1], depth=outputs[2], values=outputs[3:])
    # Everything the kernel does not support runs through the generic path.
    start, end = (values.index_select(0, at) for at in (sections.start, sections.end))
    # The quantity of a sample is the mean over its two ends, as in the kernel.
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
    """Return opacity and transmittance of sections without gradients, to skip invisible samples.

    Args:
        values: signed distance at the ends, positive outside.
        inverse_deviation: s, the inverse width of the surface.
        samples: samples of the sections.
        sections: result of `samples.sections()`.

    Raises:
        ValueError: as for `composite_sections`.
    """
    _check_sections(values, samples, sections)
    if _fits_kernel(values, samples, sections):
        return SectionOpacities(*native_section_opacities(values, float(inverse_deviation), samples, sections))
    alpha = section_alpha(values[sections.start], values[sections.end], inverse_deviation)
    return SectionOpacities(alpha, transmittance(alpha, samples.ray_index, samples.n_rays))


def _fits_kernel(values: Tensor, samples: PackedSamples, sections: Sections, *quantities: Tensor) -> bool:
    """Return whether the native kernel supports these inputs."""
    indices_match = indices_fit(len(samples), samples.ray_index, sections.start, sections.end)
    return indices_match and fits_native(values, *quantities) and fits_native(samples.t_start, samples.t_end)


def _check_sections(values: Tensor, samples: PackedSamples, sections: Sections) -> None:
    """Compare the numbers of samples and ends; the kernels check each index in addition."""
    if not (len(sections.start) == len(sections.end) == len(samples) and len(sections.distances) == len(values)):
        raise_faults(_NO_SECTION, samples.n_rays)
