"""Reading and writing mesh files; the file name extension selects the format."""

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
    """Read a mesh from a .ply (binary or ASCII), .obj or .glb file; polygons become triangle fans.

    Vertices of .ply and .obj files are kept as stored, duplicates included: `Triangles.welded` merges them. Vertices of
    .glb files are merged, because the format duplicates them along texture seams. The image referenced by an .obj file
    or embedded in a .glb file becomes the texture of the mesh.

    Args:
        path: path of the file.
        texture: read the texture. If False, missing image files are no error.

    Raises:
        MeshError: the file is missing, a Git LFS pointer, of another format, damaged, truncated or without faces; a
            value is not finite; a face references a missing vertex; or the texture is missing, damaged or not the same
            for all faces.
    """
    path = Path(path).expanduser()
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        msg = f"{path} ends in {path.suffix!r}, expected one of {', '.join(_ENDINGS)}: convert the mesh"
        raise MeshError(msg)
    if not path.is_file():
        msg = f"{path} does not exist or is not a file: give the {', '.join(_ENDINGS)} file of a mesh"
        raise MeshError(msg)
    data = path.read_bytes()
    # A clone without LFS has small text files in place of the meshes: name the cause.
    if data.startswith(_LFS):
        msg = f"{path} is a Git LFS pointer, not the mesh: run `git lfs pull` in its repository, or download it"
        raise MeshError(msg)
    # The readers do not know the file name: add it here.
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
    """Write a mesh; each file is written atomically.

    A .ply file stores vertices in double precision, faces and vertex colors. An .obj file also stores texture
    coordinates; the texture is written to NAME.png and its material to NAME.mtl, both before the .obj file that
    references them. For .glb files see `write_glb`.

    Raises:
        MeshError: the extension is not supported, or the mesh has no faces.
    """
    path = Path(path).expanduser()
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        msg = f"{path} ends in {path.suffix!r}, expected one of {', '.join(_WRITERS)}: choose one of these"
        raise MeshError(msg)
    if not len(mesh.faces):
        msg = f"{path} was not written: the mesh has no faces, so no surface was found; check the step that made it"
        raise MeshError(msg)
    if path.suffix.lower() == ".obj" and mesh.texture is not None:
        stem = "_".join(path.stem.split())  # many readers end a file name at the first space
        write_file(path.with_name(f"{stem}.png"), png_bytes(mesh.texture))
        write_file(path.with_name(f"{stem}.mtl"), material_library(f"{stem}.png"))
        return write_file(path, write_obj(mesh, library=f"{stem}.mtl"))
    return write_file(path, writer(mesh))
