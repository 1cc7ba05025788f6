"""Looks through the opcodes of a pickle before it is read: only plain data may be there.

A pickle is a program. The opcodes that build dicts, lists, numbers and text are harmless; the others import names and
call them. The scan lets the former pass and refuses the rest by name, before anything is built. What would exhaust
memory or time while it is built is refused as well: a memo index beyond the file, numbers of more than 64 bits (as
dict keys they can be made to collide), tuples of anything but numbers (hashing nested tuples recurses without a
limit), and more containers than a snapshot of that size could hold.
"""

import pickletools
import re
from collections import deque
from itertools import islice

from fieldwatch.report.snapshot.error import SnapshotError

_INTEGER = rb"(?:K.|M..|J....|" + b"|".join(b"\x8a%c.{%d}" % (n, n) for n in range(10)) + rb")"
# Possessive quantifiers (`*+`, `{...}+`) never backtrack: time stays linear on hostile files.
_PLAIN = re.compile(
    rb"(?:h.|"  # most of a snapshot refers to text it has named before
    + _INTEGER
    + rb"(?:\x85|"  # pool ids are tuples of numbers
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
_CUT = "it ends in the middle: the file is truncated. Copy it again, or dump the snapshot again"


def check_opcodes(data: bytes) -> None:
    """Refuse a pickle that is anything but plain data.

    Args:
        data: the whole pickle, protocol 2 or later; what follows its end is ignored.

    Raises:
        SnapshotError: an opcode would import, call or load something, is damaged, or would exhaust memory.
    """
    place = 0
    containers = 0
    size = len(data)
    while True:
        start = place
        place = _skip_plain(data, place)
        containers += data.count(b"}", start, place) + data.count(b"]", start, place)
        # An empty container costs a hostile file one byte; those of a real snapshot hold something.
        if containers > size // _BYTES_PER_CONTAINER + _FREE_CONTAINERS:
            raise SnapshotError(f"more than {containers:,} lists and dicts in {size:,} bytes: made to exhaust memory")
        if place >= size:
            raise SnapshotError(_CUT)
        if data[place] == _STOP:
            return
        place = _skip_special(data, place)


def _skip_plain(data: bytes, place: int) -> int:
    """Return the place of the next opcode that is not plain, or of a pause after many."""
    match = _PLAIN.match(data, place)
    return match.end() if match else place


def _skip_special(data: bytes, place: int) -> int:
    """Return the place behind an opcode whose argument must be looked at."""
    opcode = data[place]
    if opcode in _LENGTHS:
        end = _behind_counted(data, place)
    elif opcode == _PROTOCOL:
        end = place + 2
    elif opcode == _PUT:
        end = place + 5
        index = int.from_bytes(data[place + 1 : end], "little")
        if index >= len(data):
            raise SnapshotError(f"byte {place}: memo index {index:,} in {len(data):,} bytes: made to exhaust memory")
    elif opcode in b"KMJ\x8ajhqG(" and _cut_short(data, place):
        raise SnapshotError(_CUT)
    else:
        raise SnapshotError(_refusal(data, place))
    if end > len(data):
        raise SnapshotError(_CUT)
    return end


def _behind_counted(data: bytes, place: int) -> int:
    """Return the place behind text with its length before it; of a frame, behind its head."""
    if data[place] == _FRAME:
        length = int.from_bytes(data[place + 1 : place + 9], "little")
        end = place + 9
        if end + length > len(data):
            raise SnapshotError(_CUT)
        return end
    start = place + 1 + _LENGTHS[data[place]]
    return start + int.from_bytes(data[place + 1 : start], "little")


def _cut_short(data: bytes, place: int) -> bool:
    """Tell whether a plain opcode did not pass only because the file ends."""
    longest = 11
    return len(data) - place < longest and not (data[place] == 0x8A and place + 1 < len(data) and data[place + 1] > 9)


def _refusal(data: bytes, place: int) -> str:
    """Say what an opcode would have done."""
    opcode = data[place]
    name = _NAMES.get(opcode, f"0x{opcode:02x}")
    if opcode in _IMPORTS:
        done = f"{name} would import {_imported(data, place)}. Nothing was run"
    elif opcode in _OBJECTS:
        done = f"{name} would make an object or load one from elsewhere. Nothing was run"
    elif opcode in _NAMES:
        done = f"{name} stands where a memory snapshot has none (numbers of 64 bits, text, lists, dicts only)"
    else:
        done = f"{name} is no pickle opcode: the file is damaged"
    return f"byte {place}: {done}"


def _imported(data: bytes, place: int) -> str:
    """Return the dotted name that an importing opcode asks for."""
    if data[place] != 0x93:
        lines = data[place + 1 : place + 400].split(b"\n")
        names = [line.decode(errors="replace") for line in lines[:2]]
    else:
        names = _last_texts(data, place)
    return ".".join(names).encode("unicode_escape").decode()[:200] or "a name that the file spells unreadably"


def _last_texts(data: bytes, place: int) -> list[str]:
    """Return the last two texts put on the stack before a place."""
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
