"""Gaussians on disk: files of every common splat format, and the run folders of 3D Gaussian splatting."""

from fieldwatch.recon.data.gaussians.cloud import GaussianCloud
from fieldwatch.recon.data.gaussians.error import SplatFileError, SplatFolderError
from fieldwatch.recon.data.gaussians.files import read_gaussian_ply, read_point_ply, write_gaussian_ply, write_point_ply
from fieldwatch.recon.data.gaussians.folder import (
    SplatFolder,
    open_splat_folder,
    read_splat_cameras,
    write_splat_folder,
)
from fieldwatch.recon.data.gaussians.precision import PrecisionLoss
from fieldwatch.recon.data.gaussians.reading import SUFFIXES, is_sog_folder, read_gaussians
from fieldwatch.recon.data.gaussians.writing import WRITABLE, WrittenGaussians, format_of, write_gaussians
from fieldwatch.recon.formats import PlyError

__all__ = [
    "SUFFIXES",
    "WRITABLE",
    "GaussianCloud",
    "PlyError",
    "PrecisionLoss",
    "SplatFileError",
    "SplatFolder",
    "SplatFolderError",
    "WrittenGaussians",
    "format_of",
    "is_sog_folder",
    "open_splat_folder",
    "read_gaussian_ply",
    "read_gaussians",
    "read_point_ply",
    "read_splat_cameras",
    "write_gaussian_ply",
    "write_gaussians",
    "write_point_ply",
    "write_splat_folder",
]
