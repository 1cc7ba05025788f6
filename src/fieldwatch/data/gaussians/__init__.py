"""Gaussians on the disk: PLY files and the folders of 3D Gaussian splatting runs."""

from fieldwatch.data.gaussians.cloud import GaussianCloud
from fieldwatch.data.gaussians.error import PlyError, SplatFolderError
from fieldwatch.data.gaussians.files import read_gaussian_ply, read_point_ply, write_gaussian_ply, write_point_ply
from fieldwatch.data.gaussians.folder import SplatFolder, open_splat_folder, read_splat_cameras, write_splat_folder

__all__ = [
    "GaussianCloud",
    "PlyError",
    "SplatFolder",
    "SplatFolderError",
    "open_splat_folder",
    "read_gaussian_ply",
    "read_point_ply",
    "read_splat_cameras",
    "write_gaussian_ply",
    "write_point_ply",
    "write_splat_folder",
]
