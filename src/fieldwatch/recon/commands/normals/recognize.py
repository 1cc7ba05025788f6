"""Recognition of normal maps, by names of files and folders."""

from pathlib import Path

from fieldwatch.recon.data import normal_layout
from fieldwatch.recon.data.normal_maps import is_single_view

_MAPS = {"normal_camera_space_GT", "normal_camera_space_sdmunips", "normal_camera_space", "normals", "normal"}
_MASKS = {"mask", "masks"}


def is_normal_maps(path: Path) -> int:
    """Return 4 for a folder of normal maps, else 0; more than photos have, since such a folder may hold photos, too."""
    if not path.is_dir():
        return 0
    names = {entry.name for entry in path.iterdir()}
    known = (
        normal_layout(path) is not None
        or is_single_view(path)
        or (not _MASKS.isdisjoint(names) and not _MAPS.isdisjoint(names))
    )
    return 4 if known else 0
