"""Volume rendering of signed distance fields on a GPU, by own kernels that repeat to the bit (`gpu/sdf_*.cu`).

Lists of samples have room for the most that a step may have; their lengths stay on the device, so that the host never
waits for one.
"""

from fieldwatch.recon.render.sdf_gpu.compositing import blend_on_device, sharpness_on_device
from fieldwatch.recon.render.sdf_gpu.field import MOST_FEATURES, MOST_POINTS, fits_gpu, gpu_distance
from fieldwatch.recon.render.sdf_gpu.losses import ObservedRays, RayTerms, ray_terms, view_losses_on_device
from fieldwatch.recon.render.sdf_gpu.marching import (
    FAULTS,
    FILLED,
    KEPT_RAYS,
    MASKED,
    SECTIONS,
    STARVED,
    StrideSearch,
    find_samples,
    raise_device_faults,
    step_numbers,
    visible_on_device,
)
from fieldwatch.recon.render.sdf_gpu.occupancy import evaluate_on_device
from fieldwatch.recon.render.sdf_gpu.rays import DrawnRays, draw_rays, moved_poses, placed_rays
from fieldwatch.recon.render.sdf_gpu.samples import DeviceSamples
from fieldwatch.recon.render.sdf_gpu.trial import sdf_kernels_problem
from fieldwatch.recon.render.visible_adam import OneLaunchAdam

__all__ = [
    "FAULTS",
    "FILLED",
    "KEPT_RAYS",
    "MASKED",
    "MOST_FEATURES",
    "MOST_POINTS",
    "SECTIONS",
    "STARVED",
    "DeviceSamples",
    "DrawnRays",
    "ObservedRays",
    "OneLaunchAdam",
    "RayTerms",
    "StrideSearch",
    "blend_on_device",
    "draw_rays",
    "evaluate_on_device",
    "find_samples",
    "fits_gpu",
    "gpu_distance",
    "moved_poses",
    "placed_rays",
    "raise_device_faults",
    "ray_terms",
    "sdf_kernels_problem",
    "sharpness_on_device",
    "step_numbers",
    "view_losses_on_device",
    "visible_on_device",
]
