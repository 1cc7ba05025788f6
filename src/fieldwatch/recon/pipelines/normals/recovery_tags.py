"""Tags of rays, grid, field and recovery, and their charts: what PMNI logs beside the loss terms.

Who records them: the loop's instruments all of `Statistics/` but the field's range, in every step (pose changes now and
then); `Recovery` the field's range at every 100th step, and `Recovery/` in every step.
"""

from fieldwatch import Chart, Metric
from fieldwatch.pipeline import Better


def _metric(name: str, unit: str, meaning: str, better: Better = "none", expected: str = "") -> Metric:
    return Metric(name=name, unit=unit, meaning=meaning, better=better, expected=expected)


RAYS = (
    _metric(
        "Statistics/samples_per_ray",
        "",
        "Samples that were blended, per ray: those of the grid that light reaches, and stratified ones of empty rays.",
        "none",
        "steady, rising as the step shrinks; 0 is a collapsed grid",
    ),
    _metric("Statistics/rays", "", "Rays of the step, over all its views."),
    _metric("Statistics/filled_rays", "", "Rays in the mask without samples that got stratified ones.", "lower", "0"),
    _metric(
        "Statistics/starved_share",
        "",
        "Share of the rays in the mask that the grid gave no samples.",
        "lower",
        "below 0.05; above 0.5 for 20 steps the grid is made anew",
    ),
    _metric("Statistics/step_size", "", "Distance between samples, units of the scene's sphere.", "none", "shrinks"),
)
GRID = (
    _metric(
        "Statistics/occupied_frac",
        "",
        "Share of the occupancy grid's cells that are occupied; the inside counts.",
        "lower",
        "0.05 to 0.4: the object's share of the box and a band around it; 1 is a saturated grid, 0 a collapsed one",
    ),
    _metric(
        "Statistics/s",
        "",
        "v of the sharpness exp(10 v) of the surface, which the logs of NeuS and PMNI call s.",
        "none",
        "rises: 0.5 is 148, 0.6 is 403 in one over the scene's sphere",
    ),
)
FIELD = (
    _metric(
        "Statistics/sdf_min", "", "Least distance at 16^3 points of the box.", "none", "below 0: there is an inside"
    ),
    _metric("Statistics/sdf_max", "", "Largest distance at these points.", "none", "above 0: there is an outside"),
    _metric("Statistics/sdf_mean", "", "Mean distance at these points.", "steady", "about 0.3 for compact objects"),
)
POSES = (
    _metric(
        "Statistics/pose_change_rotation",
        "deg",
        "Mean angle by which cameras have turned since the start; absent where poses are not learned.",
        "none",
        "levels off",
    ),
    _metric(
        "Statistics/pose_change_position",
        "",
        "Mean way of the cameras since the start, units of the scene's sphere; absent where poses are not learned.",
        "none",
        "levels off",
    ),
)
RECOVERY = (
    _metric("Recovery/rebuilds", "", "Times that the grid was made anew up to now.", "lower", "0"),
    _metric("Recovery/rollbacks", "", "Times that the run went back to its last good state up to now.", "lower", "0"),
    _metric(
        "Recovery/rate_factor", "", "Factor of all rates beside the schedule's; a rollback halves it.", "none", "1"
    ),
)

RECOVERY_METRICS = (*RAYS, *GRID, *FIELD, *POSES, *RECOVERY)
"""Every one of them."""


SAMPLING_CHARTS = (
    Chart.of("Samples per ray: never 0", "Statistics/samples_per_ray"),
    Chart.of("Occupied share of the grid: neither 0 nor 1", "Statistics/occupied_frac"),
    Chart.of("Rays in the mask without samples", "Statistics/starved_share"),
    Chart.of("Rays, and those with stratified samples", "Statistics/rays", "Statistics/filled_rays"),
    Chart.of("Distance between samples", "Statistics/step_size"),
    Chart.of("Sharpness v of exp(10 v)", "Statistics/s"),
    Chart.of(
        "Field in the box: least, mean, largest", "Statistics/sdf_min", "Statistics/sdf_mean", "Statistics/sdf_max"
    ),
    Chart.of("Change of the poses: angle (degrees)", "Statistics/pose_change_rotation"),
    Chart.of("Change of the poses: position", "Statistics/pose_change_position"),
)
"""What rays are given to see."""

RECOVERY_CHARTS = (
    Chart.of("Grids made anew, rollbacks", "Recovery/rebuilds", "Recovery/rollbacks"),
    Chart.of("Factor of the rates", "Recovery/rate_factor"),
)
"""What was done about a lost surface."""
