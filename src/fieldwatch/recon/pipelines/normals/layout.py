"""Dashboard layout of a normals run, most important charts first."""

from fieldwatch import Chart, Layout, Tab
from fieldwatch.pipeline import MEMORY_TAB
from fieldwatch.recon.pipelines.normals.evaluation_tags import EVALUATION_CHARTS, MESH_CHARTS, POSE_CHARTS
from fieldwatch.recon.pipelines.normals.recovery_tags import RECOVERY_CHARTS, SAMPLING_CHARTS

_OVERVIEW = (
    Chart.of("Total loss", "Loss/total"),
    Chart.of("Mean angular error (degrees)", "Eval/mae", "Eval/mae_held_out"),
    Chart.of("Samples per ray", "Statistics/samples_per_ray"),
    Chart.of("Occupied fraction of the grid", "Statistics/occupied_frac"),
)
_LOSSES = (
    # Patterns, because the active terms depend on the stages.
    Chart.matching("Terms", "Loss/component_[^/]+"),
    Chart.matching("Weights", "Loss/weight_[^/]+"),
    Chart.matching("Weighted terms", "Loss/weighted_[^/]+"),
    Chart.matching("Fraction of the total", "Loss/share_[^/]+"),
)

NORMALS_LAYOUT = Layout(
    tabs=(
        Tab(title="Overview", charts=_OVERVIEW),
        Tab(title="Loss components", charts=_LOSSES),
        Tab(title="Surface", charts=EVALUATION_CHARTS),
        Tab(title="Mesh", charts=MESH_CHARTS),
        Tab(title="Poses", charts=POSE_CHARTS),
        Tab(title="Rays and grid", charts=SAMPLING_CHARTS),
        Tab(title="Recovery", charts=RECOVERY_CHARTS),
        MEMORY_TAB,
    )
)
"""Tabs of the dashboard, each with its charts and their tags."""
