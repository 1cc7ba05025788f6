"""Tags and charts of an evaluation: normals and silhouettes, mesh, poses."""

from fieldwatch import Chart, Metric
from fieldwatch.pipeline import Better

FACING = 57.3
"""Mean angle of a normal that always faces the camera, in degrees. For normals that are uniform over the visible
hemisphere, it is the integral of a sin(a) over the angles a from 0 to 90 degrees: 1 radian. A sphere, seen from afar,
has more normals near its center: 45 degrees. Random normals are 90 degrees off."""


def _metric(name: str, unit: str, meaning: str, better: Better = "none", expected: str = "") -> Metric:
    return Metric(name=f"Eval/{name}", unit=unit, meaning=meaning, better=better, expected=expected)


WINDOW = 7
"""Side of the window, in pixels, over which differences are averaged for Eval/smooth_error."""
_COUNTED = "over all mask pixels of the {} views that have an observed normal and a rendered surface"


# The same metrics for training and held-out views, whose tags differ by the suffix.
def _of_views(views: str, ending: str, expected: str) -> tuple[Metric, ...]:
    counted = _COUNTED.format(views)
    return (
        Metric(
            name=f"Eval/mae{ending}",
            unit="deg",
            meaning=f"Mean angle between rendered and observed normals, {counted}.",
            better="lower",
            expected=expected,
            trivial=FACING,
        ),
        _metric(f"median_error{ending}", "deg", f"Median of these angles, {counted}.", "lower", "below the mean"),
        _metric(f"below_5{ending}", "", "Fraction of these angles below 5 degrees.", "higher", "rises"),
        _metric(f"below_11_25{ending}", "", "Fraction of these angles below 11.25 degrees.", "higher", "rises"),
        _metric(
            f"missed{ending}",
            "",
            f"Fraction of the mask without a rendered surface (opacity 0.5 or less), mean over the {views} views. "
            "These pixels have no angle, so read it together with the mean angle.",
            "lower",
            "below 0.01",
        ),
        _metric(
            f"iou{ending}",
            "",
            f"Intersection over union of mask and rendered silhouette, mean over the {views} views.",
            "higher",
        ),
    )


EVALUATION_METRICS = (
    *_of_views("training", "", "falls; checkpoints are ranked by it"),
    *_of_views("held-out", "_held_out", "near that of the training views"),
    _metric(
        "smooth_error",
        "deg",
        f"Median of the difference between rendered and observed normals that is left after averaging over {WINDOW} x "
        f"{WINDOW} pixels, {_COUNTED.format('training')}: errors of the maps or of the surface that do not average "
        "out. Absent for the built-in object.",
        "lower",
        "far below Eval/median_error for noisy maps",
    ),
    _metric(
        "map_noise",
        "deg",
        "Noise of the normal maps from pixel to pixel about each of two axes, as estimated or stated (--noise).",
    ),
    _metric(
        "mae_world",
        "deg",
        "Mean angle in the dataset's world frame, after aligning the cameras with the dataset's by a similarity; "
        "unlike Eval/mae it includes rotation errors of the poses. Absent if the poses are the dataset's.",
        "lower",
        "falls to Eval/mae",
    ),
    _metric(
        "depth_error",
        "units",
        "Mean difference from the known depth after fitting one scale per view, in units of the scene's sphere.",
        "lower",
    ),
    _metric(
        "depth_error_permille",
        "",
        "Eval/depth_error in thousandths of the object's diameter (of the scene's sphere, if unknown).",
        "lower",
    ),
    _metric("pose_rotation", "deg", "Mean rotation error after a similarity alignment.", "lower", "falls"),
    _metric("pose_rotation_max", "deg", "Largest rotation error.", "lower"),
    _metric("pose_position", "units", "Mean camera position error after a similarity alignment.", "lower", "falls"),
    _metric("pose_position_max", "units", "Largest camera position error.", "lower"),
    _metric(
        "chamfer_percent",
        "%",
        "Chamfer distance: mean distance between mesh and ground truth in both directions, relative to its diameter.",
        "lower",
        "falls",
    ),
    _metric("accuracy_percent", "%", "Mean distance from mesh to ground truth, relative to its diameter.", "lower"),
    _metric("completeness_percent", "%", "Mean distance from ground truth to mesh, relative to its diameter.", "lower"),
    _metric("f_score", "", "F-score of mesh and ground truth at 0.5 % of the diameter.", "higher", "toward 1"),
    _metric(
        "mesh_normal_consistency", "", "Mean |cosine| between normals of mesh and ground truth.", "higher", "toward 1"
    ),
    _metric("watertight", "", "1 if every edge is shared by two consistently oriented faces, else 0.", "higher", "1"),
    _metric("mesh_vertices", "", "Number of mesh vertices; 0 if the field has no zero crossing."),
    _metric("mesh_faces", "", "Number of mesh triangles."),
    _metric(
        "mesh_pieces_removed",
        "",
        "Number of smaller components removed from the mesh: floaters and walls of cavities.",
        "lower",
        "0",
    ),
    _metric(
        "chunk_shrinks",
        "",
        "Number of times the evaluation chunk was halved after an out-of-memory error.",
        "lower",
        "0",
    ),
    _metric("seconds", "s", "Duration of the evaluation."),
    _metric(
        "failures", "", "Number of failed evaluations so far; see validation_failures/ in the run folder.", "lower", "0"
    ),
)
"""All scalar tags of an evaluation."""

EVALUATION_PICTURES = (
    Metric(name="Eval/normals", unit="", meaning="Observed and rendered normals and their angle.", kind="image"),
    Metric(name="Eval/depth", unit="", meaning="Rendered depth of one view, light for near.", kind="image"),
    Metric(
        name="Suspects/view",
        unit="",
        meaning="Observed and rendered normals of a view that a rule named as wrong, above those of its neighbors.",
        kind="image",
    ),
)
"""All image tags of evaluations."""


def _chart(title: str, *names: str) -> Chart:
    return Chart.of(title, *(f"Eval/{name}" for name in names))


# Training and held-out values share a chart, which shows the generalization gap.
EVALUATION_CHARTS = (
    _chart("Mean angular error (degrees)", "mae", "mae_held_out", "mae_world"),
    _chart("Median angular error (degrees)", "median_error", "median_error_held_out"),
    _chart("Fraction below 5 degrees", "below_5", "below_5_held_out"),
    _chart("Fraction below 11.25 degrees", "below_11_25", "below_11_25_held_out"),
    _chart("Missed fraction of the masks", "missed", "missed_held_out"),
    _chart("Silhouettes: intersection over union", "iou", "iou_held_out"),
    _chart("Depth error (units of the scene's sphere)", "depth_error"),
    _chart("Depth error (thousandths of the diameter)", "depth_error_permille"),
    _chart("Failed evaluations; halved chunks", "failures", "chunk_shrinks"),
    _chart("Duration of an evaluation (seconds)", "seconds"),
)
MESH_CHARTS = (
    _chart(
        "Distance from the ground truth (% of the diameter)",
        "chamfer_percent",
        "accuracy_percent",
        "completeness_percent",
    ),
    _chart("F-score at 0.5 %, normal consistency", "f_score", "mesh_normal_consistency"),
    _chart("Watertight", "watertight"),
    _chart("Vertices and faces", "mesh_vertices", "mesh_faces"),
    _chart("Removed components", "mesh_pieces_removed"),
)
POSE_CHARTS = (
    _chart("Rotation error after alignment (degrees)", "pose_rotation", "pose_rotation_max"),
    _chart("Position error after alignment (units)", "pose_position", "pose_position_max"),
)
