"""``manifest.json``: what a checkpoint holds and where; decoding trusts nothing."""

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NoReturn, cast

from fieldwatch.checkpoint.array import TORCH_DTYPES, expected_nbytes
from fieldwatch.checkpoint.incident import CheckpointError, DamageError, StoredStateError
from fieldwatch.checkpoint.layout import LAYOUTS, METADATA, VERSION, ArrayEntry, ArrayLayout

FORMAT = "fieldwatch checkpoint"
MAX_MANIFEST_BYTES = 16 * 2**20  # a longer manifest is refused, so that opening a hostile one takes bounded memory
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """What one checkpoint holds.

    Attributes:
        step: the step it was made at.
        created: when, ISO 8601 in UTC.
        metrics: the figures it is ranked by.
        note: JSON of the caller's note.
        items: JSON of each item's tree.
        tensors: the stored arrays; the trees refer to them by their place in this list.
        run: the contents of the run's run.json; empty in checkpoints of versions that did not put it there.
        version: the version of the format.
    """

    step: int
    created: str
    metrics: dict[str, float]
    note: Any
    items: dict[str, Any]
    tensors: tuple[ArrayEntry, ...]
    run: str = ""
    version: int = VERSION

    @property
    def layout(self) -> ArrayLayout:
        """How the arrays lie in their file."""
        return LAYOUTS[self.version]

    @cached_property
    def header(self) -> bytes:
        """What the arrays' file begins with."""
        return self.layout.header(self.tensors)

    def encode(self) -> bytes:
        """Write it as JSON.

        Raises:
            CheckpointError: it would be longer than can be read back.
        """
        fields = asdict(self) | {"metrics": {name: repr(value) for name, value in self.metrics.items()}}
        text = json.dumps({"format": FORMAT} | fields, allow_nan=False, separators=(",", ":"))
        if len(text) > MAX_MANIFEST_BYTES:
            advice = "keep long lists of numbers as tensors or numpy arrays"
            raise CheckpointError(
                f"the manifest would take {len(text):,} bytes, the most is {MAX_MANIFEST_BYTES:,}: {advice}"
            )
        return text.encode("ascii")


def seal(manifest: bytes) -> bytes:
    """Return the line of ``manifest.sha256``, in the form that ``sha256sum -c`` reads."""
    return f"{hashlib.sha256(manifest).hexdigest()}  manifest.json\n".encode("ascii")


def decode(text: bytes) -> CheckpointManifest:
    """Read a manifest, checking every field.

    Raises:
        DamageError: it is not one; the message says which field is wrong.
        CheckpointError: it was written by a newer fieldwatch.
    """
    try:
        # json would accept NaN and Infinity, which no checkpoint writes.
        fields = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"the manifest is not JSON, as it was when it was written: {error}") from error
    if not isinstance(fields, dict) or cast("dict[str, Any]", fields).get("format") != FORMAT:
        raise DamageError(f"the manifest does not say that it is a {FORMAT}")
    return _manifest(cast("dict[str, Any]", fields))


def _manifest(fields: dict[str, Any]) -> CheckpointManifest:
    version = _whole(fields.get("version"), "version")
    if version not in LAYOUTS:
        known = ", ".join(map(str, LAYOUTS))
        raise StoredStateError(f"it has format version {version}, this fieldwatch reads {known}: use a newer one")
    if not isinstance(fields.get("created"), str):
        raise DamageError("the manifest's created is not a time as ISO 8601 writes it")
    items = fields.get("items")
    tensors = fields.get("tensors")
    if not isinstance(items, dict) or not isinstance(tensors, list) or "note" not in fields:
        raise DamageError("the manifest lacks its items, its tensors or its note")
    run = fields.get("run", "")
    if not isinstance(run, str):
        raise DamageError("the manifest's run is not the text of a run.json")
    return CheckpointManifest(
        step=_whole(fields.get("step"), "step"),
        created=fields["created"],
        metrics=_metrics(fields.get("metrics")),
        note=fields["note"],
        items=cast("dict[str, Any]", items),
        tensors=_entries(cast("list[Any]", tensors), LAYOUTS[version]),
        run=run,
        version=version,
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON: a checkpoint writes such numbers as text")


def _whole(value: object, name: str) -> int:
    # `type`, since JSON's true would pass as an int.
    if type(value) is not int or not 0 <= value < 2**63:
        raise DamageError(f"the manifest's {name} is {str(value)[:40]!r}, not a whole number from 0 to 2**63 - 1")
    return value


def _metrics(fields: object) -> dict[str, float]:
    if not isinstance(fields, dict):
        raise DamageError("the manifest's metrics are not an object of names and numbers")
    texts = cast("dict[str, Any]", fields)
    if not all(isinstance(text, str) for text in texts.values()):
        raise DamageError("the manifest's metrics are not numbers written as text")
    try:
        return {name: float(text) for name, text in texts.items()}
    except ValueError as error:
        raise DamageError(f"the manifest's metrics are not numbers: {error}") from error


def _entries(nodes: list[Any], layout: ArrayLayout) -> tuple[ArrayEntry, ...]:
    """Read the places of all arrays, which must be those of the layout: without a hole or an overlap."""
    entries = tuple(_entry(node, f"tensors[{i}]", named=layout.named) for i, node in enumerate(nodes))
    for i, (entry, offset) in enumerate(zip(entries, layout.offsets(entries), strict=True)):
        if entry.offset != offset:
            raise DamageError(f"the manifest's tensors[{i}] starts at {entry.offset}, not at {offset}")
    if layout.named and len({entry.name for entry in entries}) < len(entries):
        raise DamageError("the manifest gives two tensors one name: expected a distinct name for each")
    return entries


def _entry(node: object, name: str, *, named: bool) -> ArrayEntry:
    if not isinstance(node, dict):
        raise DamageError(f"the manifest's {name} is not an object")
    fields = cast("dict[str, Any]", node)
    dtype = fields.get("dtype")
    shape = fields.get("shape")
    sha256 = fields.get("sha256")
    if not isinstance(dtype, str) or dtype not in TORCH_DTYPES:
        raise DamageError(f"the manifest's {name} has the unknown dtype {str(dtype)[:40]!r}")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise DamageError(f"the manifest's {name} has no sha256 of 64 hexadecimal digits")
    own_name = fields.get("name") if named else ""
    if not isinstance(own_name, str) or own_name == METADATA:
        raise DamageError(f"the manifest's {name} has the unusable name {str(own_name)[:40]!r}")
    sizes = _shape(shape, name)
    offset = _whole(fields.get("offset"), f"{name} offset")
    nbytes = _whole(fields.get("nbytes"), f"{name} nbytes")
    if nbytes != expected_nbytes(dtype, sizes):
        raise DamageError(f"the manifest's {name} of {dtype} {sizes} cannot take {nbytes} bytes")
    return ArrayEntry(name=own_name, dtype=dtype, shape=sizes, offset=offset, nbytes=nbytes, sha256=sha256)


def _shape(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(cast("list[Any]", value)) > 64:
        raise DamageError(f"the manifest's {name} has no shape of at most 64 sizes")
    sizes = tuple(_whole(size, f"{name} shape") for size in cast("list[Any]", value))
    # A shape such as [2**40, 0] has no bytes, but its strides would overflow.
    if math.prod(max(size, 1) for size in sizes) >= 2**60:
        raise DamageError(f"the manifest's {name} has the impossible shape {sizes}")
    return sizes
