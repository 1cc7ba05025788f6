"""Detect Git LFS pointers: small text files in place of large files that were not downloaded."""

from pathlib import Path

_FIRST_LINE = b"version https://git-lfs"
_LONGEST = 1024


def pointer_text(path: Path) -> str:
    """Return an error message with size and remedy if the file is a Git LFS pointer, else an empty string."""
    with path.open("rb") as file:
        head = file.read(_LONGEST)
    if not head.startswith(_FIRST_LINE):
        return ""
    # A pointer consists of "key value" lines (github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
    fields = dict(line.split(" ", 1) for line in head.decode("utf-8", "replace").splitlines() if " " in line)
    return (
        f"{path} is a Git LFS pointer, not the file itself ({fields.get('size', 'unknown')} bytes): run 'git lfs pull' "
        f"in its repository, or download the file manually"
    )
