"""COLMAP sparse models, binary and text, and the scenes around them."""

from fieldwatch.recon.data.colmap.error import ColmapError
from fieldwatch.recon.data.colmap.model import ColmapModel, RegisteredImage, SparsePoints
from fieldwatch.recon.data.colmap.read import read_colmap, read_colmap_model, read_colmap_observations
from fieldwatch.recon.data.colmap.write import write_colmap

__all__ = [
    "ColmapError",
    "ColmapModel",
    "RegisteredImage",
    "SparsePoints",
    "read_colmap",
    "read_colmap_model",
    "read_colmap_observations",
    "write_colmap",
]
