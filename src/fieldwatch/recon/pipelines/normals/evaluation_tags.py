"""Tags of an evaluation, and their charts: normals and silhouettes, the mesh, the poses."""

from fieldwatch import Chart, Metric
from fieldwatch.pipeline import Better


def _metric(name: str, unit: str, meaning: str, better: Better = "none", expected: str = "") -> Metric:
    return Metric(name=f"Eval/{name}", unit=unit, meaning=meaning, better=better, expected=expected)


_COUNTED = "over pixels in the mask that have an observed normal and are seen, of all {} views together"


def _of_views(views: str, ending: str, expected: str) -> tuple[Metric, ...]:
    counted = _COUNTED.format(views)
    return (
        _metric(
            f"mae{ending}", "deg", f"Mean angle between rendered and observed normals, {counted}.", "lower", expected
        ),
        _metric(f"median_error{ending}", "deg", f"Median of these angles, {counted}.", "lower", "below the mean"),
        _metric(f"below_5{ending}", "", "Share of these angles below 5 degrees.", "higher", "rises"),
        _metric(f"below_11_25{ending}", "", "Share of these angles below 11.25 degrees.", "higher", "rises"),
        _metric(
            f"missed{ending}",
            "",
            f"Share of the mask that is not seen (opacity 0.5 or less), mean over the {views} views; no angle can be "
            "taken there, so read it beside the mean angle.",
            "lower",
            "below 0.01",
        ),
        _metric(
            f"iou{ending}",
            "",
            f"Mask and seen silhouette: intersection over union, mean over the {views} views.",
            "higher",
        ),
    )


EVALUATION_METRICS = (
    *_of_views("training", "", "falls; checkpoints are ranked by it"),
    *_of_views("held-out", "_held_out", "near that of the training views"),
    _metric(
        "mae_world",
        "deg",
        "Mean angle in the data's world, after the similarity that brings the cameras onto the data's: wrong rotations "
        "count here; only where poses are not the data's.",
        "lower",
        "falls to Eval/mae",
    ),
    _metric(
        "depth_error",
        "units",
        "Mean difference from the known depth, one scale per view; of the scene's sphere.",
        "lower",
    ),
    _metric(
        "depth_error_permille",
        "",
        "The same in thousandths of the object's diameter (of the sphere's, if unknown).",
        "lower",
    ),
    _metric("pose_rotation", "deg", "Mean angle between poses and the data's, after a similarity.", "lower", "falls"),
    _metric("pose_rotation_max", "deg", "The largest of these angles.", "lower"),
    _metric(
        "pose_position", "units", "Mean distance of cameras from the data's, after a similarity.", "lower", "falls"
    ),
    _metric("pose_position_max", "units", "The largest of these distances.", "lower"),
    _metric(
        "chamfer_percent",
        "%",
        "Mean distance between mesh and truth, both ways, of the truth's diameter.",
        "lower",
        "falls",
    ),
    _metric("accuracy_percent", "%", "Mean distance from mesh to truth, of the truth's diameter.", "lower"),
    _metric("completeness_percent", "%", "Mean distance from truth to mesh, of the truth's diameter.", "lower"),
    _metric("f_score", "", "F-score of mesh and truth at 0.5 % of the diameter.", "higher", "towards 1"),
    _metric("mesh_normal_consistency", "", "Mean |cosine| of normals of mesh and truth.", "higher", "towards 1"),
    _metric("watertight", "", "1 if every edge of the mesh has two faces, wound alike; else 0.", "higher", "1"),
    _metric("mesh_vertices", "", "Vertices of the mesh; 0 where the field is nowhere 0."),
    _metric("mesh_faces", "", "Triangles of the mesh."),
    _metric(
        "mesh_pieces_removed",
        "",
        "Smaller pieces that were left out of the mesh: floaters, walls of hollows.",
        "lower",
        "0",
    ),
    _metric(
        "chunk_shrinks",
        "",
        "How often the points evaluated at a time were halved, because memory ran out.",
        "lower",
        "0",
    ),
    _metric("seconds", "s", "Time of the evaluation."),
    _metric(
        "failures", "", "Validations that failed so far; see validation_failures/ in the run folder.", "lower", "0"
    ),
)
"""Every numeric tag of an evaluation."""

EVALUATION_PICTURES = (
    Metric(name="Eval/normals", unit="", meaning="Observed and rendered normals, and their angle.", kind="image"),
    Metric(name="Eval/depth", unit="", meaning="Rendered depth of one view: near ones light.", kind="image"),
)
"""Every picture of an evaluation."""


def _chart(title: str, *names: str) -> Chart:
    return Chart.of(title, *(f"Eval/{name}" for name in names))


EVALUATION_CHARTS = (
    _chart("Mean angular error (degrees)", "mae", "mae_held_out", "mae_world"),
    _chart("Median angular error (degrees)", "median_error", "median_error_held_out"),
    _chart("Share below 5 degrees", "below_5", "below_5_held_out"),
    _chart("Share below 11.25 degrees", "below_11_25", "below_11_25_held_out"),
    _chart("Missed share of the masks", "missed", "missed_held_out"),
    _chart("Silhouettes: intersection over union", "iou", "iou_held_out"),
    _chart("Depth error (units of the scene's sphere)", "depth_error"),
    _chart("Depth error (thousandths of the diameter)", "depth_error_permille"),
    _chart("Failed validations; halved chunks", "failures", "chunk_shrinks"),
    _chart("Seconds of an evaluation", "seconds"),
)
MESH_CHARTS = (
    _chart(
        "Distance from the truth (% of the diameter)", "chamfer_percent", "accuracy_percent", "completeness_percent"
    ),
    _chart("F-score at 0.5 %, normal consistency", "f_score", "mesh_normal_consistency"),
    _chart("Watertight", "watertight"),
    _chart("Vertices and faces", "mesh_vertices", "mesh_faces"),
    _chart("Pieces left out", "mesh_pieces_removed"),
)
POSE_CHARTS = (
    _chart("Rotation error after a similarity (degrees)", "pose_rotation", "pose_rotation_max"),
    _chart("Position error after a similarity (units)", "pose_position", "pose_position_max"),
)
