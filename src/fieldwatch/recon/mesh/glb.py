"""Writing meshes as GLB, the binary form of glTF 2.0: one file with an embedded texture, for viewers and engines.

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
_ARRAY_BUFFER = 34962
_ELEMENT_ARRAY_BUFFER = 34963
_CLAMP_TO_EDGE = 33071
_REPEAT = 10497
_LINEAR = 9729
_GRAY = (0.75, 0.75, 0.75, 1.0)


@dataclass
class _Binary:
    """The binary chunk and its buffer views and accessors, which the JSON chunk lists."""

    data: bytearray = field(default_factory=bytearray)
    views: list[dict[str, int]] = field(default_factory=list)
    accessors: list[dict[str, Any]] = field(default_factory=list)

    def view(self, data: bytes, **extra: int) -> int:
        """Append bytes and return the index of their buffer view."""
        self.views.append({"buffer": 0, "byteOffset": len(self.data), "byteLength": len(data), **extra})
        # glTF wants every buffer view to start at a multiple of 4 bytes.
        self.data += data + bytes(-len(data) % 4)
        return len(self.views) - 1

    def accessor(self, values: np.ndarray, kind: int, target: int, **extra: Any) -> int:
        """Append an array and return the index of its accessor."""
        shape = "SCALAR" if values.ndim == 1 else f"VEC{values.shape[1]}"
        view = self.view(values.tobytes(), target=target)
        about = {"bufferView": view, "componentType": kind, "count": len(values), "type": shape}
        self.accessors.append(about | extra)
        return len(self.accessors) - 1


def write_glb(mesh: Triangles, *, up: Sequence[float] = (0.0, 1.0, 0.0)) -> bytes:
    """Encode a mesh as GLB: positions, normals, and its texture or else its vertex colors.

    A vertex on a texture seam is written once per distinct texture coordinate. Positions are rounded to single
    precision, the only one that glTF has. The v axis is flipped (v runs downward in glTF), and vertex colors are
    converted to linear, as glTF requires. Textures and vertex colors come from photos, which contain the lighting, so
    their material is unlit; a mesh with neither gets a lit gray material. Materials are double-sided.

    Args:
        mesh: mesh to write, with or without a texture or vertex colors.
        up: upward direction of the scene, of any length. Viewers take +y as up. For another direction the node gets
            the shortest rotation to +y as its matrix; the stored positions do not change, but readers return rotated
            positions.

    Raises:
        MeshError: the mesh has no faces, or positions exceed the range of single precision.
        ValueError: `up` is zero or not finite.
    """
    if not len(mesh.faces):
        raise MeshError(
            "the mesh has no faces, which GLB cannot store: no surface was found; check the step that made the mesh"
        )
    rows, uvs, faces = _split_at_seams(mesh)
    if (farthest := np.abs(mesh.vertices).max()) > np.finfo(np.float32).max:
        msg = f"positions reach {farthest:g}, but GLB stores at most 3e38: scale the mesh down"
        raise MeshError(msg)
    positions = mesh.vertices[rows].astype("<f4")
    binary = _Binary()
    # glTF requires the bounds of positions, so that viewers can frame the mesh.
    limits = {"min": positions.min(0).tolist(), "max": positions.max(0).tolist()}
    attributes = {
        "POSITION": binary.accessor(positions, FLOAT, _ARRAY_BUFFER, **limits),
        "NORMAL": binary.accessor(vertex_normals(mesh)[rows].astype("<f4"), FLOAT, _ARRAY_BUFFER),
    }
    if mesh.texture is not None:
        attributes["TEXCOORD_0"] = binary.accessor(uvs.astype("<f4"), FLOAT, _ARRAY_BUFFER)
    elif mesh.colors is not None:
        colors = linear_colors(mesh.colors[rows])
        attributes["COLOR_0"] = binary.accessor(colors, UNSIGNED_SHORT, _ARRAY_BUFFER, normalized=True)
    indices = binary.accessor(faces.reshape(-1).astype("<u4"), UNSIGNED_INT, _ELEMENT_ARRAY_BUFFER)
    primitive = {"attributes": attributes, "indices": indices, "material": 0, "mode": 4}
    rotation = _upright(up)
    node = (
        {"mesh": 0} if np.array_equal(rotation, np.eye(4)) else {"mesh": 0, "matrix": rotation.T.reshape(-1).tolist()}
    )
    scene_chunks = {"scene": 0, "scenes": [{"nodes": [0]}], "nodes": [node], "meshes": [{"primitives": [primitive]}]}
    return _file(scene_chunks | _material(mesh, binary), binary)


def vertex_normals(mesh: Triangles) -> Float64[np.ndarray, "n 3"]:
    """Return unit vertex normals: the area-weighted mean of the adjacent faces; +z if that is zero."""
    total = np.zeros_like(mesh.vertices)
    weighted = mesh.normals * mesh.areas[:, None]
    for corner in range(3):
        for axis in range(3):
            total[:, axis] += np.bincount(mesh.faces[:, corner], weighted[:, axis], len(total))
    length = np.linalg.norm(total, axis=1, keepdims=True)
    upwards = np.broadcast_to(np.array([0.0, 0.0, 1.0]), total.shape).copy()
    return np.divide(total, length, out=upwards, where=length > 0)


def linear_colors(colors: UInt8[np.ndarray, "n 3"]) -> UInt16[np.ndarray, "n 4"]:
    """Convert sRGB colors to linear RGBA of 16 bits with full opacity (IEC 61966-2-1)."""
    # 16 bits, because 8 linear bits cannot distinguish dark sRGB levels.
    share = colors / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    made = np.full((len(colors), 4), 65535, "<u2")
    made[:, :3] = np.rint(linear * 65535)
    return made


def _split_at_seams(
    mesh: Triangles,
) -> tuple[Int64[np.ndarray, "k"], Float64[np.ndarray, "k 2"], Int64[np.ndarray, "m 3"]]:
    """Duplicate vertices along texture seams: return their rows in the mesh, their uvs (v downward) and the faces."""
    if mesh.uvs is None or mesh.texture is None:
        return np.arange(len(mesh.vertices)), np.zeros((len(mesh.vertices), 2)), mesh.faces
    corner = mesh.faces.reshape(-1)
    u, v = mesh.uvs.reshape(-1, 2).T
    # Equal (vertex, u, v) triples become neighbors; each run is one output vertex.
    order = np.lexsort((v, u, corner))
    changed = np.ones(len(order), np.bool_)
    changed[1:] = (np.diff(corner[order]) != 0) | (np.diff(u[order]) != 0) | (np.diff(v[order]) != 0)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(changed) - 1
    first = order[changed]
    return corner[first], np.stack([u[first], 1 - v[first]], axis=1), numbers.reshape(-1, 3)


def _upright(up: Sequence[float]) -> Float64[np.ndarray, "4 4"]:
    """Return the shortest rotation from a direction to +y (Rodrigues' formula)."""
    length = math.hypot(*up)
    if len(up) != 3 or not 0 < length < math.inf:
        raise InputError(f"up must be three finite numbers that are not all 0, such as 0 0 1, got {tuple(up)}")
    x, y, z = (value / length for value in up)
    squared_sine = x * x + z * z
    # Exactly -y: the axis is not unique, so turn about x by 180 degrees.
    if y < 0 and squared_sine == 0:
        return np.diag([1.0, -1.0, -1.0, 1.0])
    cross = np.array([[0, -x, 0], [x, 0, z], [0, -z, 0]])  # matrix of the axis: up x (0, 1, 0) = (-z, 0, x)
    rotation = np.eye(4)
    # (1 - y) / sin² equals 1 / (1 + y), without its cancellation near y = -1.
    rotation[:3, :3] += cross + cross @ cross * (1 / (1 + y) if y > 0 or squared_sine == 0 else (1 - y) / squared_sine)
    return rotation


def _material(mesh: Triangles, binary: _Binary) -> dict[str, Any]:
    surface: dict[str, Any] = {"metallicFactor": 0.0, "roughnessFactor": 1.0}
    material: dict[str, Any] = {"pbrMetallicRoughness": surface, "doubleSided": True}
    document: dict[str, Any] = {"materials": [material]}
    if mesh.texture is None and mesh.colors is None:
        surface["baseColorFactor"] = list(_GRAY)
        return document
    material["extensions"] = {"KHR_materials_unlit": {}}
    document["extensionsUsed"] = ["KHR_materials_unlit"]
    if mesh.texture is not None and mesh.uvs is not None:
        # Charts inside the texture are clamped; coordinates beyond it mean a repeating texture.
        inside = mesh.uvs.min() >= 0 and mesh.uvs.max() <= 1
        surface["baseColorTexture"] = {"index": 0}
        document["images"] = [{"bufferView": binary.view(png_bytes(mesh.texture)), "mimeType": "image/png"}]
        # No mipmaps: they would mix faces that are adjacent in the texture but not on the surface.
        smooth = dict.fromkeys(("magFilter", "minFilter"), _LINEAR)
        document["samplers"] = [smooth | dict.fromkeys(("wrapS", "wrapT"), _CLAMP_TO_EDGE if inside else _REPEAT)]
        document["textures"] = [{"source": 0, "sampler": 0}]
    return document


def _file(document: dict[str, Any], binary: _Binary) -> bytes:
    document = {
        "asset": {"version": "2.0", "generator": "fieldwatch"},
        **document,
        "buffers": [{"byteLength": len(binary.data)}],
        "bufferViews": binary.views,
        "accessors": binary.accessors,
    }
    text = orjson.dumps(document)
    # The format pads JSON chunks with spaces and binary chunks with zeros.
    text += b" " * (-len(text) % 4)
    total = 12 + 8 + len(text) + 8 + len(binary.data)
    if total >= 1 << 32:
        msg = f"the mesh needs {total} bytes, but GLB is limited to 4 GiB: decimate it, or write .ply"
        raise MeshError(msg)
    header = struct.pack("<4sII", MAGIC, VERSION, total)
    chunk = struct.pack("<II", len(text), JSON_CHUNK) + text
    return b"".join([header, chunk, struct.pack("<II", len(binary.data), BINARY_CHUNK), bytes(binary.data)])
