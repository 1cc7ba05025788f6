"""The part of the Protocol Buffers wire format that TensorBoard event files use.

Source: https://protobuf.dev/programming-guides/encoding. TensorBoard's message classes need ``tensorboard`` and
``protobuf`` (about 30 MB, and half a second of import). The few messages of an event file are simple enough to encode
field by field, so that every run can write them, and TensorBoard is needed only to view them. The tests compare each
message with that of TensorBoard's classes.

A message is the concatenation of its fields, in the order of their numbers. As in proto3, a field with its default
value (zero, empty) is omitted, unless ``always`` is set, which members of a ``oneof`` need.
"""

import struct
from collections.abc import Iterable, Iterator

_VARINT = 0
_EIGHT_BYTES = 1
_SIZED = 2
_FOUR_BYTES = 5


def varint(number: int) -> bytes:
    """Encode an unsigned integer: seven bits per byte, lowest first; the high bit means that another byte follows."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def integer(field: int, value: int, *, always: bool = False) -> bytes:
    """Encode a non-negative integer, an enum or a boolean."""
    return varint(field << 3 | _VARINT) + varint(value) if value or always else b""


def double(field: int, value: float, *, always: bool = False) -> bytes:
    """Encode a 64-bit float. Negative zero is not the default value, and is written."""
    encoded = struct.pack("<d", value)
    # Test the bytes and not the value: -0.0 equals 0.0, but is not the default.
    return varint(field << 3 | _EIGHT_BYTES) + encoded if any(encoded) or always else b""


def single(field: int, value: float, *, always: bool = False) -> bytes:
    """Encode a 32-bit float."""
    encoded = struct.pack("<f", value)
    return varint(field << 3 | _FOUR_BYTES) + encoded if any(encoded) or always else b""


def sized(field: int, content: bytes, *, always: bool = False) -> bytes:
    """Encode bytes. Set ``always`` for nested messages, since an empty message differs from an absent one."""
    return varint(field << 3 | _SIZED) + varint(len(content)) + content if content or always else b""


def text(field: int, value: str, *, always: bool = False) -> bytes:
    """Encode a string."""
    return sized(field, value.encode(), always=always)


def doubles(field: int, values: Iterable[float]) -> bytes:
    """Encode a packed list of 64-bit floats."""
    return sized(field, b"".join(struct.pack("<d", value) for value in values))


def fields(message: bytes) -> dict[int, int | bytes]:
    """Decode a message: the first value of each field by field number.

    Varints are returned as integers, all other fields as undecoded bytes.

    Raises:
        IndexError, struct.error, ValueError: the bytes are not a valid message.
    """
    values: dict[int, int | bytes] = {}
    for number, value in all_fields(message):
        values.setdefault(number, value)
    return values


def all_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Decode a message: yield number and value of each field in the order written, repeated fields several times.

    Varints are returned as integers, all other fields as undecoded bytes.

    Raises:
        IndexError, struct.error, ValueError: the bytes are not a valid message.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:  # varint
                value, at = _varint(message, at)
            case 1:  # 64 bits
                value = message[at : at + 8]
                at = at + 8
            case 2:  # length-delimited
                length, at = _varint(message, at)
                value = message[at : at + length]
                at = at + length
            case 5:  # 32 bits
                value = message[at : at + 4]
                at = at + 4
            case _:
                raise ValueError(f"expected a field of wire type 0, 1, 2 or 5, got {key & 7} before byte {at}")
        # Checked before the field is used: a truncated one has fewer bytes than it declares.
        if at > len(message):
            raise ValueError("the message ends in the middle of a field")
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at = at + 1
        shift = shift + 7
        if byte < 128:
            return value, at
        # A 64-bit varint has at most ten bytes.
        if shift > 63:
            raise ValueError(f"expected a varint of at most 64 bits, got a longer one at byte {at}")
