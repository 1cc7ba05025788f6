"""Check of the opcodes of a pickle before it is loaded: only plain data is allowed.

A pickle is a program. The opcodes that build dicts, lists, numbers and text are harmless; others import names and call
them. The scan accepts the former and refuses all others by name, before any object is built. It also refuses pickles
that would exhaust memory or time: memo indices beyond the size of the file, numbers of more than 64 bits (which can be
made to collide as dict keys), tuples of anything but numbers (hashing nested tuples recurses without a limit), and more
containers than a snapshot of that size can have.
"""

import pickletools
import re
from collections import deque
from itertools import islice

from fieldwatch.report.snapshot.error import SnapshotError

_INTEGER = rb"(?:K.|M..|J....|" + b"|".join(b"\x8a%c.{%d}" % (n, n) for n in range(10)) + rb")"
# Possessive quantifiers (`*+`, `{...}+`) never backtrack: time stays linear on hostile files.
_PLAIN = re.compile(
    rb"(?:h.|"  # most of a snapshot consists of references to earlier text
    + _INTEGER
    + rb"(?:\x85|"  # pool IDs are tuples of numbers
    + _INTEGER
    + rb"(?:\x86|"
    + _INTEGER
    + rb"\x87))|\("
    + _INTEGER
    + rb"*+t|"
    + _INTEGER
    + rb"|j....|q.|G.{8}|[]}()Naesuld\x88\x89\x94]){0,65536}+",
    re.DOTALL,
)
_NAMES = {ord(known.code): known.name for known in pickletools.opcodes}
_IMPORTS = {b"c"[0], b"i"[0], 0x93}
_OBJECTS = {b"o"[0], b"R"[0], b"b"[0], 0x81, 0x92, 0x82, 0x83, 0x84, b"P"[0], b"Q"[0]}
_LENGTHS = {0x8C: 1, b"X"[0]: 4, 0x8D: 8, 0x95: 0}
_FRAME = 0x95
_PUT = b"r"[0]
_PROTOCOL = 0x80
_STOP = b"."[0]
_BYTES_PER_CONTAINER = 8
_FREE_CONTAINERS = 4096
_OPCODES_TO_NAME = 1_000_000
_CUT = "the file is truncated: copy it again, or dump the snapshot again"


def check_opcodes(data: bytes) -> None:
    """Refuse a pickle that is anything but plain data.

    Args:
        data: pickle of protocol 2 or later; bytes after its end are ignored.

    Raises:
        SnapshotError: if an opcode would import, call or load something, is damaged, or would exhaust memory.
    """
    place = 0
    containers = 0
    size = len(data)
    while True:
        start = place
        place = _skip_plain(data, place)
        containers += data.count(b"}", start, place) + data.count(b"]", start, place)
        # A hostile file can make a container with a single byte; those of a real snapshot are not empty.
        if containers > size // _BYTES_PER_CONTAINER + _FREE_CONTAINERS:
            raise SnapshotError(
                f"expected plain data, got {containers:,} lists and dicts in {size:,} bytes, made to exhaust memory"
            )
        if place >= size:
            raise SnapshotError(_CUT)
        if data[place] == _STOP:
            return
        place = _skip_special(data, place)


def _skip_plain(data: bytes, place: int) -> int:
    """Return the position of the next opcode that is not plain, or a position after many plain ones."""
    match = _PLAIN.match(data, place)
    return match.end() if match else place


def _skip_special(data: bytes, place: int) -> int:
    """Check an opcode whose argument matters, and return the position after it."""
    opcode = data[place]
    if opcode in _LENGTHS:
        end = _behind_counted(data, place)
    elif opcode == _PROTOCOL:
        end = place + 2
    elif opcode == _PUT:
        end = place + 5
        index = int.from_bytes(data[place + 1 : end], "little")
        if index >= len(data):
            raise SnapshotError(
                f"byte {place}: memo index {index:,} in a file of {len(data):,} bytes, made to exhaust memory"
            )
    elif opcode in b"KMJ\x8ajhqG(" and _cut_short(data, place):
        raise SnapshotError(_CUT)
    else:
        raise SnapshotError(_refusal(data, place))
    if end > len(data):
        raise SnapshotError(_CUT)
    return end


def _behind_counted(data: bytes, place: int) -> int:
    """Return the position after text that is preceded by its length; of a frame, the position after its head."""
    if data[place] == _FRAME:
        length = int.from_bytes(data[place + 1 : place + 9], "little")
        end = place + 9
        if end + length > len(data):
            raise SnapshotError(_CUT)
        return end
    start = place + 1 + _LENGTHS[data[place]]
    return start + int.from_bytes(data[place + 1 : start], "little")


def _cut_short(data: bytes, place: int) -> bool:
    """Return whether a plain opcode failed to match only because the file ends."""
    longest = 11
    return len(data) - place < longest and not (data[place] == 0x8A and place + 1 < len(data) and data[place + 1] > 9)


def _refusal(data: bytes, place: int) -> str:
    """Describe what a refused opcode would do."""
    opcode = data[place]
    name = _NAMES.get(opcode, f"0x{opcode:02x}")
    if opcode in _IMPORTS:
        done = f"{name} would import {_imported(data, place)}; nothing was run"
    elif opcode in _OBJECTS:
        done = f"{name} would create or load an object; nothing was run"
    elif opcode in _NAMES:
        done = f"{name} does not occur in memory snapshots, which consist of 64-bit numbers, text, lists and dicts"
    else:
        done = f"{name} is not an opcode: the file is damaged"
    return f"byte {place}: {done}"


def _imported(data: bytes, place: int) -> str:
    """Return the dotted name that an opcode would import."""
    if data[place] != 0x93:
        lines = data[place + 1 : place + 400].split(b"\n")
        names = [line.decode(errors="replace") for line in lines[:2]]
    else:
        names = _last_texts(data, place)
    return ".".join(names).encode("unicode_escape").decode()[:200] or "an unreadable name"


def _last_texts(data: bytes, place: int) -> list[str]:
    """Return the last two texts that were put on the stack before a position."""
    texts: deque[str] = deque(maxlen=2)
    memo: dict[int, str] = {}
    named = 0
    try:
        for opcode, argument, at in islice(pickletools.genops(data), _OPCODES_TO_NAME):
            if at is None or at >= place:
                break
            if "UNICODE" in opcode.name:
                texts.append(str(argument))
            elif opcode.name == "MEMOIZE":
                memo[named] = texts[-1] if texts else ""
                named = named + 1
            elif opcode.name in {"BINGET", "LONG_BINGET"}:
                texts.append(memo.get(int(argument or 0), "?"))
    except ValueError:
        return []
    return list(texts)
