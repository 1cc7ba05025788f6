"""``fieldwatch mesh view MESH``: write an interactive page, a picture from four sides, and a film of a mesh."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fieldwatch.cli.kit import (
    BadInput,
    Terminal,
    check_writable,
    counting_frames,
    print_json,
    print_paths,
    read_flags,
    reading_input,
    write_page,
)
from fieldwatch.files import nbytes
from fieldwatch.recon.commands.mesh.flags import ViewFlags
from fieldwatch.recon.commands.mesh.page import mesh_account, mesh_kind
from fieldwatch.recon.commands.mesh.pictures import frames_in, write_still, write_turntable
from fieldwatch.recon.mesh import MeshGrade, MeshQuality, Triangles, grade_mesh, mesh_quality, read_mesh

MOST_PIXELS = 4096
"""Largest width and height of a picture or film, pixels."""
LONGEST = 600.0
"""Longest film, seconds."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(ViewFlags, prog="fieldwatch mesh view", arguments=arguments)
    check_arguments(chosen)
    console = Terminal(stderr=chosen.json)
    page = chosen.out or chosen.mesh.with_suffix(".html")
    with reading_input():
        mesh = read_mesh(chosen.mesh)
        for path in filter(None, (page, chosen.still, chosen.film)):
            check_writable(path.parent)
        # Before anything is written: refuses a mesh without faces.
        quality = mesh_quality(mesh, file=chosen.mesh)
        grade = grade_mesh(quality, should_close=not chosen.open)
        facts = facts_of(mesh, chosen.mesh, quality, grade)
        account = mesh_account(mesh, title=chosen.mesh.name, grade=grade, figures=facts, up=upward(chosen))
        write_page(account, page, [mesh_kind()])
        files = {"page": page}
        steps = (chosen.still is not None) + (0 if chosen.film is None else frames_in(chosen.seconds))
        with counting_frames(console, "drawing", steps) as on_frame:
            files |= write_pictures(chosen, mesh, on_frame)
    paths = {name: path.absolute() for name, path in files.items()}
    if chosen.json:
        print_json({"mesh": chosen.mesh, "facts": facts, "files": paths})
    else:
        print_paths(console, facts)
        print_paths(console, paths)
    return 0


def upward(chosen: ViewFlags) -> tuple[float, float, float]:
    """Return the mesh's upward direction."""
    # glTF defines +y as up; other formats say nothing, and +z is usual for scans.
    usual = (0.0, 1.0, 0.0) if chosen.mesh.suffix.lower() == ".glb" else (0.0, 0.0, 1.0)
    return usual if chosen.up is None else chosen.up


def check_arguments(chosen: ViewFlags) -> None:
    """Refuse values that are wrong for every mesh.

    Raises:
        BadInput: a file has the wrong suffix, or a number is out of bounds.
    """
    outputs = (("-o", chosen.out, ".html"), ("--still", chosen.still, ".png"), ("--film", chosen.film, ".mp4"))
    for flag, path, suffix in outputs:
        if path is not None and path.suffix.lower() != suffix:
            raise BadInput(f"{flag} must be a file that ends in {suffix}, as in {path.with_suffix(suffix)}, got {path}")
    if not 1 <= chosen.size <= MOST_PIXELS:
        raise BadInput(f"--size must be 1 to {MOST_PIXELS} pixels, as in 720, got {chosen.size}")
    if not 0 < chosen.seconds <= LONGEST:
        raise BadInput(f"--seconds must be greater than 0 and at most {LONGEST:g}, as in 6, got {chosen.seconds:g}")
    # Refuses zero vectors, infinities and NaN with one comparison.
    if not 0 < sum(value * value for value in upward(chosen)) < float("inf"):
        raise BadInput(f"--up must be a direction, as in 0 0 1 for +z, got {' '.join(map(str, upward(chosen)))}")


def facts_of(mesh: Triangles, file: Path, quality: MeshQuality, grade: MeshGrade) -> dict[str, str]:
    """Return the figures that the page lists."""
    extent = (quality.bbox_extent_x, quality.bbox_extent_y, quality.bbox_extent_z)
    colors = "none" if mesh.colors is None else "of vertices"
    if mesh.texture is not None:
        colors = f"texture, {mesh.texture.shape[1]} x {mesh.texture.shape[0]}"
    return {
        "triangles": f"{quality.n_faces:,}",
        "vertices": f"{quality.n_vertices:,}",
        "watertight": "yes" if quality.is_watertight else f"no, {quality.n_boundary_edges:,} boundary edges",
        "pieces": f"{quality.n_pieces:,}",
        "grade": f"{grade.word}, {grade.score:.0f} of 100",
        "extent": " x ".join(f"{length:.4g}" for length in extent),
        "colors": colors,
        "file": f"{file.name}, {nbytes(file.stat().st_size)}",
    }


def write_pictures(chosen: ViewFlags, mesh: Triangles, on_frame: Callable[[], None]) -> dict[str, Path]:
    """Render the requested picture and film."""
    files: dict[str, Path] = {}
    if chosen.still is not None:
        files["still"] = write_still(mesh, chosen.still, size=chosen.size, up=upward(chosen))
        on_frame()
    if chosen.film is not None:
        options = {"size": chosen.size, "seconds": chosen.seconds, "up": upward(chosen)}
        files["film"] = write_turntable(mesh, chosen.film, **options, on_frame=on_frame)
    return files
