"""Reads a pickle of plain data, and nothing else: no name is imported, no code of the file is run."""

import gc
import io
import pickle
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fieldwatch.report.snapshot.error import SnapshotError
from fieldwatch.report.snapshot.opcodes import check_opcodes

MAX_BYTES = 1 << 29
_FORMATS = {
    b"PK\x03\x04": "a zip archive, such as torch.save writes: a checkpoint, not a memory snapshot",
    b"\x1f\x8b": "compressed with gzip: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it first",
    b"{": "JSON or text, not a pickle",
    b"[": "JSON or text, not a pickle",
    b"<": "a page of HTML, not a pickle: give the .pickle it was made from",
}
_WANTED = "Wanted the file that torch.cuda.memory._dump_snapshot(path) writes"
_DAMAGED = (
    pickle.UnpicklingError,
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    MemoryError,
)


class _PlainUnpickler(pickle.Unpickler):
    """The second lock, behind the scan of the opcodes: even a name that came through cannot be imported."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise SnapshotError(f"the pickle would import {module_name[:100]}.{global_name[:100]}. Nothing was run")

    def persistent_load(self, pid: object) -> Any:
        raise SnapshotError(f"the pickle would load an object from elsewhere ({type(pid).__name__}). Nothing was run")


def read_plain_pickle(path: Path, max_bytes: int = MAX_BYTES) -> tuple[Any, int]:
    """Read a pickle that holds only dicts, lists, tuples of numbers, numbers, text, booleans and None.

    Args:
        path: the file.
        max_bytes: files larger than this are refused; reading takes about ten times the file in memory.

    Returns:
        The value, and the size of the file in bytes.

    Raises:
        SnapshotError: the file is missing, too large, empty, truncated, no pickle, or more than plain data.
    """
    data = _read(path, max_bytes)
    try:
        check_opcodes(data)
        with _no_collection():
            return _PlainUnpickler(io.BytesIO(data)).load(), len(data)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: refused: {error}. {_WANTED}") from None
    except _DAMAGED as error:
        problem = f"{type(error).__name__}: {str(error)[:200]}"
        raise SnapshotError(f"{path}: a damaged pickle ({problem}). {_WANTED}") from error


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        if not path.is_file():
            raise SnapshotError(f"{path}: there is no such file (or it is a folder). {_WANTED}")
        size = path.stat().st_size
        if size > max_bytes:
            raise SnapshotError(
                f"{path}: {size:,} bytes, and at most {max_bytes:,} are read. Record a shorter history "
                "(max_entries of _record_memory_history), or raise max_bytes: reading takes about 10 times the file"
            )
        data = path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read ({error.strerror or error}). {_WANTED}") from error
    _check_format(path, data)
    return data


def _check_format(path: Path, data: bytes) -> None:
    """Refuse what does not begin as a pickle of protocol 2 to 5 does."""
    if not data:
        raise SnapshotError(f"{path}: the file is empty. {_WANTED}; it may have been cut off while it was written")
    for magic, what in _FORMATS.items():
        if data.startswith(magic):
            raise SnapshotError(f"{path}: this is {what}. {_WANTED}")
    if data[0] != 0x80 or len(data) < 2 or not 2 <= data[1] <= 5:
        raise SnapshotError(
            f"{path}: this is no pickle of protocol 2 to 5: it begins with the bytes {data[:4].hex(' ')}. {_WANTED}"
        )


@contextmanager
def _no_collection() -> Generator[None]:
    """Keep the garbage collector from walking the growing data again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
