"""Quick test mesh during training: extracted, measured, and discarded."""

from collections.abc import Callable, Mapping

from fieldwatch import InputError
from fieldwatch.recon.mesh import gaussian_fit, mesh_quality
from fieldwatch.recon.pipelines.splats.meshing.extract import extract_mesh
from fieldwatch.recon.pipelines.splats.meshing.options import ExtractOptions
from fieldwatch.recon.pipelines.splats.meshing.surface import OPAQUE
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene

QUICK_OPTIONS = ExtractOptions(points=200_000, resolution=128, triangles=0)
"""Coarser than the defaults of `fieldwatch mesh extract`, and foreground only: seconds instead of minutes."""


def mesh_metrics(
    model: SplatModel, scene: Scene, *, bands: int = 1, between: Callable[[], None] = lambda: None
) -> tuple[Mapping[str, float], str | None]:
    """Return the metrics `Mesh/...` of a mesh of the current Gaussians, and the reason if there are none.

    The random state is not modified.

    Args:
        model: model with the Gaussians.
        scene: scene with the training cameras.
        bands: number of bands in which images are rendered.
        between: function called between parts of the work; it may raise to abort.
    """
    try:
        extraction = extract_mesh(model, scene, QUICK_OPTIONS, bands=bands, on_progress=lambda _, __: between())
        mesh = next(iter(extraction.meshes.values()))
    except InputError as error:  # Gaussians early in training may have no surface yet
        return {}, str(error)
    # Transparent Gaussians need not be on the mesh.
    opaque = model.gaussians.means.detach()[model.shapes()[1] > OPAQUE].cpu().double().numpy()
    fit = {name: value for name, value in gaussian_fit(mesh, opaque).items() if value is not None}
    return {**mesh_quality(mesh).metrics, **fit}, None
