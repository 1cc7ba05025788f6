"""Meshes from and to files, by the ending of their names."""

from collections.abc import Callable
from pathlib import Path

from fieldwatch.mesh.error import MeshError
from fieldwatch.mesh.obj import read_obj, write_obj
from fieldwatch.mesh.ply import read_ply, write_ply
from fieldwatch.mesh.triangles import Triangles

_READERS: dict[str, Callable[[bytes], Triangles]] = {".ply": read_ply, ".obj": read_obj}
_WRITERS: dict[str, Callable[[Triangles], bytes]] = {".ply": write_ply, ".obj": write_obj}
_LFS = b"version https://git-lfs"


def read_mesh(path: Path | str) -> Triangles:
    """Read a mesh from a .ply file (binary or ASCII) or a .obj file; polygons become fans of triangles.

    Vertices come as they stand in the file, repeated ones too: `Triangles.welded` makes them one.

    Raises:
        MeshError: the file is missing, a Git LFS pointer, of another kind, damaged, cut short, without faces, or holds
            values that are not finite or faces of vertices that are not there; the message says which.
    """
    path = Path(path).expanduser()
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        msg = f"{path} ends in {path.suffix!r}: meshes are read from {' and '.join(_READERS)} files; convert it"
        raise MeshError(msg)
    if not path.is_file():
        msg = f"{path} does not exist (or is no file): give the .ply or .obj file of a mesh"
        raise MeshError(msg)
    data = path.read_bytes()
    if data.startswith(_LFS):
        msg = f"{path} is a Git LFS pointer, not the mesh itself: run 'git lfs pull' in that repository, or download it"
        raise MeshError(msg)
    try:
        return reader(data)
    except MeshError as error:
        msg = f"{path} cannot be read: {error}"
        raise MeshError(msg) from error


def write_mesh(path: Path | str, mesh: Triangles) -> Path:
    """Write a mesh as .ply (places, faces, colours) or .obj (and texture coordinates); whole or not at all.

    Raises:
        MeshError: the name has another ending, or the mesh has no faces.
    """
    path = Path(path).expanduser()
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        msg = f"{path} ends in {path.suffix!r}: meshes are written as {' and '.join(_WRITERS)}; choose one of these"
        raise MeshError(msg)
    if not len(mesh.faces):
        msg = f"{path} was not written: the mesh has no faces; what made it found no surface"
        raise MeshError(msg)
    data = writer(mesh)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path
