"""Lossless reading and writing of normals, masks and depth as 16-bit PNG, EXR and npy.

Pillow truncates 16-bit color to 8 bits, so PNG and EXR are read and written with FFmpeg, which is exact.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import cast

import av
import numpy as np
import torch
from av.error import FFmpegError
from jaxtyping import Bool, Float32, UInt16
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fieldwatch.files import ArrayFileError, UndecodableError, decoding, read_npy, write_file
from fieldwatch.recon.data.git_lfs import pointer_text
from fieldwatch.recon.data.normal_maps.error import NormalMapError

NORMAL_SUFFIXES = frozenset({".png", ".npy", ".exr"})
MASK_SUFFIXES = frozenset({".png", ".npy"})
DEPTH_SUFFIXES = frozenset({".npy", ".exr"})

# Limits keep a damaged header from allocating all memory.
_MAX_PIXELS = 1 << 27  # 11,585 x 11,585
_MAX_BYTES = 8 * 3 * _MAX_PIXELS  # normals as float64
_WHITE_16 = 65535
_WHITE_8 = 255
_PNG16 = {"rgb48be", "rgb48le", "rgba64be", "rgba64le"}
_PNG8 = {"rgb24", "rgba"}
_PLANES = {  # pixel formats of FFmpeg's EXR decoder: value type, and the planes of R, G, B (or of a single channel)
    "gbrpf32le": ("<f4", (2, 0, 1)),
    "gbrapf32le": ("<f4", (2, 0, 1)),
    "gbrpf16le": ("<f2", (2, 0, 1)),
    "gbrapf16le": ("<f2", (2, 0, 1)),
    "grayf32le": ("<f4", (0,)),
    "grayf16le": ("<f2", (0,)),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalFile:
    """Contents of a normal map file, with the axes, the order of channels and the vector lengths of the file.

    Attributes:
        values: vectors; 0 where there is none or where they are not finite.
        not_finite: pixels with NaN or infinite values.
        encoding: format and bits, such as ``16-bit PNG``.
        bits: bits per component: 8, 16 or 32.
    """

    values: Float32[Tensor, "h w 3"]
    not_finite: Bool[Tensor, "h w"]
    encoding: str
    bits: int


def read_normal_file(path: Path) -> Float32[Tensor, "h w 3"]:
    """Read a normal map with the axes and vector lengths of the file; missing normals are 0.

    PNG of 8 or 16 bits encodes `n = p / white * 2 - 1`; black pixels have no normal. Non-finite vectors become 0. See
    `load_normal_file`.

    Raises:
        NormalMapError: if the file is missing, unreadable, or has another format, shape or type, such as JPEG.
    """
    return load_normal_file(path).values


def load_normal_file(path: Path) -> NormalFile:
    """Read a normal map and what is known about its encoding.

    PNG of 8 or 16 bits encodes `n = p / white * 2 - 1`; black, mid-gray and transparent pixels have no normal. Floats
    (npy, EXR) hold the vectors, or `(n + 1) / 2` if only that gives unit lengths; npy of shape (3, height, width) is
    transposed. Of an EXR with several layers, whatever their names, the one with unit vectors is read.

    Raises:
        NormalMapError: if the file is missing, unreadable, or has another format, shape or type, such as JPEG.
    """
    _check_present(path)
    suffix = path.suffix.lower()
    if suffix not in NORMAL_SUFFIXES:
        msg = (
            f"{path}: expected a normal map as a PNG, EXR or npy file, got {path.suffix or 'no suffix'}: a "
            "photo holds no normals, so estimate them from it first and write them in one of these formats"
        )
        raise NormalMapError(msg)
    if suffix == ".png":
        values, bits = _png_normals(path)
        encoding = f"{bits}-bit PNG"
    elif suffix == ".exr":
        values, encoding = _exr_normals(path)
        bits = 16 if "half" in encoding else 32
    else:
        values, bits = _npy_normals(path)
        encoding = "npy" if bits == 32 else f"npy of {bits} bits"
    if values.ndim != 3 or values.shape[2] < 3:
        msg = f"{path}: expected a normal map of shape (height, width, 3), got {values.shape}"
        raise NormalMapError(msg)
    normals = torch.from_numpy(np.ascontiguousarray(values[..., :3], np.float32))
    finite = torch.isfinite(normals).all(-1)
    return NormalFile(
        values=torch.where(finite[..., None], normals, torch.zeros_like(normals)),
        not_finite=~finite,
        encoding=encoding,
        bits=bits,
    )


def read_mask_file(path: Path) -> Bool[Tensor, "h w"]:
    """Read a mask: True where the first channel is above half of white.

    Raises:
        NormalMapError: if the file is missing, unreadable, or not a mask.
    """
    if path.suffix.lower() == ".npy":
        values = _npy(path)
        # uint8 masks may use either 1 or 255 for the object.
        white = 255 if values.dtype == np.uint8 and values.size and values.max() > 1 else 1
        return _single_channel(values, path, "mask") > 0.5 * white
    try:
        with decoding(), Image.open(path) as image:
            is_16_bit = image.mode.startswith("I")
            values = np.asarray(image if is_16_bit or image.mode == "L" else image.convert("RGB").getchannel("R"))
    except UndecodableError as error:
        raise _unreadable(path, error) from error
    return _single_channel(values, path, "mask") > 0.5 * (_WHITE_16 if is_16_bit else 255.0)


def read_depth_file(path: Path) -> Float32[Tensor, "h w"]:
    """Read a depth map; values that are not finite or not positive become 0 (unknown).

    Raises:
        NormalMapError: if the file is missing, unreadable, or has another shape.
    """
    depth = _single_channel(_floats(path), path, "depth").float()
    known = torch.isfinite(depth) & (depth > 0)
    return torch.where(known, depth, torch.zeros_like(depth))


_SEEN = 1e-6  # squared length above which a float vector is no background
_OFF = 0.1  # deviation from length 1 above which vectors are not unit vectors
_EXR_MAGIC = 20000630
_EXR_HEAD = 1 << 16  # bytes in which the list of channels is expected


def encode_normals(normals: Float32[Tensor, "h w 3"]) -> UInt16[np.ndarray, "h w 3"]:
    """Encode normals as `round((n + 1) / 2 * 65535)`; missing normals are black."""
    values = np.rint((normals.double().numpy().clip(-1, 1) + 1) / 2 * _WHITE_16).astype(np.uint16)
    # A zero vector would become mid-gray, which decodes to a tiny vector instead of 0.
    values[~(normals.square().sum(-1) > 0).numpy()] = 0
    return values


def write_png16(path: Path, values: UInt16[np.ndarray, "h w 3"]) -> None:
    """Write a PNG with 16 bits per channel."""
    codec = cast("av.VideoCodecContext", av.CodecContext.create("png", "w"))
    codec.height, codec.width = values.shape[:2]
    codec.pix_fmt = "rgb48be"
    # FFmpeg's encoders do not open without a time base, even for a single image.
    codec.time_base = Fraction(1, 1)
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(values), format="rgb48be")
    frame.pts = 0
    packets = [*codec.encode(frame), *codec.encode(None)]
    write_file(path, b"".join(bytes(packet) for packet in packets))


def _png_normals(path: Path) -> tuple[NDArray[np.float32], int]:
    """Return the vectors of a PNG and its bits per component."""
    frame = _decoded(path, "png")
    form = frame.format.name
    if form not in _PNG16 | _PNG8:
        msg = (
            f"{path} is a PNG in format {form}, which has no color: normals need three channels (n = p / 255 * 2 - 1); "
            "write RGB of 8 or 16 bits, EXR or npy"
        )
        raise NormalMapError(msg)
    bits = 16 if form in _PNG16 else 8
    pixels = frame.to_ndarray(format=form)
    values = pixels[..., :3]
    normals = _decoding(bits)[values.astype(np.intp)]
    # Black would decode to (-1, -1, -1), which is not a unit vector.
    missing = (values == 0).all(-1)
    # The alpha of 16-bit files is ignored, as it always was; editors write transparent pixels with any color.
    if bits == 8 and pixels.shape[-1] == 4:
        missing |= pixels[..., 3] == 0
    normals[missing] = 0
    # Some datasets mark missing normals by mid-gray, which 8 bits round to +-1/255.
    normals[np.square(normals).sum(-1) < (1e-6 if bits == 16 else 1e-4)] = 0
    return normals, bits


@cache
def _decoding(bits: int) -> NDArray[np.float32]:
    """Return the component that each value of a PNG stands for."""
    white = _WHITE_16 if bits == 16 else _WHITE_8
    return (np.arange(white + 1, dtype=np.float64) / white * 2 - 1).astype(np.float32)


def _npy_normals(path: Path) -> tuple[NDArray[np.float32], int]:
    """Return the vectors of an npy file, and the bits of its type."""
    values = _npy(path)
    if values.ndim == 3 and values.shape[0] == 3 and values.shape[2] != 3:
        values = np.moveaxis(values, 0, 2)
    if values.dtype in (np.uint8, np.uint16):
        white = float(np.iinfo(values.dtype).max)
        normals = (values.astype(np.float64) / white * 2 - 1).astype(np.float32)
        normals[(values == 0).all(-1)] = 0
        return normals, values.dtype.itemsize * 8
    if not np.issubdtype(values.dtype, np.floating):
        msg = f"{path}: expected float32 values, got {values.dtype}: write floats, in the units of the layout"
        raise NormalMapError(msg)
    return _unpacked(values.astype(np.float32)), 16 if values.dtype.itemsize == 2 else 32


def _unpacked(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors; those written as (n + 1) / 2 are decoded if only that gives them length 1."""
    finite = values[np.isfinite(values).all(-1)] if values.ndim == 3 else values[:0]
    seen = finite[np.square(finite).sum(-1) > _SEEN] if len(finite) else finite
    if not len(seen) or float(seen.min()) < 0 or float(seen.max()) > 1:
        return values
    off = float(np.median(np.abs(np.linalg.norm(seen, axis=-1) - 1)))
    off_decoded = float(np.median(np.abs(np.linalg.norm(2 * seen - 1, axis=-1) - 1)))
    if off < _OFF or off_decoded > _OFF:
        return values
    decoded = 2 * values - 1
    decoded[(values == 0).all(-1)] = 0
    return decoded


def _exr_normals(path: Path) -> tuple[NDArray[np.float32], str]:
    """Return the vectors of an EXR, from the layer that holds unit vectors, and a description.

    Raises:
        NormalMapError: if no layer, or more than one, holds vectors of three components.
    """
    layers = exr_layers(path)
    candidates = [name for name, channels in layers.items() if _is_vector(channels)]
    if not candidates:
        listed = "; ".join(f"{name or '(no layer)'}: {', '.join(channels)}" for name, channels in layers.items())
        msg = (
            f"{path} has no layer with channels R, G, B or X, Y, Z (found {listed or 'no channels'}): write the pass "
            "of normals with three channels, or write npy"
        )
        raise NormalMapError(msg)
    if len(candidates) == 1:
        chosen = candidates[0]
        values = _exr_planes(path, chosen)
    else:
        planes = {name: _exr_planes(path, name) for name in candidates}
        unit = [name for name in candidates if _are_unit(_unpacked(planes[name][..., :3].astype(np.float32)))]
        # Of several layers with unit vectors, such as shading and geometric normals, the name decides.
        named = [name for name in unit or candidates if "norm" in name.lower()]
        chosen_from = named if len(named) == 1 else unit
        if len(chosen_from) != 1:
            msg = (
                f"{path} has {len(unit)} layers of unit vectors among {', '.join(candidates)}: expected one layer of "
                "normals; write it to a file of its own, or name it Normal"
            )
            raise NormalMapError(msg)
        chosen = chosen_from[0]
        values = planes[chosen]
    kind = "half" if values.dtype == np.float16 else "float"
    named = f", layer {chosen}" if chosen else ""
    return _unpacked(values.astype(np.float32)), f"EXR ({kind}{named})"


def _is_vector(channels: tuple[str, ...]) -> bool:
    return {"R", "G", "B"} <= set(channels) or {"X", "Y", "Z"} <= set(channels)


def _are_unit(values: NDArray[np.float32]) -> bool:
    lengths = np.linalg.norm(values[np.isfinite(values).all(-1)], axis=-1)
    seen = lengths[lengths > _OFF]
    return len(seen) > 0 and float(np.median(np.abs(seen - 1))) < _OFF


def exr_layers(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the channels of an EXR by layer, in capitals; channels without a layer are those of the layer ''.

    Raises:
        NormalMapError: if the header cannot be read.
    """
    _check_present(path)
    with path.open("rb") as file:
        head = file.read(_EXR_HEAD)
    try:
        names = _exr_channels(head)
    except (IndexError, struct.error, ValueError) as error:
        raise _unreadable(path, f"its header is not that of an EXR: {error}") from error
    layers: dict[str, tuple[str, ...]] = {}
    for name in names:
        layer, _, channel = name.rpartition(".")
        layers[layer] = (*layers.get(layer, ()), channel.upper())
    return layers


def _exr_channels(head: bytes) -> list[str]:
    """Return the names of the channels of the first part (OpenEXR file layout: attributes of name, type, size)."""
    if struct.unpack_from("<I", head)[0] != _EXR_MAGIC:
        msg = "it does not begin with the magic number"
        raise ValueError(msg)
    place = 8
    while head[place]:
        name, place = _text(head, place)
        _, place = _text(head, place)
        (size,) = struct.unpack_from("<i", head, place)
        place += 4
        if name == "channels":
            end = place + size
            names = []
            while place < end and head[place]:
                channel, place = _text(head, place)
                names.append(channel)
                place += 16  # pixel type, linearity, sampling in x and y
            return names
        place += size
    return []


def _text(data: bytes, place: int) -> tuple[str, int]:
    end = data.index(b"\0", place)
    return data[place:end].decode(), end + 1


def write_exr(path: Path, channels: Mapping[str, Float32[np.ndarray, "h w"]]) -> None:
    """Write an uncompressed EXR of 32-bit floats with channels of any names, such as ``ViewLayer.Normal.X``.

    Args:
        path: file.
        channels: planes of equal size by the full name of the channel.

    Raises:
        OSError: the file cannot be written.
    """
    names = sorted(channels)
    height, width = channels[names[0]].shape
    window = struct.pack("<4i", 0, 0, width - 1, height - 1)
    listed = b"".join(name.encode() + b"\0" + struct.pack("<iB3xii", 2, 0, 1, 1) for name in names) + b"\0"
    attributes = (
        ("channels", "chlist", listed),
        ("compression", "compression", b"\0"),
        ("dataWindow", "box2i", window),
        ("displayWindow", "box2i", window),
        ("lineOrder", "lineOrder", b"\0"),
        ("pixelAspectRatio", "float", struct.pack("<f", 1.0)),
        ("screenWindowCenter", "v2f", struct.pack("<2f", 0.0, 0.0)),
        ("screenWindowWidth", "float", struct.pack("<f", 1.0)),
    )
    # Bit 10 of the version allows names of channels longer than 31 bytes.
    version = 2 | (0x400 if max(map(len, names)) > 31 else 0)
    head = struct.pack("<II", _EXR_MAGIC, version)
    for name, kind, value in attributes:
        head += name.encode() + b"\0" + kind.encode() + b"\0" + struct.pack("<i", len(value)) + value
    head += b"\0"
    size = 8 + 4 * width * len(names)
    first = len(head) + 8 * height
    offsets = struct.pack(f"<{height}Q", *(first + row * size for row in range(height)))
    planes = np.stack([np.asarray(channels[name], "<f4") for name in names], 1)
    rows = [struct.pack("<ii", row, 4 * width * len(names)) + planes[row].tobytes() for row in range(height)]
    write_file(path, head + offsets + b"".join(rows))


def _floats(path: Path) -> NDArray[np.floating]:
    if path.suffix.lower() != ".exr":
        values = _npy(path)
        if not np.issubdtype(values.dtype, np.floating):
            msg = f"{path}: expected float32 values, got {values.dtype}: write floats, in the units of the layout"
            raise NormalMapError(msg)
        return values.astype(np.float32)
    layers = exr_layers(path)
    # A depth pass: the layer named so, or the only one.
    named = [name for name in layers if "depth" in name.lower()]
    return _exr_planes(path, named[0] if len(named) == 1 else "").astype(np.float32)


def _exr_planes(path: Path, layer: str) -> NDArray[np.float16] | NDArray[np.float32]:
    """Return the planes of a layer of an EXR."""
    frame = _decoded(path, "exr", {"layer": layer} if layer else {})
    if frame.format.name not in _PLANES:
        msg = (
            f"{path} is an EXR in unsupported format {frame.format.name}: write channels R, G, B (or a single one) as "
            "float or half, or write npy"
        )
        raise NormalMapError(msg)
    dtype, plane_order = _PLANES[frame.format.name]
    # Rows of FFmpeg's planes may be padded beyond the image width.
    planes = [np.frombuffer(bytes(plane), dtype).reshape(frame.height, -1)[:, : frame.width] for plane in frame.planes]
    return np.stack([planes[plane_index] for plane_index in plane_order], -1)


def _npy(path: Path) -> NDArray[np.generic]:
    _check_present(path)
    try:
        return read_npy(path, largest=_MAX_BYTES)
    except (ArrayFileError, OSError) as error:
        raise _unreadable(path, error) from error


def _decoded(path: Path, codec: str, options: Mapping[str, str] | None = None) -> av.VideoFrame:
    _check_present(path)
    context = cast("av.VideoCodecContext", av.CodecContext.create(codec, "r"))
    context.options = {
        "max_pixels": str(_MAX_PIXELS),
        **(options or {}),
    }  # checked by FFmpeg before it allocates the image
    try:
        # Decoding None flushes frames that the decoder buffers.
        frames = [*context.decode(av.Packet(path.read_bytes())), *context.decode(None)]
    except (FFmpegError, ValueError) as error:
        raise _unreadable(path, error) from error
    frame = frames[0] if frames else None
    if not isinstance(frame, av.VideoFrame):
        raise _unreadable(path, "it contains no image")
    return frame


def _single_channel(values: NDArray[np.generic], path: Path, what: str) -> Tensor:
    """Return a map of shape (height, width); a channel axis of length 1 is removed.

    Raises:
        NormalMapError: if the array has another shape or is not numeric.
    """
    flat = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
    if flat.ndim != 2 or not (np.issubdtype(flat.dtype, np.number) or flat.dtype == np.bool_):
        msg = f"{path}: expected a {what} of shape (height, width), got shape {values.shape} of {values.dtype}"
        raise NormalMapError(msg)
    return torch.from_numpy(flat.astype(np.float64))


def _check_present(path: Path) -> None:
    if not path.is_file():
        msg = f"{path} does not exist: add the file, or leave its view out with --exclude"
        raise NormalMapError(msg)
    if pointer := pointer_text(path):
        raise NormalMapError(pointer)


def _unreadable(path: Path, reason: object) -> NormalMapError:
    return NormalMapError(
        f"{path} cannot be read ({reason}): write it again, normals as 16-bit RGB PNG, npy, or EXR with channels R, G, "
        "B, masks as PNG, depth as npy"
    )
