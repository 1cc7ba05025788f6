"""Recognition of photos with cameras and of trained Gaussians, by file names."""

from pathlib import Path

from fieldwatch import InputError
from fieldwatch.recon.commands.splats.doctor_photos import has_colmap, has_transforms
from fieldwatch.recon.data.gaussians import SUFFIXES, is_sog_folder


def is_gaussians(path: Path) -> int:
    """Return 3 for a file of Gaussians, or the folder of a 3DGS training or of SOG; else 0.

    Raises:
        InputError: the path is a mesh, which `fieldwatch mesh quality` checks.
    """
    if is_sog_folder(path):
        return 3
    if path.is_dir():
        return 3 if any(entry.name.startswith("iteration_") for entry in path.glob("point_cloud/*")) else 0
    # A PLY may also hold a mesh or a point cloud: its reader decides.
    ending = path.suffix.lower()
    if ending in {".obj", ".glb"}:
        raise InputError(f"{path} is a mesh: check it with `fieldwatch mesh quality {path}`")
    return 3 if ending in SUFFIXES else 0


def is_photos(path: Path) -> int:
    """Return 2 for transforms.json and for a folder that contains it or a COLMAP model; else 0."""
    if path.is_dir():
        return 2 if has_transforms(path) or has_colmap(path) else 0
    return 2 if path.suffix.lower() == ".json" else 0
