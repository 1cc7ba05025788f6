"""How a refinement moves its mesh: the distances of the vertices, the faces that turned over, and their charts."""

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
            meaning="Mean distance of the vertices from where they began, world units.",
            expected="rises and settles; compare it with the length of an edge",
        ),
        Metric(
            name="Refine/moved_max",
            unit="",
            meaning="Largest such distance, world units.",
            expected="some edges at most: beyond that a vertex ran away",
        ),
        Metric(
            name="Refine/turned_over",
            unit="",
            meaning="Share of the faces whose normal points more than 90 degrees away from where it began.",
            better="lower",
            expected="below 0.01: such faces are folds",
        ),
    )
)
"""What is recorded of the mesh."""
REFINED_METRICS = SPLATS_METRICS + REFINE_METRICS
"""Every tag of a refinement beyond the toolkit's."""

_MESH_TAB = Tab(
    title="Refined mesh",
    charts=(
        Chart.matching("How far vertices moved", "Refine/moved_(mean|max)"),
        Chart.of("Faces turned over", "Refine/turned_over"),
        Chart.of("Normals of neighbours", "Loss/component_normal_consistency"),
    ),
)
REFINED_LAYOUT = Layout(tabs=(_MESH_TAB, *(tab for tab in SPLATS_LAYOUT.tabs if tab.title != "Densification")))
"""The dashboard of a refinement: that of a splats run, with the mesh and without growth."""


class MeshDisplacement:
    """Compares a mesh with what it was at the start.

    Args:
        gaussians: bound to the mesh, as they are at the start.
    """

    def __init__(self, gaussians: BoundGaussians) -> None:
        self._gaussians = gaussians
        self._initial_vertices = gaussians.vertices.detach().clone()
        self._initial_normals = gaussians.normals.detach()

    @torch.no_grad()
    def metrics(self) -> Mapping[str, Float[Tensor, ""]]:
        """Return ``Refine/...`` as device scalars; nothing is read to the host."""
        moved = (self._gaussians.vertices - self._initial_vertices).norm(dim=1)
        cosines = (self._gaussians.normals * self._initial_normals).sum(1)
        turned_over = torch.count_nonzero(cosines < 0) / len(cosines)
        return {"Refine/moved_mean": moved.mean(), "Refine/moved_max": moved.amax(), "Refine/turned_over": turned_over}

    @property
    def initial_mesh(self) -> tuple[Tensor, Tensor]:
        """Vertices and normals at the start: memory that the run accounts for."""
        return self._initial_vertices, self._initial_normals
