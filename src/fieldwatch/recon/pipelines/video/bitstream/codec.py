"""Codec of a trained video model: a small file of quantized, range-coded weights, checksummed and itemized."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fieldwatch import InputError

from .container import BitstreamError, BitstreamSections, SectionSizes, read_sections, write_sections
from .entropy import SymbolReader, SymbolWriter
from .tensors import CodedTensor, code_tensor, read_tensor

ENCODER = "encoder."
CLIP_HEAD = "clip_head."
EMBEDDINGS = "embeddings"


@dataclass(frozen=True, kw_only=True)
class CodecOptions:
    """Bits per symbol, and what to store.

    Attributes:
        bits: bits per weight, 1 to 12.
        embedding_bits: bits per value of the frame embeddings, 1 to 12.
        by_prefix: bits for weights whose name starts with the key; the longest matching key wins.
        steps: step of the tensors that are multiples of one, by name; they take no number of bits.
        with_clip_head: False omits the tensors named "clip_head....": pixels only.
    """

    bits: int = 8
    embedding_bits: int = 8
    by_prefix: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    with_clip_head: bool = True

    def __post_init__(self) -> None:
        """Check that the coder supports the number of bits."""
        named = {"bits": self.bits, "embedding_bits": self.embedding_bits}
        for name, bits in (named | {f"by_prefix[{key!r}]": value for key, value in self.by_prefix.items()}).items():
            if not 1 <= bits <= 12:
                raise InputError(f"{name} must be 1 to 12 bits (8 is the default, 6 is visible), got {bits}")

    def of(self, name: str) -> int:
        """Return the bits of the weight with this name in the state dict."""
        matching = [prefix for prefix in self.by_prefix if name.startswith(prefix)]
        return self.by_prefix[max(matching, key=len)] if matching else self.bits


@dataclass(frozen=True, kw_only=True)
class WrittenBitstream:
    """A file that was written.

    Attributes:
        path: path of the file.
        bytes: size of the file.
        bpp: bits per pixel of the video: 8 * bytes / (height * width * frames).
        symbols: number of quantized values in the file.
        breakdown: bytes per part, which sum to `bytes`.
    """

    path: Path
    bytes: int
    bpp: float
    symbols: int
    breakdown: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class DecodedBitstream:
    """A file that was read.

    Attributes:
        config: configuration from which to rebuild the model, as passed to `write_bitstream`.
        state: dequantized weights by their names in the state dict, without the encoder's.
        embeddings: dequantized code per frame, for models that render from codes.
        with_clip_head: whether `state` includes the CLIP head's weights.
        breakdown: bytes per part, which sum to the size of the file.
    """

    config: Mapping[str, Any]
    state: Mapping[str, Tensor]
    embeddings: Tensor | None
    with_clip_head: bool
    breakdown: Mapping[str, int]


def write_bitstream(
    path: Path,
    state: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    embeddings: Tensor | None = None,
    options: CodecOptions | None = None,
) -> WrittenBitstream:
    """Write a model to a single file, atomically.

    Args:
        path: path of the file; its folder is created.
        state: state dict of the model. With `embeddings`, tensors named "encoder...." are omitted.
        config: JSON values from which to rebuild the model; `config["geometry"]` has frames, height and width.
        embeddings: code per frame, from the encoder (hnerv).
        options: bits per symbol, and whether the CLIP head is stored; None stores it, with 8 bits everywhere.

    Raises:
        ValueError: a tensor is not finite, or the geometry is missing.
    """
    pixels = _pixels(config)
    options = options or CodecOptions()
    omitted = (*(() if embeddings is None else (ENCODER,)), *(() if options.with_clip_head else (CLIP_HEAD,)))
    # The NUL prefix matches no name, so that nothing is omitted.
    stored = {name: tensor for name, tensor in state.items() if not name.startswith(omitted or ("\0",))}
    coded = [code_tensor(name, tensor, options.of(name), options.steps.get(name)) for name, tensor in stored.items()]
    if embeddings is not None:
        # Last, and separate from the state dict, because codes have their own number of bits.
        coded.append(code_tensor(EMBEDDINGS, embeddings, options.embedding_bits))
    writer = SymbolWriter()
    entries = [tensor.write(writer) for tensor in coded]
    header = {
        "config": dict(config),
        "with_clip_head": options.with_clip_head,
        "with_embeddings": embeddings is not None,
        "tensors": entries,
    }
    tables = b"".join(tensor.table for tensor in coded)
    sizes = write_sections(Path(path), BitstreamSections(header=header, tables=tables, payload=writer.payload()))
    size = sum(vars(sizes).values())
    return WrittenBitstream(
        path=Path(path),
        bytes=size,
        bpp=8 * size / pixels,
        symbols=_count(coded),
        breakdown=_breakdown(sizes, entries),
    )


def read_bitstream(path: Path) -> DecodedBitstream:
    """Read, verify and dequantize a file.

    Raises:
        BitstreamError: the file is not a bitstream, has a newer layout, or is truncated or modified.
    """
    sections, sizes = read_sections(Path(path))
    tables = memoryview(sections.tables)
    reader = SymbolReader(sections.payload)
    state: dict[str, Tensor] = {}
    for entry in sections.header["tensors"]:
        # In the order of writing, because the file stores no offsets of tables and symbols.
        state[entry["name"]], used = read_tensor(entry, tables, reader)
        tables = tables[used:]
    return DecodedBitstream(
        config=sections.header["config"],
        embeddings=state.pop(EMBEDDINGS) if sections.header["with_embeddings"] else None,
        state=state,
        with_clip_head=sections.header["with_clip_head"],
        breakdown=_breakdown(sizes, sections.header["tensors"]),
    )


def breakdown(path: Path) -> dict[str, int]:
    """Return the bytes per part of a file, which sum to its size: preamble, header, tables, payloads, checksum."""
    sections, sizes = read_sections(Path(path))
    return _breakdown(sizes, sections.header["tensors"])


def _breakdown(sizes: SectionSizes, entries: list[dict[str, Any]]) -> dict[str, int]:
    payload = {f"payload/{entry['name']}": entry["bytes"] for entry in entries if "bytes" in entry}
    # A guard for the size report, which must account for every byte.
    if sum(payload.values()) != sizes.payload:
        msg = f"expected {sizes.payload} bytes of payload, got {sum(payload.values())} in all tensors: write it again"
        raise BitstreamError(msg)
    parts = {"preamble": sizes.preamble, "header": sizes.header, "tables": sizes.tables}
    return parts | payload | {"checksum": sizes.checksum}


def _pixels(config: Mapping[str, Any]) -> int:
    geometry = config.get("geometry")
    if not isinstance(geometry, Mapping) or not {"frames", "height", "width"} <= geometry.keys():
        msg = f"config must have a geometry with frames, height and width, got the keys {sorted(config)}"
        raise InputError(msg)
    return geometry["frames"] * geometry["height"] * geometry["width"]


def _count(coded: list[CodedTensor]) -> int:
    return sum(0 if tensor.residuals is None else tensor.residuals.size for tensor in coded)
