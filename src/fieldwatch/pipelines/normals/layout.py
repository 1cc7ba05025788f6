"""The dashboard of a normals run: what the seed tells people to look at, in that order."""

import re

from fieldwatch.pipelines.normals.evaluation_tags import EVALUATION_CHARTS, MESH_CHARTS, POSE_CHARTS
from fieldwatch.pipelines.normals.recovery_tags import RECOVERY_CHARTS, SAMPLING_CHARTS
from fieldwatch.record import MEMORY_TAB, Chart, Layout, Tab


def _of(title: str, *patterns: str) -> Chart:
    """One chart with every tag that one of the patterns describes in full."""
    return Chart(title=title, tags=tuple(f"^{pattern}$" for pattern in patterns))


_OVERVIEW = (
    _of("Total loss", "Loss/total"),
    _of("Mean angular error (degrees)", "Eval/mae", "Eval/mae_held_out"),
    _of("Samples per ray", re.escape("Statistics/samples_per_ray")),
    _of("Occupied share of the grid", re.escape("Statistics/occupied_frac")),
)
_LOSSES = (
    _of("Terms", "Loss/component_[^/]+"),
    _of("Weights", "Loss/weight_[^/]+"),
    _of("Weighted terms: what each adds", "Loss/weighted_[^/]+"),
    _of("Share of the total", "Loss/share_[^/]+"),
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
"""Tab, its charts, their tags."""
