"""Volume rendering of signed distance fields: NeuS opacities, packed samples, an occupancy grid, gradients."""

from fieldwatch.recon.render.sdf.alpha import neus_alpha, section_alpha
from fieldwatch.recon.render.sdf.budget import SampleBudget
from fieldwatch.recon.render.sdf.cells import Cells
from fieldwatch.recon.render.sdf.chunks import Chunks, evaluate_in_chunks, gradients_in_chunks
from fieldwatch.recon.render.sdf.compositing import Composited, composite, transmittance
from fieldwatch.recon.render.sdf.deviation import Deviation
from fieldwatch.recon.render.sdf.empty_rays import CollapseDetector, FilledSamples, empty_share, fill_empty
from fieldwatch.recon.render.sdf.gradients import DistanceField, gradient_ad, gradient_dfd, gradient_fd, plane_distances
from fieldwatch.recon.render.sdf.marching import geometric_step
from fieldwatch.recon.render.sdf.occupancy import OccupancyConfig, OccupancyGrid
from fieldwatch.recon.render.sdf.samples import BoundedRays, PackedSamples, Sections, points_along
from fieldwatch.recon.render.sdf.section_compositing import SectionOpacities, composite_sections, section_opacities

__all__ = [
    "BoundedRays",
    "Cells",
    "Chunks",
    "CollapseDetector",
    "Composited",
    "Deviation",
    "DistanceField",
    "FilledSamples",
    "OccupancyConfig",
    "OccupancyGrid",
    "PackedSamples",
    "SampleBudget",
    "SectionOpacities",
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
    "gradients_in_chunks",
    "neus_alpha",
    "plane_distances",
    "points_along",
    "section_alpha",
    "section_opacities",
    "transmittance",
]
