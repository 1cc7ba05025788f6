"""``manifest.json``: the contents of a checkpoint; every field is validated when it is decoded."""

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
# A longer manifest is refused, so that opening a malicious one takes bounded memory.
MAX_MANIFEST_BYTES = 16 * 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """Contents of the manifest of a checkpoint.

    Attributes:
        step: number of finished steps.
        created: time of creation, ISO 8601 in UTC.
        metrics: metrics of the checkpoint.
        note: JSON of the caller's note.
        items: JSON of the tree of each item, by name.
        tensors: entries of the stored arrays; the trees refer to them by index.
        run: contents of the run's run.json; empty in checkpoints of versions that did not store it.
        version: version of the format.
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
        """Layout of the arrays in their file."""
        return LAYOUTS[self.version]

    @cached_property
    def header(self) -> bytes:
        """Header of the arrays' file."""
        return self.layout.header(self.tensors)

    def encode(self) -> bytes:
        """Return the manifest as JSON.

        Raises:
            CheckpointError: if it would be too long to be read back.
        """
        # Metrics are stored as text, because JSON has no NaN and no infinity.
        # repr restores floats exactly.
        fields = asdict(self) | {"metrics": {name: repr(value) for name, value in self.metrics.items()}}
        text = json.dumps({"format": FORMAT} | fields, allow_nan=False, separators=(",", ":"))
        if len(text) > MAX_MANIFEST_BYTES:
            advice = "store long lists of numbers as tensors or numpy arrays"
            raise CheckpointError(
                f"the manifest would take {len(text):,} bytes, expected at most {MAX_MANIFEST_BYTES:,}: {advice}"
            )
        return text.encode("ascii")


def seal(manifest: bytes) -> bytes:
    """Return the line of ``manifest.sha256`` in the format of ``sha256sum -c``."""
    return f"{hashlib.sha256(manifest).hexdigest()}  manifest.json\n".encode("ascii")


def decode(text: bytes) -> CheckpointManifest:
    """Decode a manifest and validate every field.

    Raises:
        DamageError: if it is not a valid manifest; the message names the field.
        CheckpointError: if it was written by a newer fieldwatch.
    """
    try:
        # By default json accepts NaN and Infinity, which no checkpoint contains.
        fields = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"the manifest is not JSON, so it was changed after it was written: {error}") from error
    if not isinstance(fields, dict) or cast("dict[str, Any]", fields).get("format") != FORMAT:
        raise DamageError(f"the manifest does not say that it is a {FORMAT}")
    return _manifest(cast("dict[str, Any]", fields))


def _manifest(fields: dict[str, Any]) -> CheckpointManifest:
    version = _whole(fields.get("version"), "version")
    if version not in LAYOUTS:
        known = ", ".join(map(str, LAYOUTS))
        raise StoredStateError(
            f"it has format version {version}, this fieldwatch reads {known}: install a newer fieldwatch"
        )
    if not isinstance(fields.get("created"), str):
        raise DamageError("the manifest's created is not a time in ISO 8601 format")
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
    raise ValueError(f"{name} is not JSON: such numbers must be stored as text")


def _whole(value: object, name: str) -> int:
    # `type` instead of `isinstance`, because JSON's true would count as an int.
    # The upper bound keeps sums of offsets and sizes within numpy's int64.
    if type(value) is not int or not 0 <= value < 2**63:
        raise DamageError(f"the manifest's {name} is {str(value)[:40]!r}, expected an integer from 0 to 2**63 - 1")
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
    """Decode the entries of all arrays; their offsets must be those of the layout, without gaps or overlaps."""
    entries = tuple(_entry(node, f"tensors[{i}]", named=layout.named) for i, node in enumerate(nodes))
    for i, (entry, offset) in enumerate(zip(entries, layout.offsets(entries), strict=True)):
        if entry.offset != offset:
            raise DamageError(f"the manifest's tensors[{i}] starts at byte {entry.offset}, expected byte {offset}")
    if layout.named and len({entry.name for entry in entries}) < len(entries):
        raise DamageError("the manifest gives two tensors the same name: names must be distinct")
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
