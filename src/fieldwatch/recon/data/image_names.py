"""Names of image files: their endings and their natural order."""

import re

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
HEIC_SUFFIXES = frozenset({".heic", ".heif"})


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts `frame_2` before `frame_10`."""
    parts = re.findall(r"\d+|\D+", name)
    # Tuples of equal types compare even where one name has a number and the other has text.
    return tuple((int(part), "") if part.isdecimal() else (-1, part.casefold()) for part in parts)
