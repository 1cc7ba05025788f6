"""Tables of neighbours on disk, found again by the content of their points."""

import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.files import ArrayFileError, read_npz
from fieldwatch.recon.geometry.neighbours import NeighbourTable, nearest_neighbours

_FORMAT = b"fieldwatch neighbours 1"
_LIMIT = 2 * 2**30  # bytes of all tables in a folder; the oldest go first


def neighbour_cache_folder() -> Path:
    """Folder of the tables, `$XDG_CACHE_HOME/fieldwatch/neighbours` or `~/.cache/fieldwatch/neighbours`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fieldwatch" / "neighbours"


def cached_neighbours(
    points: Float[Tensor, "n 3"], count: int = 16, *, folder: Path | None = None, limit: int = _LIMIT
) -> NeighbourTable:
    """Return `nearest_neighbours`, from disk where these very points were searched before.

    The key is a hash of the coordinates, so a table is never stale. Meant for points that are loaded (a checkpoint),
    not for points that move at every step. A file that is damaged is searched and written anew; a folder that can not
    be written costs only the search.

    Args:
        points: in world units.
        count: neighbours of each, itself included.
        folder: of the tables; None is `neighbour_cache_folder`.
        limit: bytes of all tables in the folder; beyond it the ones not written for longest are deleted.

    Raises:
        ValueError: see `nearest_neighbours`.
    """
    folder = neighbour_cache_folder() if folder is None else folder
    file = folder / f"{_key(points, count)}.npz"
    table = _read(file, len(points), min(count, len(points)))
    if table is not None:
        return table.to(points.device)
    table = nearest_neighbours(points, count)
    try:
        _write(file, table)
        _trim(folder, limit, file)
    except OSError:  # a full or read-only disk: the table itself is there
        return table
    return table


def _key(points: Tensor, count: int) -> str:
    places = np.ascontiguousarray(points.detach().numpy(force=True))
    digest = hashlib.blake2b(_FORMAT + f" {places.dtype.str} {places.shape} {count}".encode(), digest_size=20)
    digest.update(places.data)
    return digest.hexdigest()


def _read(file: Path, points: int, count: int) -> NeighbourTable | None:
    """The table in a file, or None where there is no sound one."""
    try:
        arrays = read_npz(file, ("indices", "squared"), largest=8 * points * count)
        indices = arrays["indices"]
        squared = arrays["squared"]
    except (OSError, ArrayFileError, LookupError):
        return None
    shapes = indices.shape == squared.shape == (points, count)
    if not shapes or indices.dtype != np.int32 or squared.dtype != np.float32:
        return None
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < points:
        return None
    return NeighbourTable(indices=torch.from_numpy(indices), squared=torch.from_numpy(squared))


def _write(file: Path, table: NeighbourTable) -> None:
    """Write whole or not at all, whoever else writes the same."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="writing-") as folder:
        made = Path(folder) / file.name
        np.savez(made, indices=table.indices.numpy(force=True), squared=table.squared.numpy(force=True))
        made.replace(file)


def _trim(folder: Path, limit: int, newest: Path) -> None:
    """Delete the oldest tables, but not the one just written, until the rest fits the limit."""
    sizes = sorted((file.stat().st_mtime_ns, file.stat().st_size, file) for file in folder.glob("*.npz"))
    total = sum(size for _, size, _ in sizes)
    for _, size, file in sizes:
        if total <= limit:
            return
        if file != newest:
            file.unlink(missing_ok=True)
            total -= size
