"""Multi-view normal maps of one object: reading, writing, checking, synthesis and integration to depth."""

from fieldwatch.recon.data.normal_maps.axes import (
    Channels,
    Choices,
    PixelCenter,
    Space,
    canonical_axes,
    read_axes,
)
from fieldwatch.recon.data.normal_maps.captures import read_normal_captures
from fieldwatch.recon.data.normal_maps.checks import check_normal_maps
from fieldwatch.recon.data.normal_maps.contact_sheet import normal_map_sheet
from fieldwatch.recon.data.normal_maps.conventions import noise_of
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.findings import NormalCheck
from fieldwatch.recon.data.normal_maps.folder import read_normal_maps
from fieldwatch.recon.data.normal_maps.integrate import integrate_normals
from fieldwatch.recon.data.normal_maps.map_files import (
    NormalFile,
    load_normal_file,
    read_mask_file,
    read_normal_file,
    write_exr,
)
from fieldwatch.recon.data.normal_maps.mesh_scene import MeshScene, unit_sphere_of
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.data.normal_maps.opening import normal_layout, open_normal_maps
from fieldwatch.recon.data.normal_maps.resize import scaled_normal_view
from fieldwatch.recon.data.normal_maps.scene import NormalScene, PlacedShape, SolidUnion
from fieldwatch.recon.data.normal_maps.single_view import SingleView, is_single_view, read_single_view
from fieldwatch.recon.data.normal_maps.synthetic import ring_cameras, synthetic_normal_maps
from fieldwatch.recon.data.normal_maps.write import write_normal_maps

__all__ = [
    "Channels",
    "Choices",
    "MeshScene",
    "NormalCheck",
    "NormalFile",
    "NormalMapError",
    "NormalScene",
    "NormalSet",
    "NormalView",
    "PixelCenter",
    "PlacedShape",
    "SingleView",
    "SolidUnion",
    "Space",
    "canonical_axes",
    "check_normal_maps",
    "integrate_normals",
    "is_single_view",
    "load_normal_file",
    "noise_of",
    "normal_layout",
    "normal_map_sheet",
    "open_normal_maps",
    "read_axes",
    "read_mask_file",
    "read_normal_captures",
    "read_normal_file",
    "read_normal_maps",
    "read_single_view",
    "ring_cameras",
    "scaled_normal_view",
    "synthetic_normal_maps",
    "unit_sphere_of",
    "write_exr",
    "write_normal_maps",
]
