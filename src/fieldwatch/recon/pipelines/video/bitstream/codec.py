"""A trained video model as one small file: quantised, range coded, checksummed, with every byte accounted for."""

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
    """What to spend the bits on.

    Attributes:
        bits: weights, 1 to 12.
        embedding_bits: embeddings of the frames, 1 to 12.
        by_prefix: weights whose name starts with a key take its bits instead; the longest key that fits wins.
        with_clip_head: False leaves the tensors named "clip_head...." out: pixels only.
    """

    bits: int = 8
    embedding_bits: int = 8
    by_prefix: Mapping[str, int] = field(default_factory=dict)
    with_clip_head: bool = True

    def __post_init__(self) -> None:
        """Refuse alphabets that the coder does not hold."""
        named = {"bits": self.bits, "embedding_bits": self.embedding_bits}
        for name, bits in (named | {f"by_prefix[{key!r}]": value for key, value in self.by_prefix.items()}).items():
            if not 1 <= bits <= 12:
                raise InputError(f"{name} is {bits}, wanted 1 to 12 bits (8 is the default, 6 is visible)")

    def of(self, name: str) -> int:
        """Bits of the weight with this name in the state dict."""
        fitting = [prefix for prefix in self.by_prefix if name.startswith(prefix)]
        return self.by_prefix[max(fitting, key=len)] if fitting else self.bits


@dataclass(frozen=True, kw_only=True)
class WrittenBitstream:
    """A file that was written.

    Attributes:
        path: where it stands.
        bytes: its size.
        bpp: bits per pixel of the video: 8 * bytes / (height * width * frames).
        symbols: quantised values in it.
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
        config: what rebuilds the model, as it was given to `write_bitstream`.
        state: dequantised weights by their names in the state dict, without the encoder's.
        embeddings: dequantised code per frame, for models that draw from them.
        with_clip_head: the CLIP head's weights are among `state`.
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
    """Write a model as one file, whole or not at all.

    Args:
        path: where to; its folder is made.
        state: the model's state dict. With `embeddings`, tensors named "encoder...." stay out.
        config: JSON values that rebuild the model. `config["geometry"]` gives frames, height and width.
        embeddings: code per frame, from the encoder (hnerv).
        options: bits per symbol, and whether the CLIP head is stored; None means 8 bits everywhere, stored.

    Raises:
        ValueError: a tensor is not finite, or the geometry is missing.
    """
    pixels = _pixels(config)
    options = options or CodecOptions()
    omitted = (*(() if embeddings is None else (ENCODER,)), *(() if options.with_clip_head else (CLIP_HEAD,)))
    stored = {name: tensor for name, tensor in state.items() if not name.startswith(omitted or ("\0",))}
    coded = [code_tensor(name, tensor, options.of(name)) for name, tensor in stored.items()]
    if embeddings is not None:
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
    """Read, verify and dequantise a file.

    Raises:
        BitstreamError: the file is something else, from a newer layout, truncated or changed.
    """
    sections, sizes = read_sections(Path(path))
    tables = memoryview(sections.tables)
    reader = SymbolReader(sections.payload)
    state: dict[str, Tensor] = {}
    for entry in sections.header["tensors"]:
        # In the order of writing: tables and symbols have no places of their own in the file.
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
    """Bytes per part of a file, which sum to its size: preamble, header, tables, payload per tensor, checksum."""
    sections, sizes = read_sections(Path(path))
    return _breakdown(sizes, sections.header["tensors"])


def _breakdown(sizes: SectionSizes, entries: list[dict[str, Any]]) -> dict[str, int]:
    payload = {f"payload/{entry['name']}": entry["bytes"] for entry in entries if "bytes" in entry}
    if sum(payload.values()) != sizes.payload:
        msg = f"the tensors account for {sum(payload.values())} bytes of a payload of {sizes.payload}: write it again"
        raise BitstreamError(msg)
    parts = {"preamble": sizes.preamble, "header": sizes.header, "tables": sizes.tables}
    return parts | payload | {"checksum": sizes.checksum}


def _pixels(config: Mapping[str, Any]) -> int:
    geometry = config.get("geometry")
    if not isinstance(geometry, Mapping) or not {"frames", "height", "width"} <= geometry.keys():
        msg = f"config has no geometry with frames, height and width, only {sorted(config)}: bits per pixel need them"
        raise InputError(msg)
    return geometry["frames"] * geometry["height"] * geometry["width"]


def _count(coded: list[CodedTensor]) -> int:
    return sum(0 if tensor.residuals is None else tensor.residuals.size for tensor in coded)
