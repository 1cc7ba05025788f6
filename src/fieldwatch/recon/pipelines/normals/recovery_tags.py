"""Tags and charts of rays, occupancy grid, field and recovery, which PMNI logs in addition to the loss terms.

The training loop records `Statistics/` in every step (pose changes less often), except for the range of the field,
which `Recovery` records at every 100th step together with `Recovery/` in every step.
"""

from fieldwatch import Chart, Metric
from fieldwatch.pipeline import Better


def _metric(name: str, unit: str, meaning: str, better: Better = "none", expected: str = "") -> Metric:
    return Metric(name=name, unit=unit, meaning=meaning, better=better, expected=expected)


RAYS = (
    _metric(
        "Statistics/samples_per_ray",
        "",
        "Blended samples per ray: visible samples of the grid, and stratified samples of empty rays.",
        "none",
        "steady, rising as the step size shrinks; 0 is a collapsed grid",
    ),
    _metric("Statistics/rays", "", "Number of rays of the step, over all its views."),
    _metric("Statistics/filled_rays", "", "Number of empty rays in the mask given stratified samples.", "lower", "0"),
    _metric(
        "Statistics/starved_share",
        "",
        "Fraction of the rays in the mask that the grid gave no samples.",
        "lower",
        "below 0.05; after 20 steps above 0.5 the grid is rebuilt",
    ),
    _metric("Statistics/step_size", "", "Distance between samples, in units of the scene's sphere.", "none", "shrinks"),
)
GRID = (
    _metric(
        "Statistics/occupied_frac",
        "",
        "Fraction of occupied cells in the occupancy grid; the inside of the object counts.",
        "lower",
        "0.05 to 0.4, the object's fraction of the box plus a band around it; 1 is a saturated, 0 a collapsed grid",
    ),
    _metric(
        # The tag keeps PMNI's name, although the value is v.
        "Statistics/s",
        "",
        "v in the sharpness exp(10 v) of the surface; the logs of NeuS and PMNI call it s.",
        "none",
        "rises: 0.5 is a sharpness of 148, 0.6 of 403, in inverse units of the scene's sphere",
    ),
)
FIELD = (
    _metric(
        "Statistics/sdf_min", "", "Minimum of the SDF at 16^3 points of the box.", "none", "below 0: an inside exists"
    ),
    _metric("Statistics/sdf_max", "", "Maximum of the SDF at these points.", "none", "above 0: an outside exists"),
    _metric("Statistics/sdf_mean", "", "Mean of the SDF at these points.", "steady", "about 0.3 for compact objects"),
)
POSES = (
    _metric(
        "Statistics/pose_change_rotation",
        "deg",
        "Mean rotation of the cameras since the start; absent if poses are not optimized.",
        "none",
        "levels off",
    ),
    _metric(
        "Statistics/pose_change_position",
        "",
        "Mean displacement of the cameras since the start, in units of the scene's sphere; absent if poses are not "
        "optimized.",
        "none",
        "levels off",
    ),
)
RECOVERY = (
    _metric("Recovery/rebuilds", "", "Number of grid rebuilds so far.", "lower", "0"),
    _metric("Recovery/rollbacks", "", "Number of rollbacks to the last good state so far.", "lower", "0"),
    _metric(
        "Recovery/rate_factor",
        "",
        "Multiplier of all learning rates in addition to the schedule; a rollback halves it.",
        "none",
        "1",
    ),
)

RECOVERY_METRICS = (*RAYS, *GRID, *FIELD, *POSES, *RECOVERY)
"""All metrics of this module."""


SAMPLING_CHARTS = (
    Chart.of("Samples per ray: never 0", "Statistics/samples_per_ray"),
    Chart.of("Occupied fraction of the grid: neither 0 nor 1", "Statistics/occupied_frac"),
    Chart.of("Rays in the mask without samples", "Statistics/starved_share"),
    Chart.of("All rays, and rays with stratified samples", "Statistics/rays", "Statistics/filled_rays"),
    Chart.of("Distance between samples", "Statistics/step_size"),
    Chart.of("Sharpness v of exp(10 v)", "Statistics/s"),
    Chart.of(
        "SDF in the box: minimum, mean, maximum", "Statistics/sdf_min", "Statistics/sdf_mean", "Statistics/sdf_max"
    ),
    Chart.of("Pose change: rotation (degrees)", "Statistics/pose_change_rotation"),
    Chart.of("Pose change: position", "Statistics/pose_change_position"),
)
"""Charts of ray sampling, occupancy grid, field and poses."""

RECOVERY_CHARTS = (
    Chart.of("Grid rebuilds and rollbacks", "Recovery/rebuilds", "Recovery/rollbacks"),
    Chart.of("Learning rate multiplier", "Recovery/rate_factor"),
)
"""Charts of the reactions to a lost surface."""
