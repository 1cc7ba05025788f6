"""Data: clips and what they are cut into."""

from fieldwatch.data.clip_error import ClipError
from fieldwatch.data.frames import Clip, read_clip
from fieldwatch.data.framing import Framing
from fieldwatch.data.patches import PatchGrid, Window

__all__ = ["Clip", "ClipError", "Framing", "PatchGrid", "Window", "read_clip"]
