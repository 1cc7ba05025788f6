"""Displacement of the mesh during a refinement: distances of the vertices, flipped faces, and their charts."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import Catalogue, Chart, Layout, Metric, Tab
from fieldwatch.recon.pipelines.splats.layout import SPLATS_LAYOUT
from fieldwatch.recon.pipelines.splats.refined.binding import BoundGaussians
from fieldwatch.recon.pipelines.splats.tags import SPLATS_METRICS

REFINE_METRICS = Catalogue(
    (
        Metric(
            name="Refine/moved_mean",
            unit="",
            meaning="Mean distance of the vertices from their initial positions, world units.",
            expected="rises and settles; compare it with the edge length",
        ),
        Metric(
            name="Refine/moved_max",
            unit="",
            meaning="Largest distance of a vertex from its initial position, world units.",
            expected="a few edge lengths at most; beyond that, a vertex has diverged",
        ),
        Metric(
            name="Refine/turned_over",
            unit="",
            meaning="Fraction of the faces whose normal is more than 90 degrees from its initial direction.",
            better="lower",
            expected="below 0.01; such faces are folds",
        ),
    )
)
"""Metrics of the mesh."""
REFINED_METRICS = SPLATS_METRICS + REFINE_METRICS
"""All metrics of a refinement in addition to the toolkit's."""

_MESH_TAB = Tab(
    title="Refined mesh",
    charts=(
        Chart.matching("Displacement of the vertices", "Refine/moved_(mean|max)"),
        Chart.of("Flipped faces", "Refine/turned_over"),
        Chart.of("Normal consistency loss", "Loss/component_normal_consistency"),
    ),
)
REFINED_LAYOUT = Layout(tabs=(_MESH_TAB, *(tab for tab in SPLATS_LAYOUT.tabs if tab.title != "Densification")))
"""Dashboard layout of a refinement: that of a splats run with a mesh tab and without densification."""


class MeshDisplacement:
    """Displacement of a mesh from its initial state.

    Args:
        gaussians: Gaussians bound to the mesh, in their initial state.
    """

    def __init__(self, gaussians: BoundGaussians) -> None:
        self._gaussians = gaussians
        self._initial_vertices = gaussians.vertices.detach().clone()
        self._initial_normals = gaussians.normals.detach()

    @torch.no_grad()
    def metrics(self) -> Mapping[str, Float[Tensor, ""]]:
        """Return ``Refine/...`` as device scalars, without synchronization."""
        moved = (self._gaussians.vertices - self._initial_vertices).norm(dim=1)
        cosines = (self._gaussians.normals * self._initial_normals).sum(1)
        # Unit normals: the sign of the dot product tells whether the angle exceeds 90 degrees.
        turned_over = torch.count_nonzero(cosines < 0) / len(cosines)
        return {"Refine/moved_mean": moved.mean(), "Refine/moved_max": moved.amax(), "Refine/turned_over": turned_over}

    @property
    def initial_mesh(self) -> tuple[Tensor, Tensor]:
        """Initial vertices and normals, for the run's memory accounting."""
        return self._initial_vertices, self._initial_normals
