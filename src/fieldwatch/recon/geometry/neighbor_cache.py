"""Cache of neighbor tables on disk, keyed by the content of the points."""

import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.files import ArrayFileError, read_npz
from fieldwatch.recon.geometry.neighbors import NeighborTable, nearest_neighbors

_FORMAT = b"fieldwatch neighbors 1"
_LIMIT = 2 * 2**30  # bytes of all tables in a folder; the oldest are deleted first


def neighbor_cache_folder() -> Path:
    """Return the cache folder: `$XDG_CACHE_HOME/fieldwatch/neighbors` or `~/.cache/fieldwatch/neighbors`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fieldwatch" / "neighbors"


def cached_neighbors(
    points: Float[Tensor, "n 3"], count: int = 16, *, folder: Path | None = None, limit: int = _LIMIT
) -> NeighborTable:
    """Return `nearest_neighbors(points, count)`, from disk if the same points were searched before.

    The key is a hash of the coordinates, so a table is never stale. Use this for loaded points (a checkpoint), not for
    points that move at every step. Damaged files are replaced. If the folder is not writable, the table is searched
    and not stored.

    Args:
        points: points in world units.
        count: number of neighbors per point, including the point itself.
        folder: cache folder; None uses `neighbor_cache_folder`.
        limit: maximum number of bytes of all tables in the folder; the least recently written ones are deleted.

    Raises:
        ValueError: see `nearest_neighbors`.
    """
    folder = neighbor_cache_folder() if folder is None else folder
    file = folder / f"{_key(points, count)}.npz"
    table = _read(file, len(points), min(count, len(points)))
    if table is not None:
        return table.to(points.device)
    table = nearest_neighbors(points, count)
    try:
        _write(file, table)
        _trim(folder, limit, file)
    except OSError:  # a full or read-only disk: the table can be returned without caching it
        return table
    return table


def _key(points: Tensor, count: int) -> str:
    coordinates = np.ascontiguousarray(points.detach().numpy(force=True))
    # Type, shape and count are part of the key, since equal bytes may represent different points.
    digest = hashlib.blake2b(_FORMAT + f" {coordinates.dtype.str} {coordinates.shape} {count}".encode(), digest_size=20)
    digest.update(coordinates.data)
    return digest.hexdigest()


def _read(file: Path, points: int, count: int) -> NeighborTable | None:
    """Read a table; return None if the file is missing or damaged."""
    try:
        # With the size limit, a damaged header cannot allocate more than the table needs.
        arrays = read_npz(file, ("indices", "squared"), largest=8 * points * count)
        indices = arrays["indices"]
        squared = arrays["squared"]
    except (OSError, ArrayFileError, LookupError):
        return None
    shapes = indices.shape == squared.shape == (points, count)
    if not shapes or indices.dtype != np.int32 or squared.dtype != np.float32:
        return None
    # Out-of-range indices would fail much later, and negative ones would silently read other rows.
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < points:
        return None
    return NeighborTable(indices=torch.from_numpy(indices), squared=torch.from_numpy(squared))


def _write(file: Path, table: NeighborTable) -> None:
    """Write a table atomically, also if several processes write the same one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # The draft is on the same file system, so that the rename is atomic.
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="writing-") as folder:
        draft = Path(folder) / file.name
        np.savez(draft, indices=table.indices.numpy(force=True), squared=table.squared.numpy(force=True))
        draft.replace(file)


def _trim(folder: Path, limit: int, newest: Path) -> None:
    """Delete the oldest tables, except the one just written, until the rest fits the limit."""
    # Tuples sort by modification time first.
    sizes = sorted((file.stat().st_mtime_ns, file.stat().st_size, file) for file in folder.glob("*.npz"))
    total = sum(size for _, size, _ in sizes)
    for _, size, file in sizes:
        if total <= limit:
            return
        if file != newest:
            # Another process may have deleted the file meanwhile.
            file.unlink(missing_ok=True)
            total -= size
