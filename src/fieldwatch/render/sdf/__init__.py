"""Volume rendering of signed distance fields: NeuS opacities, packed samples, an occupancy grid, gradients."""

from fieldwatch.render.sdf.alpha import neus_alpha, section_alpha
from fieldwatch.render.sdf.budget import SampleBudget
from fieldwatch.render.sdf.cells import Cells
from fieldwatch.render.sdf.chunks import Chunks, evaluate_in_chunks, slopes_in_chunks
from fieldwatch.render.sdf.compositing import Composited, composite, transmittance
from fieldwatch.render.sdf.deviation import Deviation
from fieldwatch.render.sdf.emptiness import CollapseWatch, Filled, empty_share, fill_empty
from fieldwatch.render.sdf.gradients import DistanceField, gradient_ad, gradient_dfd, gradient_fd, plane_distances
from fieldwatch.render.sdf.marching import geometric_step
from fieldwatch.render.sdf.occupancy import OccupancyConfig, OccupancyGrid
from fieldwatch.render.sdf.samples import BoundedRays, PackedSamples, Sections, points_along
from fieldwatch.render.sdf.section_compositing import Light, composite_sections, section_light

__all__ = [
    "BoundedRays",
    "Cells",
    "Chunks",
    "CollapseWatch",
    "Composited",
    "Deviation",
    "DistanceField",
    "Filled",
    "Light",
    "OccupancyConfig",
    "OccupancyGrid",
    "PackedSamples",
    "SampleBudget",
    "Sections",
    "composite",
    "composite_sections",
    "empty_share",
    "evaluate_in_chunks",
    "fill_empty",
    "geometric_step",
    "gradient_ad",
    "gradient_dfd",
    "gradient_fd",
    "neus_alpha",
    "plane_distances",
    "points_along",
    "section_alpha",
    "section_light",
    "slopes_in_chunks",
    "transmittance",
]
