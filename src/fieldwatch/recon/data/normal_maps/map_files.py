"""Lossless reading and writing of normals, masks and depth as 16-bit PNG, EXR and npy.

Pillow truncates 16-bit color to 8 bits, so PNG and EXR are read and written with FFmpeg, which is exact.
"""

from fractions import Fraction
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
_WHITE_16 = 65535.0
_PNG16 = {"rgb48be", "rgb48le", "rgba64be", "rgba64le"}
_PLANES = {  # pixel formats of FFmpeg's EXR decoder: value type, and the planes of R, G, B (or of a single channel)
    "gbrpf32le": ("<f4", (2, 0, 1)),
    "gbrapf32le": ("<f4", (2, 0, 1)),
    "gbrpf16le": ("<f2", (2, 0, 1)),
    "gbrapf16le": ("<f2", (2, 0, 1)),
    "grayf32le": ("<f4", (0,)),
    "grayf16le": ("<f2", (0,)),
}


def read_normal_file(path: Path) -> Float32[Tensor, "h w 3"]:
    """Read a normal map with the axes and vector lengths of the file; missing normals are 0.

    A 16-bit PNG encodes `n = p / 65535 * 2 - 1`; black pixels have no normal. Non-finite vectors become 0.

    Raises:
        NormalMapError: if the file is missing, unreadable, or has another format, shape or type, such as JPEG or 8 bit.
    """
    _check_present(path)
    if path.suffix.lower() not in NORMAL_SUFFIXES:
        msg = (
            f"{path}: expected a normal map as a 16-bit PNG, EXR or npy file, got {path.suffix or 'no suffix'}: a "
            "photo holds no normals, so estimate them from it first and write them in one of these formats"
        )
        raise NormalMapError(msg)
    values = _png_normals(path) if path.suffix.lower() == ".png" else _floats(path)
    if values.ndim != 3 or values.shape[2] < 3:
        msg = f"{path}: expected a normal map of shape (height, width, 3), got {values.shape}"
        raise NormalMapError(msg)
    normals = torch.from_numpy(np.ascontiguousarray(values[..., :3], np.float32))
    finite = torch.isfinite(normals).all(-1, keepdim=True)
    return torch.where(finite, normals, torch.zeros_like(normals))


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


def _png_normals(path: Path) -> NDArray[np.float32]:
    frame = _decoded(path, "png")
    if frame.format.name not in _PNG16:
        msg = (
            f"{path} is a PNG in format {frame.format.name}, which rounds normals to half a degree or has no color: "
            "write 16-bit RGB (n = p / 65535 * 2 - 1), EXR or npy"
        )
        raise NormalMapError(msg)
    # An alpha channel is ignored; missing normals are marked by color.
    values = frame.to_ndarray(format=frame.format.name)[..., :3]
    normals = (values.astype(np.float64) / _WHITE_16 * 2 - 1).astype(np.float32)
    # Black would decode to (-1, -1, -1), which is not a unit vector.
    normals[(values == 0).all(-1)] = 0
    # Some datasets mark missing normals by mid-gray.
    normals[np.square(normals).sum(-1) < 1e-6] = 0
    return normals


def _floats(path: Path) -> NDArray[np.floating]:
    if path.suffix.lower() != ".exr":
        values = _npy(path)
        if not np.issubdtype(values.dtype, np.floating):
            msg = f"{path}: expected float32 values, got {values.dtype}: write floats, in the units of the layout"
            raise NormalMapError(msg)
        return values.astype(np.float32)
    frame = _decoded(path, "exr")
    if frame.format.name not in _PLANES:
        msg = (
            f"{path} is an EXR in unsupported format {frame.format.name}: write channels R, G, B (or a single one) as "
            "float or half, or write npy"
        )
        raise NormalMapError(msg)
    dtype, plane_order = _PLANES[frame.format.name]
    # Rows of FFmpeg's planes may be padded beyond the image width.
    planes = [np.frombuffer(bytes(plane), dtype).reshape(frame.height, -1)[:, : frame.width] for plane in frame.planes]
    return np.stack([planes[plane_index] for plane_index in plane_order], -1).astype(np.float32)


def _npy(path: Path) -> NDArray[np.generic]:
    _check_present(path)
    try:
        return read_npy(path, largest=_MAX_BYTES)
    except (ArrayFileError, OSError) as error:
        raise _unreadable(path, error) from error


def _decoded(path: Path, codec: str) -> av.VideoFrame:
    _check_present(path)
    context = cast("av.VideoCodecContext", av.CodecContext.create(codec, "r"))
    context.options = {"max_pixels": str(_MAX_PIXELS)}  # checked by FFmpeg before it allocates the image
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
        msg = f"{path} does not exist: add the file, or leave its view out (exclude)"
        raise NormalMapError(msg)
    if pointer := pointer_text(path):
        raise NormalMapError(pointer)


def _unreadable(path: Path, reason: object) -> NormalMapError:
    return NormalMapError(
        f"{path} cannot be read ({reason}): write it again, normals as 16-bit RGB PNG, npy, or EXR with channels R, G, "
        "B, masks as PNG, depth as npy"
    )
