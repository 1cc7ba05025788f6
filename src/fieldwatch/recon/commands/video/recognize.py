"""Recognition of clips: folders of frames, and video files."""

from pathlib import Path

from fieldwatch import InputError

_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
_PARTS = frozenset({".npz", ".npy", ".exr", ".bin", ".txt"})
_OTHERS = frozenset({".ply", ".json", ".obj", ".glb"})


def is_frames(path: Path) -> int:
    """Return 1 for a folder with pictures, or a file that may be a video; else 0.

    Raises:
        InputError: the path is a single picture or array of a data set.
    """
    if path.is_dir():
        # Lowest certainty: folders of photos or normal maps hold pictures, too.
        names = (entry.name for entry in path.iterdir())
        return int(any(Path(name).suffix.lower() in _PICTURES and not name.startswith(".") for name in names))
    ending = path.suffix.lower()
    if ending in _PICTURES | _PARTS:
        raise InputError(f"{path} is one file of a data set: give the folder that holds the whole set")
    # Any other file may be a video: FFmpeg decides when it is opened.
    return 0 if ending in _OTHERS else 1
