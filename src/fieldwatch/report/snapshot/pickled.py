"""Reader for pickles of plain data: it imports no name and runs no code of the file."""

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
    b"<": "an HTML page, not a pickle: give the .pickle from which it was made",
}
_WANTED = "Give a file that torch.cuda.memory._dump_snapshot(path) wrote"
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
    """Unpickler that refuses imports, in case the scan of the opcodes missed one."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise SnapshotError(f"the pickle would import {module_name[:100]}.{global_name[:100]}; nothing was run")

    def persistent_load(self, pid: object) -> Any:
        raise SnapshotError(f"the pickle would load an external object ({type(pid).__name__}); nothing was run")


def read_plain_pickle(path: Path, max_bytes: int = MAX_BYTES) -> tuple[Any, int]:
    """Read a pickle that contains only dicts, lists, tuples of numbers, numbers, text, booleans and None.

    Args:
        path: pickle file.
        max_bytes: maximum size of the file; reading needs about ten times the file size in memory.

    Returns:
        The value, and the size of the file in bytes.

    Raises:
        SnapshotError: if the file is missing, too large, empty, truncated, not a pickle, or not plain data.
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
        raise SnapshotError(f"{path}: the pickle is damaged ({problem}). {_WANTED}") from error


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        if not path.is_file():
            raise SnapshotError(f"{path} does not exist or is a folder. {_WANTED}")
        size = path.stat().st_size
        if size > max_bytes:
            raise SnapshotError(
                f"{path}: expected at most {max_bytes:,} bytes, got {size:,}. Record a shorter history (max_entries of "
                "_record_memory_history), or raise max_bytes: reading needs about ten times the file size in memory"
            )
        data = path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read ({error.strerror or error}). {_WANTED}") from error
    _check_format(path, data)
    return data


def _check_format(path: Path, data: bytes) -> None:
    """Refuse files that do not begin like a pickle of protocol 2 to 5."""
    if not data:
        raise SnapshotError(f"{path} is empty: it may have been cut off while it was written. {_WANTED}")
    for magic, what in _FORMATS.items():
        if data.startswith(magic):
            raise SnapshotError(f"{path} is {what}. {_WANTED}")
    if data[0] != 0x80 or len(data) < 2 or not 2 <= data[1] <= 5:
        raise SnapshotError(
            f"{path}: expected a pickle of protocol 2 to 5, got a file that begins with {data[:4].hex(' ')}. {_WANTED}"
        )


@contextmanager
def _no_collection() -> Generator[None]:
    """Disable the garbage collector, which would otherwise traverse the growing data again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
