"""Data sets and file readers: clips and patches, photos with cameras, Gaussians, normal maps, synthetic scenes."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.data.colmap import read_colmap
    from fieldwatch.recon.data.frames import Clip, read_clip
    from fieldwatch.recon.data.gaussians import (
        GaussianCloud,
        SplatFolder,
        open_splat_folder,
        read_gaussian_ply,
        read_gaussians,
        read_splat_cameras,
        write_gaussian_ply,
        write_point_ply,
        write_splat_folder,
    )
    from fieldwatch.recon.data.image_folder import read_picture
    from fieldwatch.recon.data.normal_maps import (
        MeshScene,
        NormalSet,
        NormalView,
        SolidUnion,
        check_normal_maps,
        integrate_normals,
        normal_layout,
        normal_map_sheet,
        open_normal_maps,
        read_mask_file,
        read_normal_file,
        ring_cameras,
        scaled_normal_view,
        synthetic_normal_maps,
        unit_sphere_of,
        write_normal_maps,
    )
    from fieldwatch.recon.data.patches import PatchGrid
    from fieldwatch.recon.data.photos import Photo, PhotoOptions, PhotoSet, PhotoStream
    from fieldwatch.recon.data.solids import SolidScene, solid_photos
    from fieldwatch.recon.data.splat_photos import read_splat_photos
    from fieldwatch.recon.data.synthetic import synthetic_clip
    from fieldwatch.recon.data.transforms import read_transforms
    from fieldwatch.recon.data.video_writer import write_video

__all__ = [
    "Clip",
    "GaussianCloud",
    "MeshScene",
    "NormalSet",
    "NormalView",
    "PatchGrid",
    "Photo",
    "PhotoOptions",
    "PhotoSet",
    "PhotoStream",
    "SolidScene",
    "SolidUnion",
    "SplatFolder",
    "check_normal_maps",
    "integrate_normals",
    "normal_layout",
    "normal_map_sheet",
    "open_normal_maps",
    "open_splat_folder",
    "read_clip",
    "read_colmap",
    "read_gaussian_ply",
    "read_gaussians",
    "read_mask_file",
    "read_normal_file",
    "read_picture",
    "read_splat_cameras",
    "read_splat_photos",
    "read_transforms",
    "ring_cameras",
    "scaled_normal_view",
    "solid_photos",
    "synthetic_clip",
    "synthetic_normal_maps",
    "unit_sphere_of",
    "write_gaussian_ply",
    "write_normal_maps",
    "write_point_ply",
    "write_splat_folder",
    "write_video",
]

__getattr__, __dir__ = lazy_names(__name__)
