"""Multi-view normal maps of one object: reading, writing, checking, synthesis and integration to depth."""

from fieldwatch.recon.data.normal_maps.captures import read_normal_captures
from fieldwatch.recon.data.normal_maps.checks import NormalCheck, check_normal_maps
from fieldwatch.recon.data.normal_maps.contact_sheet import normal_map_sheet
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.folder import read_normal_maps
from fieldwatch.recon.data.normal_maps.integrate import integrate_normals
from fieldwatch.recon.data.normal_maps.map_files import read_mask_file, read_normal_file
from fieldwatch.recon.data.normal_maps.mesh_scene import MeshScene, unit_sphere_of
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.data.normal_maps.opening import NormalLayout, normal_layout, open_normal_maps
from fieldwatch.recon.data.normal_maps.resize import scaled_normal_view
from fieldwatch.recon.data.normal_maps.scene import NormalScene, PlacedShape, SolidUnion
from fieldwatch.recon.data.normal_maps.synthetic import ring_cameras, synthetic_normal_maps
from fieldwatch.recon.data.normal_maps.write import write_normal_maps

__all__ = [
    "MeshScene",
    "NormalCheck",
    "NormalLayout",
    "NormalMapError",
    "NormalScene",
    "NormalSet",
    "NormalView",
    "PlacedShape",
    "SolidUnion",
    "check_normal_maps",
    "integrate_normals",
    "normal_layout",
    "normal_map_sheet",
    "open_normal_maps",
    "read_mask_file",
    "read_normal_captures",
    "read_normal_file",
    "read_normal_maps",
    "ring_cameras",
    "scaled_normal_view",
    "synthetic_normal_maps",
    "unit_sphere_of",
    "write_normal_maps",
]
