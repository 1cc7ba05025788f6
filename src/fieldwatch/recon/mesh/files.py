"""Meshes from and to files, by the ending of their names."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fieldwatch.files import write_file
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.glb import write_glb
from fieldwatch.recon.mesh.glb_reader import read_glb
from fieldwatch.recon.mesh.materials import material_library, obj_texture
from fieldwatch.recon.mesh.obj import read_obj, write_obj
from fieldwatch.recon.mesh.pictures import png_bytes
from fieldwatch.recon.mesh.ply import mesh_of_ply, ply_of_mesh
from fieldwatch.recon.mesh.triangles import Triangles

_ENDINGS = (".ply", ".obj", ".glb")
_WRITERS: dict[str, Callable[[Triangles], bytes]] = {".ply": ply_of_mesh, ".obj": write_obj, ".glb": write_glb}
_LFS = b"version https://git-lfs"


def read_mesh(path: Path | str, *, texture: bool = True) -> Triangles:
    """Read a mesh from a .ply file (binary or ASCII), a .obj file or a .glb file; polygons become fans of triangles.

    Vertices of .ply and .obj come as they stand in the file, repeated ones too: `Triangles.welded` makes them one. The
    format .glb repeats them along seams, so they are made one. The picture that a .obj names beside it, or that a .glb
    holds, becomes the mesh's texture.

    Args:
        path: of the file.
        texture: False leaves pictures out, and does not miss them where they are gone.

    Raises:
        MeshError: the file is missing, a Git LFS pointer, of another kind, damaged, cut short, without faces, or holds
            values that are not finite or faces of vertices that are not there, or its picture is missing, damaged or
            not one for all; the message says which.
    """
    path = Path(path).expanduser()
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        msg = f"{path} ends in {path.suffix!r}: meshes are read from {', '.join(_ENDINGS)} files; convert it"
        raise MeshError(msg)
    if not path.is_file():
        msg = f"{path} does not exist (or is no file): give the {', '.join(_ENDINGS)} file of a mesh"
        raise MeshError(msg)
    data = path.read_bytes()
    if data.startswith(_LFS):
        msg = f"{path} is a Git LFS pointer, not the mesh itself: run 'git lfs pull' in that repository, or download it"
        raise MeshError(msg)
    try:
        return _read(data, path, texture=texture)
    except MeshError as error:
        msg = f"{path} cannot be read: {error}"
        raise MeshError(msg) from error


def _read(data: bytes, path: Path, *, texture: bool) -> Triangles:
    if path.suffix.lower() == ".ply":
        return mesh_of_ply(data)
    if path.suffix.lower() == ".glb":
        return read_glb(data, texture=texture)
    mesh = read_obj(data)
    picture = obj_texture(data, path.parent) if texture and mesh.uvs is not None else None
    return mesh if picture is None else replace(mesh, texture=picture)


def write_mesh(path: Path | str, mesh: Triangles) -> Path:
    """Write a mesh; each file whole or not at all.

    As .ply: places, faces, colours, in double precision. As .obj: texture coordinates, too; a texture goes into
    NAME.png with NAME.mtl beside it, both written before the .obj that names them. As .glb: see `write_glb`.

    Raises:
        MeshError: the name has another ending, or the mesh has no faces.
    """
    path = Path(path).expanduser()
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        msg = f"{path} ends in {path.suffix!r}: meshes are written as {', '.join(_WRITERS)}; choose one of these"
        raise MeshError(msg)
    if not len(mesh.faces):
        msg = f"{path} was not written: the mesh has no faces; what made it found no surface"
        raise MeshError(msg)
    if path.suffix.lower() == ".obj" and mesh.texture is not None:
        stem = "_".join(path.stem.split())  # many readers end a name at a space
        write_file(path.with_name(f"{stem}.png"), png_bytes(mesh.texture))
        write_file(path.with_name(f"{stem}.mtl"), material_library(f"{stem}.png"))
        return write_file(path, write_obj(mesh, library=f"{stem}.mtl"))
    return write_file(path, writer(mesh))
