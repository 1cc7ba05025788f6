"""Data: clips and what they are cut into."""

from fieldwatch.data.clip_error import ClipError
from fieldwatch.data.frames import Clip, read_clip
from fieldwatch.data.framing import Framing
from fieldwatch.data.image_folder import read_picture
from fieldwatch.data.patches import PatchGrid, Window
from fieldwatch.data.synthetic import synthetic_clip
from fieldwatch.data.video_writer import write_video

__all__ = [
    "Clip",
    "ClipError",
    "Framing",
    "PatchGrid",
    "Window",
    "read_clip",
    "read_picture",
    "synthetic_clip",
    "write_video",
]
