"""Textures of OBJ files: material libraries (MTL) and the image files they reference."""

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.obj import MATERIAL
from fieldwatch.recon.mesh.pictures import read_picture


def material_library(picture: str) -> bytes:
    """Return an MTL file with one unlit (illum 0) textured material: the photos already contain the lighting."""
    lines = [f"newmtl {MATERIAL}", "Ka 0 0 0", "Kd 1 1 1", "Ks 0 0 0", "illum 0", f"map_Kd {picture}", ""]
    return "\n".join(lines).encode("utf-8")


def obj_texture(data: bytes, folder: Path) -> UInt8[np.ndarray, "height width 3"] | None:
    """Return the texture of an OBJ file; None if its materials have none.

    Args:
        data: contents of the OBJ file.
        folder: folder of the OBJ file. Paths of libraries are relative to it, paths of textures to their library.

    Raises:
        MeshError: a library or texture is missing or damaged, or the faces do not all use the same texture.
    """
    libraries, used = _named(data)
    if not used:
        return None
    picture_of: dict[str, Path | None] = {}
    # The first library that defines a material wins.
    for name in libraries:
        for material, picture in _library(folder / name).items():
            picture_of.setdefault(material, picture)
    pictures = {picture_of.get(material) for material in used}
    if pictures == {None}:
        return None
    if len(pictures) > 1:
        names = ", ".join(sorted(path.name if path is not None else "none" for path in pictures))
        msg = (
            f"its materials use several textures ({names}), a mesh has one: bake them into one, or remove the "
            "mtllib line"
        )
        raise MeshError(msg)
    path = next(path for path in pictures if path is not None)
    if not path.is_file():
        msg = f"its texture {path} is missing: copy it there, or remove the mtllib line to do without it"
        raise MeshError(msg)
    return read_picture(path.read_bytes(), str(path))


def _named(data: bytes) -> tuple[list[str], set[str]]:
    """Return the names of the material libraries and of the materials used by faces."""
    libraries = list[str]()
    used = set[str]()
    current = ""
    # Most files have no materials: skip the pass over their lines.
    if b"mtllib" not in data:
        return libraries, used
    for line in data.decode("utf-8", "replace").split("\n"):
        word, rest = _entry(line)
        if word == "mtllib":
            libraries.append(_file_name(rest))
        elif word == "usemtl":
            current = rest
        elif word == "f" and current:
            used.add(current)
    return libraries, used


def _entry(line: str) -> tuple[str, str]:
    word, *rest = line.split(None, 1) or [""]
    return word, rest[0].strip() if rest else ""


def _library(path: Path) -> dict[str, Path | None]:
    """Map each material to the path of its texture, or to None."""
    if not path.is_file():
        msg = f"its material library {path} is missing: copy it there, or remove the mtllib line to do without it"
        raise MeshError(msg)
    pictures: dict[str, Path | None] = {}
    current = ""
    for line in path.read_bytes().decode("utf-8", "replace").split("\n"):
        word, rest = _entry(line)
        if word == "newmtl":
            current = rest
            pictures[current] = None
        elif word.lower() == "map_kd" and current:
            name = _file_name(rest)
            # Options such as `-s 1 1 1` precede the file name.
            pictures[current] = path.parent / (name.split()[-1] if name.startswith("-") else name)
    return pictures


def _file_name(text: str) -> str:
    # Exporters on Windows write backslashes.
    return text.replace("\\", "/")
