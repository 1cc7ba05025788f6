"""Mesh extraction from trained Gaussians (SuGaR, section 4.2)."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.pipelines.splats.meshing.extract import Extraction, extract_mesh
    from fieldwatch.recon.pipelines.splats.meshing.options import ExtractOptions
    from fieldwatch.recon.pipelines.splats.meshing.quick_mesh import mesh_metrics

__all__ = ["ExtractOptions", "Extraction", "extract_mesh", "mesh_metrics"]

__getattr__, __dir__ = lazy_names(__name__)
