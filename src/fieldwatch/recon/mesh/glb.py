"""Meshes as GLB, the binary form of glTF 2.0: one file that viewers and game engines open, with its texture inside.

Source: Khronos Group, glTF 2.0 Specification (2021), and its extension KHR_materials_unlit.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from jaxtyping import Float64, Int64, UInt8, UInt16

from fieldwatch import InputError
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.pictures import png_bytes
from fieldwatch.recon.mesh.triangles import Triangles

MAGIC = b"glTF"
VERSION = 2
JSON_CHUNK = 0x4E4F534A
BINARY_CHUNK = 0x004E4942
FLOAT = 5126
UNSIGNED_INT = 5125
UNSIGNED_SHORT = 5123
_VERTICES = 34962
_INDICES = 34963
_CLAMPED = 33071
_REPEATED = 10497
_LINEAR = 9729
_CLAY = (0.75, 0.75, 0.75, 1.0)


@dataclass
class _Binary:
    """The binary chunk, and what the JSON chunk says about it."""

    data: bytearray = field(default_factory=bytearray)
    views: list[dict[str, int]] = field(default_factory=list)
    accessors: list[dict[str, Any]] = field(default_factory=list)

    def view(self, data: bytes, **more: int) -> int:
        """Append bytes; returns the number of their buffer view."""
        self.views.append({"buffer": 0, "byteOffset": len(self.data), "byteLength": len(data), **more})
        self.data += data + bytes(-len(data) % 4)
        return len(self.views) - 1

    def accessor(self, values: np.ndarray, kind: int, target: int, **more: Any) -> int:
        """Append numbers, a row each; returns the number of their accessor."""
        shape = "SCALAR" if values.ndim == 1 else f"VEC{values.shape[1]}"
        view = self.view(values.tobytes(), target=target)
        about = {"bufferView": view, "componentType": kind, "count": len(values), "type": shape}
        self.accessors.append(about | more)
        return len(self.accessors) - 1


def write_glb(mesh: Triangles, *, up: Sequence[float] = (0.0, 1.0, 0.0)) -> bytes:
    """Return a mesh as GLB: places, normals, and its texture, or else the colours of its vertices.

    A vertex on a seam of the texture is written once for every place it has in the picture; places are rounded to
    single precision, which is all that glTF has. The v axis is turned (glTF's runs downwards), and colours of vertices
    are made linear, as glTF wants them. Pictures and colours show light already, so they are marked as unlit; a mesh
    with neither is a lit grey. Faces are seen from both sides.

    Args:
        mesh: with `texture` and `uvs`, with `colours`, or bare.
        up: the scene's upward direction, of any length. Viewers take +y as up: for another direction the shortest
            rotation to +y is written beside the places, which stay as they are. Who reads the file gets rotated places.

    Raises:
        MeshError: the mesh has no faces, or places beyond single precision.
        ValueError: `up` has no direction.
    """
    if not len(mesh.faces):
        raise MeshError("the mesh has no faces: a GLB file cannot hold it; what made it found no surface")
    rows, places, faces = _split_at_seams(mesh)
    if (farthest := np.abs(mesh.vertices).max()) > np.finfo(np.float32).max:
        msg = f"places run up to {farthest:g}: GLB holds up to 3e38; scale the mesh down"
        raise MeshError(msg)
    positions = mesh.vertices[rows].astype("<f4")
    binary = _Binary()
    limits = {"min": positions.min(0).tolist(), "max": positions.max(0).tolist()}
    attributes = {
        "POSITION": binary.accessor(positions, FLOAT, _VERTICES, **limits),
        "NORMAL": binary.accessor(vertex_normals(mesh)[rows].astype("<f4"), FLOAT, _VERTICES),
    }
    if mesh.texture is not None:
        attributes["TEXCOORD_0"] = binary.accessor(places.astype("<f4"), FLOAT, _VERTICES)
    elif mesh.colours is not None:
        colours = linear_colours(mesh.colours[rows])
        attributes["COLOR_0"] = binary.accessor(colours, UNSIGNED_SHORT, _VERTICES, normalized=True)
    indices = binary.accessor(faces.reshape(-1).astype("<u4"), UNSIGNED_INT, _INDICES)
    primitive = {"attributes": attributes, "indices": indices, "material": 0, "mode": 4}
    turn = _upright(up)
    node = {"mesh": 0} if np.array_equal(turn, np.eye(4)) else {"mesh": 0, "matrix": turn.T.reshape(-1).tolist()}
    head = {"scene": 0, "scenes": [{"nodes": [0]}], "nodes": [node], "meshes": [{"primitives": [primitive]}]}
    return _file(head | _material(mesh, binary), binary)


def vertex_normals(mesh: Triangles) -> Float64[np.ndarray, "n 3"]:
    """Return unit normals of vertices: the mean over the faces around, by their areas; +z where there is none."""
    total = np.zeros_like(mesh.vertices)
    weighted = mesh.normals * mesh.areas[:, None]
    for corner in range(3):
        for axis in range(3):
            total[:, axis] += np.bincount(mesh.faces[:, corner], weighted[:, axis], len(total))
    length = np.linalg.norm(total, axis=1, keepdims=True)
    upwards = np.broadcast_to(np.array([0.0, 0.0, 1.0]), total.shape).copy()
    return np.divide(total, length, out=upwards, where=length > 0)


def linear_colours(colours: UInt8[np.ndarray, "n 3"]) -> UInt16[np.ndarray, "n 4"]:
    """Return opaque linear colours, of 65535, for sRGB ones (IEC 61966-2-1)."""
    share = colours / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    made = np.full((len(colours), 4), 65535, "<u2")
    made[:, :3] = np.rint(linear * 65535)
    return made


def _split_at_seams(
    mesh: Triangles,
) -> tuple[Int64[np.ndarray, "k"], Float64[np.ndarray, "k 2"], Int64[np.ndarray, "m 3"]]:
    """Vertices once for each place in the picture: their rows in the mesh, their places (v downwards), and faces."""
    if mesh.uvs is None or mesh.texture is None:
        return np.arange(len(mesh.vertices)), np.zeros((len(mesh.vertices), 2)), mesh.faces
    corner = mesh.faces.reshape(-1)
    u, v = mesh.uvs.reshape(-1, 2).T
    order = np.lexsort((v, u, corner))
    changed = np.ones(len(order), np.bool_)
    changed[1:] = (np.diff(corner[order]) != 0) | (np.diff(u[order]) != 0) | (np.diff(v[order]) != 0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(changed) - 1
    first = order[changed]
    return corner[first], np.stack([u[first], 1 - v[first]], axis=1), numbers.reshape(-1, 3)


def _upright(up: Sequence[float]) -> Float64[np.ndarray, "4 4"]:
    """The shortest rotation that takes a direction to +y (Rodrigues' formula)."""
    length = math.hypot(*up)
    if len(up) != 3 or not 0 < length < math.inf:
        raise InputError(f"up is {tuple(up)}: wanted are three finite numbers that are not all 0, as in 0 0 1")
    x, y, z = (value / length for value in up)
    off = x * x + z * z
    if y < 0 and off == 0:
        return np.diag([1.0, -1.0, -1.0, 1.0])
    cross = np.array([[0, -x, 0], [x, 0, z], [0, -z, 0]])  # of the axis, up x (0, 1, 0) = (-z, 0, x)
    turn = np.eye(4)
    turn[:3, :3] += cross + cross @ cross * (1 / (1 + y) if y > 0 or off == 0 else (1 - y) / off)
    return turn


def _material(mesh: Triangles, binary: _Binary) -> dict[str, Any]:
    surface: dict[str, Any] = {"metallicFactor": 0.0, "roughnessFactor": 1.0}
    material: dict[str, Any] = {"pbrMetallicRoughness": surface, "doubleSided": True}
    made: dict[str, Any] = {"materials": [material]}
    if mesh.texture is None and mesh.colours is None:
        surface["baseColorFactor"] = list(_CLAY)
        return made
    material["extensions"] = {"KHR_materials_unlit": {}}
    made["extensionsUsed"] = ["KHR_materials_unlit"]
    if mesh.texture is not None and mesh.uvs is not None:
        inside = mesh.uvs.min() >= 0 and mesh.uvs.max() <= 1
        surface["baseColorTexture"] = {"index": 0}
        made["images"] = [{"bufferView": binary.view(png_bytes(mesh.texture)), "mimeType": "image/png"}]
        # no smaller copies: in them faces that lie side by side in the picture, and nowhere else, would mix
        smooth = dict.fromkeys(("magFilter", "minFilter"), _LINEAR)
        made["samplers"] = [smooth | dict.fromkeys(("wrapS", "wrapT"), _CLAMPED if inside else _REPEATED)]
        made["textures"] = [{"source": 0, "sampler": 0}]
    return made


def _file(about: dict[str, Any], binary: _Binary) -> bytes:
    about = {
        "asset": {"version": "2.0", "generator": "fieldwatch"},
        **about,
        "buffers": [{"byteLength": len(binary.data)}],
        "bufferViews": binary.views,
        "accessors": binary.accessors,
    }
    text = orjson.dumps(about)
    text += b" " * (-len(text) % 4)
    total = 12 + 8 + len(text) + 8 + len(binary.data)
    if total >= 1 << 32:
        msg = f"the mesh takes {total} bytes as GLB, whose limit is 4 GiB: decimate it, or write .ply"
        raise MeshError(msg)
    head = struct.pack("<4sII", MAGIC, VERSION, total)
    chunk = struct.pack("<II", len(text), JSON_CHUNK) + text
    return b"".join([head, chunk, struct.pack("<II", len(binary.data), BINARY_CHUNK), bytes(binary.data)])
