"""``fieldwatch data render-normals MESH``: normal maps of a mesh, in the layout that training reads."""

import hashlib
import json
import math
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from jaxtyping import Float64, UInt8
from PIL import Image, ImageDraw
from rich.console import Console
from rich.text import Text
from torch import Tensor

from fieldwatch.cli.kit import (
    BadInput,
    Terminal,
    check_writable,
    counting_frames,
    print_json,
    print_paths,
    read_flags,
    reading_input,
)
from fieldwatch.files import output_path
from fieldwatch.recon.commands.normals.flags import RenderNormalsFlags
from fieldwatch.recon.data import (
    MeshScene,
    NormalSet,
    NormalView,
    check_normal_maps,
    ring_cameras,
    synthetic_normal_maps,
    unit_sphere_of,
    write_normal_maps,
)
from fieldwatch.recon.data.normal_maps import NormalCheck
from fieldwatch.recon.geometry import Camera, look_at, rigid
from fieldwatch.recon.mesh import Triangles, read_mesh, write_mesh

MOST_PIXELS = 1 << 27
"""Largest number of pixels of all views together: about 4 GiB of maps."""
MOST_AWAY = 0.5
"""Fraction of back-facing pixels from which a mesh counts as inside out."""
RECORD, PREVIEW, MESH = "render.json", "preview.png", "mesh_Gt.ply"
KIND = "fieldwatch data render-normals"
TILE, GAP, BACKGROUND = 256, 4, (44, 48, 54)
COLORS = {"note": "cyan", "warning": "yellow", "error": "bold red"}


@dataclass(kw_only=True)
class CountingScene:
    """A `NormalScene` that counts pixels while it is rendered.

    Attributes:
        scene: scene of the mesh.
        on_view: callback after each view.
        pixels: number of pixels inside the masks.
        away: number of these pixels whose normal faces away from the camera.
        angle: sum of the angles between smooth and flat normals over these pixels, degrees.
        empty: names of views that show nothing.
    """

    scene: MeshScene
    on_view: Callable[[], None]
    pixels: int = 0
    away: int = 0
    angle: float = 0.0
    empty: list[str] = field(default_factory=list)

    def depth(self, camera: Camera) -> Float64[Tensor, "height width"]:
        """Return the scene's depth, and count its pixels."""
        depth = self.scene.depth(camera)
        visible = int((depth > 0).sum())
        self.pixels += visible
        self.away += int(self.scene.facing_away(camera).sum())
        self.angle += float(self.scene.shading_angle(camera).sum())
        self.empty += [] if visible else [camera.name]
        return depth

    def normals(self, camera: Camera) -> Float64[Tensor, "height width 3"]:
        """Return the scene's normals, and report the view: this is its last call."""
        self.on_view()
        return self.scene.normals(camera)

    @property
    def facts(self) -> dict[str, float]:
        """Counts and means for the record."""
        return {
            "mask_pixels": self.pixels,
            "facing_away_share": self.away / self.pixels,
            "smooth_to_flat_degrees": self.angle / self.pixels,
        }


@dataclass(frozen=True, kw_only=True)
class RenderedSet:
    """A rendered data set before it is written.

    Attributes:
        views: normal maps.
        mesh: mesh with faces pointing outwards, which is written with the maps.
        facts: counts of `CountingScene`.
        notes: remarks about the mesh.
        checks: findings of the check of the set.
    """

    views: NormalSet
    mesh: Triangles
    facts: dict[str, float]
    notes: tuple[str, ...]
    checks: tuple[NormalCheck, ...]


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(RenderNormalsFlags, prog="fieldwatch data render-normals", arguments=arguments)
    chosen = replace(chosen, mesh=chosen.mesh.expanduser(), out=chosen.out.expanduser())
    with reading_input():
        check_arguments(chosen)
        cameras = turned_ring(chosen)
        replaced = files_to_replace(chosen)
        check_writable(chosen.out)
        mesh = read_mesh(chosen.mesh, texture=False)
        rendered = render(chosen, mesh, cameras)
        record = record_of(chosen, rendered, arguments)
        record["files"] = write_folder(chosen, rendered, record, replaced)
    files = {"folder": chosen.out.absolute()}
    files |= {name: files["folder"] / place for name, place in (("preview", PREVIEW), ("record", RECORD))}
    if chosen.json:
        print_json({**record, "places": files})
    else:
        console = Terminal()
        print_rendered(console, chosen, rendered)
        print_paths(console, files)
    return 1 if any(check.severity == "error" for check in rendered.checks) else 0


def check_arguments(chosen: RenderNormalsFlags) -> None:
    """Refuse values that are wrong for every mesh.

    Raises:
        BadInput: a number is out of bounds.
    """
    if min(chosen.views, chosen.size) < 1 or chosen.views * chosen.size**2 > MOST_PIXELS:
        raise BadInput(
            f"--views {chosen.views} --size {chosen.size}: expected at least one view of one pixel, and at most "
            f"{MOST_PIXELS:,} pixels in all, as in --views 20 --size 256"
        )
    if not (math.isfinite(chosen.distance) and chosen.distance > 1):
        raise BadInput(f"--distance must be greater than 1 (the unit sphere), as in 4, got {chosen.distance:g}")
    if not chosen.elevations or not all(abs(degrees) < 90 for degrees in chosen.elevations):
        values = " ".join(f"{degrees:g}" for degrees in chosen.elevations)
        raise BadInput(f"--elevations must be degrees between -90 and 90, as in 25 -25, got {values or 'none'}")
    if not 0 < math.hypot(*chosen.up) < math.inf:
        raise BadInput(f"--up must be a direction, as in 0 0 1 for +z, got {' '.join(map(str, chosen.up))}")
    if not 0 < chosen.fill <= 1:
        raise BadInput(f"--fill must be greater than 0 and at most 1, as in 0.8, got {chosen.fill:g}")
    if not 0 <= chosen.noise < 90:
        raise BadInput(f"--noise must be at least 0 and less than 90 degrees, as in 5, got {chosen.noise:g}")
    if chosen.seed < 0:
        raise BadInput(f"--seed must be 0 or more, got {chosen.seed}")


def turned_ring(chosen: RenderNormalsFlags) -> tuple[Camera, ...]:
    """Return the ring of cameras in the unit frame, around the axis of `--up`."""
    ring = ring_cameras(chosen.views, chosen.size, distance=chosen.distance, elevations=chosen.elevations)
    # The rotation from +z to the axis, as that between two cameras that look along them.
    axes = look_at((0.0, 0.0, 0.0), tuple(chosen.up), (1.0, 0.0, 0.0))[:3, :3]
    plain = look_at((0.0, 0.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0))[:3, :3]
    turn = rigid(axes @ plain.T, torch.zeros(3, dtype=torch.float64))
    return tuple(replace(camera, world_from_camera=turn @ camera.world_from_camera) for camera in ring)


def render(chosen: RenderNormalsFlags, mesh: Triangles, cameras: Sequence[Camera]) -> RenderedSet:
    """Render the maps, and check them.

    Raises:
        BadInput: the mesh is open and inside out, or covers no pixel.
        ValueError: there is nothing to render.
    """
    places = torch.from_numpy(mesh.vertices)
    faces = torch.from_numpy(mesh.faces)
    # Only vertices of faces: stray vertices of a scan must not enlarge the sphere.
    world_from_unit = unit_sphere_of(places[torch.unique(faces)], fill=chosen.fill)
    unit = (places - world_from_unit[:3, 3]) / world_from_unit[0, 0]
    scene = MeshScene(unit, faces, shading=chosen.shading)
    with counting_frames(Terminal(stderr=True), "rendering", len(cameras)) as on_view:
        counting = CountingScene(scene=scene, on_view=on_view)
        options: dict[str, Any] = {"depth": chosen.depth, "noise": chosen.noise, "seed": chosen.seed}
        views = synthetic_normal_maps(counting, cameras=cameras, **options)
    if counting.empty:
        raise BadInput(
            f"{chosen.mesh}: views {', '.join(counting.empty[:8])} show nothing: no ray through a pixel's center hits "
            "the mesh; choose a larger --size"
        )
    if counting.facts["facing_away_share"] > MOST_AWAY:
        raise BadInput(
            f"{chosen.mesh}: {counting.facts['facing_away_share']:.0%} of the visible pixels face away from the "
            "cameras, and the mesh is open, so its outside is unknown: flip its faces, and try again"
        )
    views = replace(views, world_from_unit=world_from_unit)
    return RenderedSet(
        views=views,
        mesh=mesh.turned() if scene.flipped else mesh,
        facts=counting.facts,
        notes=scene.notes,
        checks=check_normal_maps(views),
    )


def record_of(chosen: RenderNormalsFlags, rendered: RenderedSet, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the record of how the maps were made, which is stored with them."""
    # What changes the maps is recorded; where they are written is not.
    settings = asdict(chosen)
    for name in ("mesh", "out", "overwrite", "json"):
        settings.pop(name)
    return {
        "kind": KIND,
        "version": metadata.version("fieldwatch"),
        "command": shlex.join(["fieldwatch", "data", "render-normals", *arguments]),
        "mesh": str(chosen.mesh.absolute()),
        "mesh_sha256": hashlib.sha256(chosen.mesh.read_bytes()).hexdigest(),
        "triangles": len(rendered.mesh.faces),
        **settings,
        "world_from_unit": rendered.views.world_from_unit.tolist(),
        **rendered.facts,
        "notes": list(rendered.notes),
        "checks": [asdict(check) for check in rendered.checks],
    }


def files_to_replace(chosen: RenderNormalsFlags) -> tuple[Path, ...]:
    """Return the files of an earlier data set in the folder, relative to it; nothing is changed yet.

    Raises:
        BadInput: the folder holds files that this command did not write, or `--overwrite` is not given.
    """
    out = chosen.out
    if not out.exists():
        return ()
    if not out.is_dir():
        raise BadInput(f"--out {out} is a file: give a folder that does not exist yet")
    entries = sorted(path.name for path in out.iterdir())
    if not entries:
        return ()
    listed = ", ".join(entries[:8]) + (", ..." if len(entries) > 8 else "")
    if not chosen.overwrite:
        raise BadInput(
            f"--out {out} holds {listed}: give a folder that does not exist yet, or --overwrite to replace a set that "
            "this command wrote there"
        )
    earlier = _earlier_files(out)
    if earlier is None:
        raise BadInput(f"--out {out} holds {listed}, but no {RECORD} of this command: give another folder")
    folders = {path.parts[0] for path in earlier if len(path.parts) > 1}
    inside = (path for name in folders for path in (out / name).rglob("*") if not path.is_dir())
    if foreign := sorted({path.relative_to(out) for path in inside} - set(earlier)):
        raise BadInput(
            f"--out {out} holds {foreign[0]} among the files of the set, which this command did not write "
            f"({len(foreign)} such files): move them away, or give another folder"
        )
    return earlier


def _earlier_files(out: Path) -> tuple[Path, ...] | None:
    """Return the existing files that the record in a folder names; None if this command did not write it."""
    try:
        record = json.loads((out / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("kind") != KIND:
        return None
    named = [Path(name) for name in record.get("files", ())]
    # The record may have been edited: never delete outside the folder.
    safe = [path for path in named if not path.is_absolute() and ".." not in path.parts]
    return tuple(path for path in safe if (out / path).is_file() and output_path(out, *path.parts) == out / path)


def write_folder(
    chosen: RenderNormalsFlags, rendered: RenderedSet, record: dict[str, Any], replaced: Sequence[Path]
) -> list[str]:
    """Write the data set to a temporary folder, then move it: a new folder is complete or does not exist.

    Returns:
        The files, relative to the folder.
    """
    out = chosen.out
    out.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the final move is a rename on one file system.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as room:
        draft = Path(room) / "set"
        draft.mkdir()
        truth = write_mesh(draft / MESH, rendered.mesh)
        write_normal_maps(replace(rendered.views, mesh=truth), draft, kind=chosen.format)
        Image.fromarray(contact_sheet(rendered.views.views)).save(draft / PREVIEW)
        files = sorted([str(p.relative_to(draft)) for p in draft.rglob("*") if p.is_file()] + [RECORD])
        content = orjson.dumps({**record, "files": files}, option=orjson.OPT_INDENT_2)
        (draft / RECORD).write_bytes(content + b"\n")
        if not replaced:
            # rename() replaces an empty folder, but no other.
            draft.replace(out)
            return files
        for path in replaced:
            if str(path) != RECORD:
                output_path(out, *path.parts).unlink()
        # The record first: after an interruption it names all files that the next --overwrite may replace.
        for name in sorted(files, key=RECORD.__ne__):
            target = output_path(out, *Path(name).parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            (draft / name).replace(target)
    return files


def contact_sheet(views: Sequence[NormalView]) -> UInt8[np.ndarray, "height width 3"]:
    """Return a contact sheet of all views: red right, green up, blue towards the camera; dark outside of the masks."""
    columns = math.ceil(math.sqrt(1.25 * len(views)))
    rows = math.ceil(len(views) / columns)
    sheet = Image.new("RGB", (columns * (TILE + GAP) + GAP, rows * (TILE + GAP) + GAP), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for number, view in enumerate(views):
        # Camera axes are OpenCV's (y down, z forward); the colors are those of OpenGL normal maps.
        colors = (view.normals * torch.tensor([1.0, -1.0, -1.0]) + 1) * 127.5
        masked = torch.where(view.valid[..., None], colors, torch.tensor(BACKGROUND))
        tile = Image.fromarray(masked.round().clamp(0, 255).byte().numpy())
        resampling = Image.Resampling.BOX if view.camera.width >= TILE else Image.Resampling.NEAREST
        tile = tile.resize((TILE, TILE), resampling)
        left, top = (GAP + place * (TILE + GAP) for place in (number % columns, number // columns))
        sheet.paste(tile, (left, top))
        pen.text((left + 4, top + 2), view.name, fill=(200, 200, 200))
    return np.asarray(sheet)


def print_rendered(console: Console, chosen: RenderNormalsFlags, rendered: RenderedSet) -> None:
    """Print the data set, notes and findings."""
    facts, other = rendered.facts, "flat" if chosen.shading == "smooth" else "smooth"
    angle, away = facts["smooth_to_flat_degrees"], facts["facing_away_share"]
    rows = " ".join(f"{degrees:g}" for degrees in chosen.elevations)
    lines = {
        "mesh": f"{len(rendered.mesh.faces):,} triangles, bounding sphere of radius "
        f"{rendered.views.scale * chosen.fill:.4g}, scaled to {chosen.fill:g}",
        "views": f"{chosen.views} of {chosen.size} x {chosen.size} pixels, at "
        f"distance {chosen.distance:g} and {rows} degrees",
        "normals": f"{chosen.shading}; {other} normals differ by {angle:.2f} degrees (mean over the masks)",
        "facing away": f"{away:.2%} of the pixels in the masks" + (", before the noise" if chosen.noise else ""),
        "depth": chosen.depth,
    }
    print_paths(console, lines)
    for note in rendered.notes:
        console.print(Text(f"  note: {note}"), soft_wrap=True)
    for check in rendered.checks:
        text = f"  {check.name}: {check.message} {check.remedy}"
        console.print(Text.assemble((check.severity, COLORS[check.severity]), text), soft_wrap=True)
