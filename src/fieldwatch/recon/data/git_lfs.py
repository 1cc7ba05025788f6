"""Git LFS pointers: small text files that stand where a large file should be."""

from pathlib import Path

_FIRST_LINE = b"version https://git-lfs"
_LONGEST = 1024


def pointer_text(path: Path) -> str:
    """Say that a file is a Git LFS pointer, how large the real one is and how to get it; '' for any other file."""
    with path.open("rb") as file:
        head = file.read(_LONGEST)
    if not head.startswith(_FIRST_LINE):
        return ""
    # The pointer's lines are "key value"; the one with the size says what is missing.
    fields = dict(line.split(" ", 1) for line in head.decode("utf-8", "replace").splitlines() if " " in line)
    return (
        f"{path} is a Git LFS pointer, not the file itself (which has {fields.get('size', 'unknown')} bytes): "
        f"run 'git lfs pull' in that repository, or download the file by hand"
    )
