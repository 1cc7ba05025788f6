"""What the checkpoints in a run's folder say of their run, read without torch: that there are some, and run.json."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

CHECKPOINTS: Final = "checkpoints"
# Prefixes such as ``damaged-``, then ``step_`` or ``ckpt_``, the step, which rewrite of that step it is, and the
# random suffix of a second folder that was set aside under one name.
_NAME: Final = re.compile(r"((?:[a-z]+-)*)(?:step|ckpt)_(\d{6,19})(?:\.(\d{1,9}))?(?:-[0-9a-f]{8})?")
_MAX_BYTES: Final = 16 << 20


def checkpoint_folders(folder: Path, *, set_aside: bool = False) -> list[Path]:
    """Return the folders of a run's checkpoints, the highest step first; they may be damaged.

    Args:
        folder: the run's.
        set_aside: return those that were set aside as damaged or abandoned, and not the others.
    """
    checkpoint = folder / CHECKPOINTS
    found = list[tuple[int, int, Path]]()
    for path in checkpoint.iterdir() if checkpoint.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is not None and bool(name[1]) == set_aside:
            found.append((int(name[2]), int(name[3] or 1), path))
    return [path for _, _, path in sorted(found, reverse=True)]


def manifests_in_checkpoints(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the contents of run.json that sound checkpoints hold, the newest first, each with the checkpoint's folder.

    Checkpoints of versions that did not put it there are passed over, and so are damaged ones; those that were set
    aside come last.
    """
    for path in (*checkpoint_folders(folder), *checkpoint_folders(folder, set_aside=True)):
        text = _manifest_in(path)
        if text:
            yield path, text


def _manifest_in(checkpoint: Path) -> str:
    """Return what one checkpoint holds of run.json; empty where it is damaged or holds nothing."""
    try:
        with (checkpoint / "manifest.json").open("rb") as file:
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
