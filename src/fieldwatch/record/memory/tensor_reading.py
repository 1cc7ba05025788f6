"""Read tensor logs, those of this toolkit and those of the original profiler."""

import mmap
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import InputError
from fieldwatch.record.memory.tensor_grammar import HEAD, SIZE, SNAPSHOT, SPACED, TIME
from fieldwatch.record.memory.tensor_table import Floats, TensorLogTable

# Characters between snapshots that are not garbage: blank space and the lines of equals signs.
_BLANK = b"\r\n\t ="
# Bound for the number of columns: a foreign file could otherwise name millions of categories.
_MAX_NAMES = 256
_CHUNK_SNAPSHOTS = 8192
_OTHER_FORMATS = (
    (b"\x80", "a pickle; `fieldwatch memory` reads those of torch.cuda.memory"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"PK\x03\x04", "a zip file; unpack it first"),
    (b"\xff\xfe", "text in UTF-16; save it as UTF-8"),
    (b"{", "JSON"),
    (b"[", "JSON"),
)


class NotATensorLog(InputError):  # noqa: N818  named after the finding
    """Raised when a file contains no snapshot of a tensor log."""


def read_tensor_log(path: Path | str) -> TensorLogTable:
    """Read a tensor log of this toolkit or of the original profiler.

    Unix and Windows line ends, any threshold and any categories are accepted. Incomplete snapshots are skipped and
    reported (``dropped``, ``truncated``), never read as zeros. The list of the largest tensors may be absent if the
    writer omits it in all snapshots.

    Raises:
        OSError: if the file cannot be read.
        NotATensorLog: if the file is empty or has another format; the message describes its contents.
    """
    path = Path(path)
    if not path.stat().st_size:
        raise NotATensorLog(f"{path} is empty: a tensor log gets its first snapshot at the first profiled iteration")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        table = _LogParser(text).table(path)
        if not len(table) and not table.dropped:
            expected = "'Iteration 50 | 2026-01-29 13:36:21' below a line of equals signs, and so on"
            raise NotATensorLog(
                f"{path} is not a tensor log: it {_describe_format(text[:512])}. Expected snapshots: {expected}"
            )
    return table


class _LogParser:
    """Parses a log in one pass and in chunks, so that only the numbers are kept in memory."""

    def __init__(self, text: mmap.mmap) -> None:
        self._text = text
        self._chunks: list[dict[str, NDArray[Any]]] = []
        self._categories = _Sizes()
        self._dtypes = _Sizes()
        self._dropped: list[int] = []
        self._garbage = 0
        self._end = 0
        # Whether any snapshot has a list of the largest tensors: then a missing one at the end means a torn file.
        self._lists_largest = False
        self._last: re.Match[bytes] | None = None

    def table(self, path: Path) -> TensorLogTable:
        """Parse the whole log."""
        snapshots = self._snapshots()
        # The match objects of a log with a million snapshots would not fit in memory.
        while chunk := list(islice(snapshots, _CHUNK_SNAPSHOTS)):
            self._add_chunk(chunk)
        torn = self._tail()
        last_torn = self._last_is_torn()
        chunks = self._chunks or [_columns([])]
        columns: dict[str, Any] = {
            name: np.concatenate([columns_of_chunk[name] for columns_of_chunk in chunks]) for name in chunks[0]
        }
        rows = len(columns["iterations"])
        iterations = columns["iterations"]
        # Segments: an iteration that does not increase means that the run was resumed. The prepended value makes the
        # first difference 1, so that counting starts at 0.
        table = TensorLogTable(
            path=path,
            **columns,
            categories=self._categories.columns(rows),
            dtypes=self._dtypes.columns(rows),
            segments=np.cumsum(np.diff(iterations, prepend=iterations[:1] - 1) <= 0, dtype=np.int64),
        )
        # The last snapshot was parsed completely except for its list: drop its row again.
        if last_torn:
            self._dropped.append(int(iterations[-1]))
            table = table.rows(np.arange(rows - 1))
        return replace(
            table,
            dropped=tuple(self._dropped),
            truncated=torn or last_torn,
            garbage=self._garbage,
            implausible=_implausible(table),
        )

    def _snapshots(self) -> Iterator[re.Match[bytes]]:
        """Yield complete snapshots, and record damaged or foreign text between them."""
        for match in SNAPSHOT.finditer(self._text):
            self._skip(match.start())
            if self._last is not None:
                self._lists_largest |= self._last[12] is not None
            self._end = match.end()
            self._last = match
            yield match

    def _skip(self, end: int) -> None:
        """Record the text between the last snapshot and ``end`` as dropped snapshots or garbage."""
        # A few KB suffice to tell whether there is anything but blank lines.
        rest = self._text[self._end : min(end, self._end + 4096)].strip(_BLANK)
        if not rest:
            return
        heads = [int(head[1]) if head[1] else -1 for head in HEAD.finditer(self._text, self._end, end)]
        self._dropped += heads
        if not heads:
            self._garbage += end - self._end

    def _tail(self) -> bool:
        """Record the text after the last complete snapshot; return whether it is the start of another snapshot."""
        size = len(self._text)
        known = len(self._dropped)
        rest = self._text[self._end : self._end + 4096].strip()
        if rest and b"Iteration ".startswith(rest.lstrip(_BLANK)):  # torn inside its head
            self._dropped.append(-1)
            return True
        if not self._is_list(rest):
            self._skip(size)
        return len(self._dropped) > known

    def _last_is_torn(self) -> bool:
        """Whether the list of the largest tensors at the end of the last snapshot is torn."""
        last = self._last
        if last is None or not int(last[10]) or HEAD.search(self._text, self._end):
            return False
        if last[12] is None:
            return self._lists_largest or self._is_list(self._text[self._end : self._end + 64].strip())
        return last[12].count(b"\n") < min(int(last[10]), int(last[11]))

    def _is_list(self, rest: bytes) -> bool:
        """Whether the rest of the text is a torn part of the last snapshot's list of the largest tensors."""
        listing = self._last is not None and self._last[12] is not None
        return bool(rest) and (rest[:1].isdigit() if listing else b"Top 5 largest:".startswith(rest[:14]))

    def _add_chunk(self, chunk: Sequence[re.Match[bytes]]) -> None:
        done = sum(len(columns_of_chunk["iterations"]) for columns_of_chunk in self._chunks)
        self._chunks.append(_columns(chunk))
        self._categories.add(done, [match[7] for match in chunk])
        self._dtypes.add(done, [match[8] for match in chunk])


class _Sizes:
    """Collects sizes by name from many snapshots and converts them to one column per name."""

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {}
        self._rows: list[NDArray[np.intp]] = []
        self._columns: list[NDArray[np.intp]] = []
        self._values: list[Floats] = []

    def add(self, first: int, blocks: list[bytes]) -> None:
        """Add the size lines of consecutive snapshots, starting at row ``first``.

        Raises:
            NotATensorLog: if there are too many different names.
        """
        # One findall over the joined blocks is several times faster than one per block. It matches single-word names
        # only, so a count mismatch means that some line needs the slower, tolerant pattern.
        pairs = cast("list[tuple[bytes, bytes]]", SIZE.findall(b"".join(blocks)))
        counts = [block.count(b"\n") for block in blocks]
        if sum(counts) != len(pairs):  # a name with spaces, or a line of another kind
            by_block = [cast("list[tuple[bytes, bytes]]", SPACED.findall(block)) for block in blocks]
            counts = [len(block_pairs) for block_pairs in by_block]
            pairs = [pair for block_pairs in by_block for pair in block_pairs]
        codes = self._codes
        self._rows.append(np.repeat(np.arange(first, first + len(blocks)), counts))
        self._columns.append(np.array([codes.setdefault(name, len(codes)) for name, _ in pairs], np.intp))
        self._values.append(np.array([float(value) for _, value in pairs]))
        if len(codes) > _MAX_NAMES:
            raise NotATensorLog(
                f"the log names more than {_MAX_NAMES} categories or dtypes, the last {next(reversed(codes))[:40]!r}: "
                f"expected a few, such as 'gradients' or 'float32'"
            )

    def columns(self, count: int) -> dict[str, Floats]:
        """Return ``[count]`` values for each name; 0 in rows that do not list it."""
        if not self._codes:
            return {}
        table = np.zeros((len(self._codes), count))
        # Scatter the values; names that a snapshot lacks stay 0.
        table[np.concatenate(self._columns), np.concatenate(self._rows)] = np.concatenate(self._values)
        return {name.decode(errors="replace"): table[code] for name, code in self._codes.items()}


def _columns(chunk: Sequence[re.Match[bytes]]) -> dict[str, NDArray[Any]]:
    """Return the columns of a chunk of snapshots, except the sizes by name."""
    texts = [match.group(1, 2, 3, 4, 5, 6, 9, 10) for match in chunk]
    whole = {"iterations": 0, "total_tensors": 2, "large_thresholds": 6, "large_counts": 7}
    real = {"allocated": 3, "reserved": 4, "fragmentation": 5}
    integers = {name: np.array([int(text[i]) for text in texts], np.int64) for name, i in whole.items()}
    floats = {name: np.array([float(text[i]) for text in texts], np.float64) for name, i in real.items()}
    spans = np.array([match.span() for match in chunk], np.int64).reshape(-1, 2)
    return {**integers, **floats, "times": _parse_times([text[1] for text in texts]), "spans": spans}


def _parse_times(texts: Sequence[bytes]) -> NDArray[Any]:
    known = [text.strip().decode() if TIME.fullmatch(text.strip()) else "NaT" for text in texts]
    try:
        return np.array(known, "datetime64[s]")
    except ValueError:  # an impossible date such as February 30: parse one by one to find it
        return np.array([_parse_time(text) for text in known], "datetime64[s]")


def _parse_time(text: str) -> np.datetime64:
    try:
        return np.datetime64(text, "s")
    except ValueError:
        return np.datetime64("NaT", "s")


def _implausible(table: TensorLogTable) -> tuple[str, ...]:
    """Describe implausible numbers, in at most ten sentences."""
    columns = {"allocated": table.allocated, "reserved": table.reserved, "fragmentation": table.fragmentation}
    problems: list[str] = []
    for name, values in (columns | table.categories | table.dtypes).items():
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(wrong):
            first = f"{values[wrong[0]]:g} at iteration {table.iterations[wrong[0]]}"
            problems.append(f"{name} is negative or not finite in {len(wrong)} snapshots, first {first}")
    # The log rounds to two decimals, so allow a difference of 0.01 MB.
    over = np.flatnonzero(table.allocated > table.reserved + 0.01)
    if len(over):
        first = f"first at iteration {table.iterations[over[0]]}"
        problems.append(f"allocated is above reserved in {len(over)} snapshots, {first}")
    return tuple(problems[:10])


def _describe_format(start: bytes) -> str:
    """Describe the apparent format of a file that is not a tensor log."""
    for magic, description in _OTHER_FORMATS:
        if start.startswith(magic):
            return f"looks like {description}"
    if not start.strip():
        return "is blank"
    if b"\0" in start or not start.isascii():
        return "is binary"
    return f"is text that begins with {start.splitlines()[0][:60].decode()!r}"
