"""Names of image files: their endings and their natural order; HEIC files under any name."""

import re
from pathlib import Path

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
HEIC_SUFFIXES = frozenset({".heic", ".heif"})
# Major brands of ISO/IEC 23008-12, at bytes 8 to 11 of a file.
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})


def is_heic(path: Path) -> bool:
    """Return whether the content of a file is HEIC, the format of phones; some programs name such files `.jpg`."""
    with path.open("rb") as file:
        start = file.read(12)
    return start[4:8] == b"ftyp" and start[8:12] in _HEIC_BRANDS


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts `frame_2` before `frame_10`."""
    parts = re.findall(r"\d+|\D+", name)
    # Tuples of equal types compare even where one name has a number and the other has text.
    return tuple((int(part), "") if part.isdecimal() else (-1, part.casefold()) for part in parts)
