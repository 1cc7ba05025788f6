"""Data: clips and what they are cut into; photos with their cameras; Gaussians; normal maps; made-up scenes."""

from fieldwatch.data.clip_error import ClipError
from fieldwatch.data.colmap import ColmapError, ColmapModel, read_colmap, read_colmap_model, write_colmap
from fieldwatch.data.frames import Clip, read_clip
from fieldwatch.data.framing import Framing
from fieldwatch.data.gaussians import (
    GaussianCloud,
    PlyError,
    SplatFolder,
    SplatFolderError,
    open_splat_folder,
    read_gaussian_ply,
    read_point_ply,
    read_splat_cameras,
    write_gaussian_ply,
    write_point_ply,
    write_splat_folder,
)
from fieldwatch.data.image_folder import read_picture
from fieldwatch.data.normal_maps import (
    NormalCheck,
    NormalMapError,
    NormalScene,
    NormalSet,
    NormalView,
    PlacedForm,
    SolidUnion,
    check_normal_maps,
    integrate_normals,
    read_mask_file,
    read_normal_file,
    read_normal_maps,
    ring_cameras,
    synthetic_normal_maps,
    write_normal_maps,
)
from fieldwatch.data.patches import PatchGrid, Window
from fieldwatch.data.photos import Photo, PhotoError, PhotoOptions, PhotoSet, PhotoStream, Picture, every_nth
from fieldwatch.data.solids import SolidScene, solid_cameras, solid_photos
from fieldwatch.data.splat_photos import read_splat_photos
from fieldwatch.data.synthetic import synthetic_clip
from fieldwatch.data.transforms import TransformsError, read_transforms
from fieldwatch.data.video_writer import write_video

__all__ = [
    "Clip",
    "ClipError",
    "ColmapError",
    "ColmapModel",
    "Framing",
    "GaussianCloud",
    "NormalCheck",
    "NormalMapError",
    "NormalScene",
    "NormalSet",
    "NormalView",
    "PatchGrid",
    "Photo",
    "PhotoError",
    "PhotoOptions",
    "PhotoSet",
    "PhotoStream",
    "Picture",
    "PlacedForm",
    "PlyError",
    "SolidScene",
    "SolidUnion",
    "SplatFolder",
    "SplatFolderError",
    "TransformsError",
    "Window",
    "check_normal_maps",
    "every_nth",
    "integrate_normals",
    "open_splat_folder",
    "read_clip",
    "read_colmap",
    "read_colmap_model",
    "read_gaussian_ply",
    "read_mask_file",
    "read_normal_file",
    "read_normal_maps",
    "read_picture",
    "read_point_ply",
    "read_splat_cameras",
    "read_splat_photos",
    "read_transforms",
    "ring_cameras",
    "solid_cameras",
    "solid_photos",
    "synthetic_clip",
    "synthetic_normal_maps",
    "write_colmap",
    "write_gaussian_ply",
    "write_normal_maps",
    "write_point_ply",
    "write_splat_folder",
    "write_video",
]
