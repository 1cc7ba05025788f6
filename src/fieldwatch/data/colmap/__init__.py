"""COLMAP: sparse models, binary and text, and the scenes they belong to."""

from fieldwatch.data.colmap.error import ColmapError
from fieldwatch.data.colmap.model import ColmapModel, RegisteredImage, SparsePoints
from fieldwatch.data.colmap.read import read_colmap, read_colmap_model
from fieldwatch.data.colmap.write import write_colmap

__all__ = [
    "ColmapError",
    "ColmapModel",
    "RegisteredImage",
    "SparsePoints",
    "read_colmap",
    "read_colmap_model",
    "write_colmap",
]
