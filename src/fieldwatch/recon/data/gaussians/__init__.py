"""Gaussians on disk: PLY files and the run folders of 3D Gaussian splatting."""

from fieldwatch.recon.data.gaussians.cloud import GaussianCloud
from fieldwatch.recon.data.gaussians.error import SplatFolderError
from fieldwatch.recon.data.gaussians.files import read_gaussian_ply, read_point_ply, write_gaussian_ply, write_point_ply
from fieldwatch.recon.data.gaussians.folder import (
    SplatFolder,
    open_splat_folder,
    read_splat_cameras,
    write_splat_folder,
)
from fieldwatch.recon.formats import PlyError

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
