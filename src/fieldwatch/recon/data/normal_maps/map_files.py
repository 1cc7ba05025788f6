"""Files of normals, masks and depth: 16-bit PNG, EXR and npy, decoded without losing a bit.

Pillow cuts 16-bit colour to 8 bits, so PNG and EXR go through FFmpeg, which reads and writes them exactly.
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

_MOST_PIXELS = 1 << 27  # of a map: 11,585 x 11,585
_LARGEST = 8 * 3 * _MOST_PIXELS  # bytes, as normals of float64
_FULL = 65535.0
_PNG16 = {"rgb48be", "rgb48le", "rgba64be", "rgba64le"}
_PLANES = {  # what FFmpeg decodes EXR into: type of a value, and the plane of each channel
    "gbrpf32le": ("<f4", (2, 0, 1)),
    "gbrapf32le": ("<f4", (2, 0, 1)),
    "gbrpf16le": ("<f2", (2, 0, 1)),
    "gbrapf16le": ("<f2", (2, 0, 1)),
    "grayf32le": ("<f4", (0,)),
    "grayf16le": ("<f2", (0,)),
}


def read_normal_file(path: Path) -> Float32[Tensor, "h w 3"]:
    """Return the vectors of a file of normals, in the file's axes and of the file's lengths; 0 where it has none.

    A 16-bit PNG holds `n = p / 65535 * 2 - 1`; a black pixel holds no normal. What is not finite becomes 0.

    Raises:
        NormalMapError: missing, unreadable, of another shape or type; 8-bit pictures are refused.
    """
    values = _png_normals(path) if path.suffix.lower() == ".png" else _floats(path)
    if values.ndim != 3 or values.shape[2] < 3:
        msg = f"{path} holds values of shape {values.shape}: a map of normals has height x width x 3"
        raise NormalMapError(msg)
    normals = torch.from_numpy(np.ascontiguousarray(values[..., :3], np.float32))
    finite = torch.isfinite(normals).all(-1, keepdim=True)
    return torch.where(finite, normals, torch.zeros_like(normals))


def read_mask_file(path: Path) -> Bool[Tensor, "h w"]:
    """Return a mask: true above half of white; the first channel counts.

    Raises:
        NormalMapError: missing or unreadable, or an array that is no mask.
    """
    if path.suffix.lower() == ".npy":
        values = _npy(path)
        whole = 255 if values.dtype == np.uint8 and values.size and values.max() > 1 else 1
        return _flat(values, path, "mask") > 0.5 * whole
    try:
        with decoding(), Image.open(path) as image:
            wide = image.mode.startswith("I")
            values = np.asarray(image if wide or image.mode == "L" else image.convert("RGB").getchannel("R"))
    except UndecodableError as error:
        raise _unreadable(path, error) from error
    return _flat(values, path, "mask") > 0.5 * (_FULL if wide else 255.0)


def read_depth_file(path: Path) -> Float32[Tensor, "h w"]:
    """Return a map of depth; what is not finite or not above 0 becomes 0 (unknown).

    Raises:
        NormalMapError: missing, unreadable, or of another shape.
    """
    depth = _flat(_floats(path), path, "depth").float()
    known = torch.isfinite(depth) & (depth > 0)
    return torch.where(known, depth, torch.zeros_like(depth))


def encode_normals(normals: Float32[Tensor, "h w 3"]) -> UInt16[np.ndarray, "h w 3"]:
    """Return `round((n + 1) / 2 * 65535)`; black where there is no normal."""
    values = np.rint((normals.double().numpy().clip(-1, 1) + 1) / 2 * _FULL).astype(np.uint16)
    values[~(normals.square().sum(-1) > 0).numpy()] = 0
    return values


def write_png16(path: Path, values: UInt16[np.ndarray, "h w 3"]) -> None:
    """Write a PNG of 16 bits per channel."""
    codec = cast("av.VideoCodecContext", av.CodecContext.create("png", "w"))
    codec.height, codec.width = values.shape[:2]
    codec.pix_fmt = "rgb48be"
    codec.time_base = Fraction(1, 1)
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(values), format="rgb48be")
    frame.pts = 0
    packets = [*codec.encode(frame), *codec.encode(None)]
    write_file(path, b"".join(bytes(packet) for packet in packets))


def _png_normals(path: Path) -> NDArray[np.float32]:
    frame = _decoded(path, "png")
    if frame.format.name not in _PNG16:
        msg = (
            f"{path} is a PNG of {frame.format.name}, which rounds normals to half a degree or has no colour: write "
            "16-bit RGB (n = p / 65535 * 2 - 1), EXR or npy"
        )
        raise NormalMapError(msg)
    values = frame.to_ndarray(format=frame.format.name)[..., :3]
    normals = (values.astype(np.float64) / _FULL * 2 - 1).astype(np.float32)
    normals[(values == 0).all(-1)] = 0
    # grey, half of white, is no normal in other people's files
    normals[np.square(normals).sum(-1) < 1e-6] = 0
    return normals


def _floats(path: Path) -> NDArray[np.floating]:
    if path.suffix.lower() != ".exr":
        values = _npy(path)
        if not np.issubdtype(values.dtype, np.floating):
            msg = f"{path} holds {values.dtype}: write floats (float32), in the units of the layout"
            raise NormalMapError(msg)
        return values.astype(np.float32)
    frame = _decoded(path, "exr")
    if frame.format.name not in _PLANES:
        msg = f"{path} is an EXR of {frame.format.name}: write its channels R, G, B (or one) as float or half, or npy"
        raise NormalMapError(msg)
    kind, order = _PLANES[frame.format.name]
    planes = [np.frombuffer(bytes(plane), kind).reshape(frame.height, -1)[:, : frame.width] for plane in frame.planes]
    return np.stack([planes[place] for place in order], -1).astype(np.float32)


def _npy(path: Path) -> NDArray[np.generic]:
    _present(path)
    try:
        return read_npy(path, largest=_LARGEST)
    except (ArrayFileError, OSError) as error:
        raise _unreadable(path, error) from error


def _decoded(path: Path, codec: str) -> av.VideoFrame:
    _present(path)
    context = cast("av.VideoCodecContext", av.CodecContext.create(codec, "r"))
    context.options = {"max_pixels": str(_MOST_PIXELS)}  # FFmpeg looks at the header before it allocates
    try:
        frames = [*context.decode(av.Packet(path.read_bytes())), *context.decode(None)]
    except (FFmpegError, ValueError) as error:
        raise _unreadable(path, error) from error
    frame = frames[0] if frames else None
    if not isinstance(frame, av.VideoFrame):
        raise _unreadable(path, "no picture in it")
    return frame


def _flat(values: NDArray[np.generic], path: Path, what: str) -> Tensor:
    """Return height x width; one channel is taken out of its axis."""
    flat = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
    if flat.ndim != 2 or not (np.issubdtype(flat.dtype, np.number) or flat.dtype == np.bool_):
        msg = f"{path} holds {values.dtype} of shape {values.shape}: a {what} has height x width numbers"
        raise NormalMapError(msg)
    return torch.from_numpy(flat.astype(np.float64))


def _present(path: Path) -> None:
    if not path.is_file():
        msg = f"{path} does not exist: put the file there, or leave its view out (exclude)"
        raise NormalMapError(msg)
    if pointer := pointer_text(path):
        raise NormalMapError(pointer)


def _unreadable(path: Path, reason: object) -> NormalMapError:
    return NormalMapError(
        f"{path} cannot be read ({reason}): write it again; normals as 16-bit RGB PNG, npy, or EXR with channels R, G, "
        "B, masks as PNG, depth as npy"
    )
