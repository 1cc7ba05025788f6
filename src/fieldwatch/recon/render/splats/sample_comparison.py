"""Errors of points near Gaussians, compared with the surface that the Gaussians stand for (SuGaR, Guedon 2024)."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.losses import (
    BetaMode,
    Ellipsoids,
    Samples,
    beta,
    better_normal_error,
    contributions,
    density,
    density_error,
    ideal_density,
    projected_distance,
    samples_on_surface_error,
    sdf_error,
    sdf_from_density,
    sdf_from_depth,
    smoothing_error,
    take_rows,
)

SampleErrors = dict[str, tuple[Tensor, Tensor | int]]
"""Mean error over samples, and the number of samples it covers, by the name of the term."""


@dataclass(frozen=True, kw_only=True)
class SampleComparison:
    """How samples are compared with a surface.

    Attributes:
        terms: errors to compute: `sdf_estimation` or `sdf_density`, and any of `better_normal`, `samples_on_surface`
            and `smoothing`.
        extent: extent of the cameras in world units, the unit of distances.
        share: factor of the density from which `sdf_estimation` derives distances.
        beta: source of the surface's thickness.
    """

    terms: Collection[str]
    extent: float
    share: float = 1.0
    beta: BetaMode = "average"


def sample_errors(  # noqa: PLR0913  samples, what they are compared with, and how
    samples: Samples,
    ellipsoids: Ellipsoids,
    table: Int[Tensor, "n k"],
    how: SampleComparison,
    *,
    seen_from: tuple[Float[Tensor, "height width"], Camera] | None = None,
    log_beta: Float[Tensor, ""] | None = None,
) -> SampleErrors:
    """Return the errors of given samples in plain torch, on any device.

    Args:
        samples: points and the rows of the Gaussians they were sampled from.
        ellipsoids: all Gaussians.
        table: neighbor indices of every Gaussian, itself included.
        how: which errors, and their units.
        seen_from: rendered depth and its camera, for `sdf_estimation` (SuGaR, section 4.1); None compares with the
            plane of the Gaussian that a sample was drawn from.
        log_beta: learned logarithm of the surface's thickness.
    """
    # int64, because with int32 indices the backward of torch's gather accumulates gradients one row at a time.
    rows = table.index_select(0, samples.owners).long()
    contributed = contributions(samples.points, rows, ellipsoids)
    thicknesses = take_rows(ellipsoids.thickness, rows.reshape(-1)).view(rows.shape)
    thickness = beta(thicknesses, how.beta, contributed=contributed, log_beta=log_beta)
    distance = projected_distance(samples, ellipsoids)
    valid = None
    errors: SampleErrors = {}
    sample_count: Tensor | int = len(samples.owners)
    valid_count = sample_count
    if seen_from is not None:
        distance, valid = sdf_from_depth(samples.points, *seen_from)
        valid_count = valid.sum()
        # SuGaR, eq. 7 and 8: distance derived from the density against distance to the depth map.
        sdf = sdf_from_density(how.share * density(contributed), thickness)
        errors["sdf_estimation"] = sdf_error(sdf, distance, how.extent, valid), valid_count
    elif "sdf_density" in how.terms:
        # SuGaR, eq. 5: the same comparison in densities, with the distance to the plane of the sample's Gaussian.
        errors["sdf_density"] = density_error(density(contributed), ideal_density(distance, thickness)), sample_count
    if "better_normal" in how.terms:
        errors["better_normal"] = better_normal_error(samples, rows, contributed, ellipsoids), sample_count
    if "samples_on_surface" in how.terms:
        errors["samples_on_surface"] = samples_on_surface_error(distance, how.extent, valid), valid_count
    if "smoothing" in how.terms:
        errors["smoothing"] = smoothing_error(ellipsoids, samples.owners, rows, how.extent), sample_count
    if samples.some is None:
        return errors
    nothing = torch.zeros((), device=samples.points.device)
    return {name: (torch.where(samples.some, error, nothing), number) for name, (error, number) in errors.items()}
