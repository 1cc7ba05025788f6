"""Find the checkpoints in a run folder and the copies of run.json inside them, without importing torch."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

CHECKPOINTS: Final = "checkpoints"
# Folder name: prefixes such as ``damaged-``, then ``step_`` or ``ckpt_``, the step, the number of the rewrite of that
# step, and a random suffix if another folder had already been set aside under the same name.
_NAME: Final = re.compile(r"((?:[a-z]+-)*)(?:step|ckpt)_(\d{6,19})(?:\.(\d{1,9}))?(?:-[0-9a-f]{8})?")
_MAX_BYTES: Final = 16 << 20


def checkpoint_folders(folder: Path, *, set_aside: bool = False) -> list[Path]:
    """Return the checkpoint folders of a run, highest step first, without checking whether they are intact.

    Args:
        folder: the run folder.
        set_aside: if True, return only checkpoints that were set aside as damaged or abandoned; else only the others.
    """
    checkpoints = folder / CHECKPOINTS
    numbered = list[tuple[int, int, Path]]()
    for path in checkpoints.iterdir() if checkpoints.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        # A prefix marks a checkpoint that was set aside; without a number, it is the first write of its step.
        if name is not None and bool(name[1]) == set_aside:
            numbered.append((int(name[2]), int(name[3] or 1), path))
    return [path for _, _, path in sorted(numbered, reverse=True)]


def manifests_in_checkpoints(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each intact checkpoint's folder and its copy of run.json, newest first.

    Checkpoints that are damaged or were written by a version without this copy are skipped. Checkpoints that were set
    aside come last.
    """
    for path in (*checkpoint_folders(folder), *checkpoint_folders(folder, set_aside=True)):
        text = _manifest_in(path)
        if text:
            yield path, text


def _manifest_in(checkpoint: Path) -> str:
    """Return a checkpoint's copy of run.json, or an empty string if it is damaged or has none."""
    try:
        with (checkpoint / "manifest.json").open("rb") as file:
            # Bounded, in case a damaged file has grown to an absurd size.
            manifest = file.read(_MAX_BYTES)
        seal = (checkpoint / "manifest.sha256").read_bytes()
        # The seal is checked before parsing: a damaged manifest may still be valid JSON.
        if not seal.startswith(hashlib.sha256(manifest).hexdigest().encode()):
            return ""
        fields: Any = json.loads(manifest)
    except (OSError, ValueError, RecursionError):
        return ""
    text = cast("dict[str, Any]", fields).get("run") if isinstance(fields, dict) else None
    return text if isinstance(text, str) else ""
