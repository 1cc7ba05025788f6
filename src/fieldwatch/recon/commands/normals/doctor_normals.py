"""Checks of normal maps for ``fieldwatch doctor``."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from fieldwatch.cli.kit import BadInput, DataFinding, DataReport
from fieldwatch.files import whole_file
from fieldwatch.recon.commands.normals.integrate_normals import single_report
from fieldwatch.recon.commands.normals.options import NormalOptions
from fieldwatch.recon.data import NormalSet, check_normal_maps, normal_layout, normal_map_sheet, open_normal_maps
from fieldwatch.recon.data.normal_maps import NormalCheck, is_single_view
from fieldwatch.recon.mesh import MeshError, read_mesh

KINDS = {
    "cameras_sphere": "normal maps (cameras_sphere.npz, as DiLiGenT-MV, SuperNormal and PMNI have them)",
    "colmap": "normal maps of captures (poses from COLMAP)",
    "transforms": "normal maps of frames (poses from transforms.json)",
    "diligent_mv": "normal maps of DiLiGenT-MV as published (Calib_Results.mat)",
    "unposed": "normal maps without poses (K.txt)",
}
# Number of vertices of the true mesh that are checked.
_MAX_POINTS = 5000
# Smallest fraction of them inside each mask, and largest distance from the center, in radii of the unit sphere.
_MIN_IN_MASK = 0.95
_MAX_REACH = 1.01


def normals_report(path: Path, options: NormalOptions) -> DataReport:
    """Read and check normal maps; with ``--picture``, also write a contact sheet.

    Raises:
        NormalMapError: the set is refused.
        ColmapError: the COLMAP model cannot be read.
        BadInput: the picture cannot be written.
    """
    layout = normal_layout(path)
    if layout is None and is_single_view(path):
        return single_report(path)
    exclude = tuple(int(view) if view.isdecimal() else view for view in options.exclude)
    normal_set = open_normal_maps(
        path,
        axes=options.axes,
        space=options.space,
        channels=options.channels,
        pixel_center=options.pixel_center,
        normals=options.normals,
        masks=options.masks,
        exclude=exclude,
        fill_holes=options.fill_holes,
    )
    if options.noise is not None:
        normal_set = replace(normal_set, noise=options.noise)
    checks = check_normal_maps(normal_set)
    findings = [*(finding_of(check) for check in checks), *mesh_findings(normal_set)]
    if options.picture is not None:
        write_sheet(normal_set, options.picture.expanduser())
    return DataReport(
        path=path,
        kind=KINDS[layout or "colmap"],
        facts=normal_facts(normal_set),
        notes=normal_set.notes,
        findings=tuple(findings),
        command=training_command(path, corrected(options, checks), posed=normal_set.posed),
        files={} if options.picture is None else {"picture": options.picture.expanduser()},
    )


def corrected(options: NormalOptions, checks: Sequence[NormalCheck]) -> NormalOptions:
    """Return the flags with which the files are read rightly, if the problems that were found say so."""
    for check in checks:
        changes = dict(check.correction)
        if "exclude" in changes:
            changes["exclude"] = (*options.exclude, *changes["exclude"])
        options = replace(options, **changes)  # pyright: ignore[reportArgumentType]  names and kinds are those of the flags
    return options


def training_command(path: Path, options: NormalOptions, *, posed: bool = True) -> str:
    """Return the command that trains on the maps as they were read here."""
    words = ["fieldwatch", "train", "normals", "--data", str(path)]
    words += [] if posed else ["--preset", "poses", "--pose-start", "ring"]
    # An argument that begins with a dash needs the equals sign.
    words += [f"--axes={options.axes}"] if options.axes and options.axes.startswith("-") else []
    for name in ("axes", "space", "channels", "pixel_center", "noise", "normals", "masks"):
        value = getattr(options, name)
        if value is not None and not str(value).startswith("-"):
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else value]
    words += ["--exclude", *options.exclude] if options.exclude else []
    words += ["--fill-holes"] if options.fill_holes else []
    return " ".join(words)


def map_findings(normal_set: NormalSet) -> list[DataFinding]:
    """Return the problems of maps, masks and cameras."""
    return [finding_of(check) for check in check_normal_maps(normal_set)]


def finding_of(check: NormalCheck) -> DataFinding:
    """Return a problem as `doctor` prints it."""
    return DataFinding(name=check.name, severity=check.severity, message=check.message, remedy=check.remedy)


def normal_facts(normal_set: NormalSet) -> dict[str, Any]:
    """Return counts, sizes and coverage of a set."""
    views = normal_set.views
    sizes = Counter(f"{width}x{height}" for height, width in normal_set.sizes)
    distances = [float(camera.position.norm()) for camera in normal_set.cameras]
    in_mask = [float(view.mask.double().mean()) for view in views]
    covered = [float(view.valid.sum() / view.mask.sum().clamp_min(1)) for view in views]
    return {
        "views": len(views),
        "sizes (width x height)": dict(sizes),
        "cameras from the object, in units of its sphere": [min(distances), max(distances)],
        "focal length in pixels": [min(c.fx for c in normal_set.cameras), max(c.fx for c in normal_set.cameras)],
        "world units per unit": normal_set.scale,
        "share of the picture in the mask": [min(in_mask), max(in_mask)],
        "share of the mask with a normal": [min(covered), max(covered)],
        "views with depth": sum(view.depth is not None for view in views),
        "true mesh": None if normal_set.mesh is None else str(normal_set.mesh),
    }


def mesh_findings(normal_set: NormalSet) -> list[DataFinding]:
    """Check that the true mesh matches the views: inside the unit sphere, and inside the masks."""
    if normal_set.mesh is None:
        return []
    try:
        mesh = read_mesh(normal_set.mesh, texture=False)
    except MeshError as error:
        remedy = "Copy the file again, or remove it: training works without it, but cannot measure the surface error."
        return [
            DataFinding(
                name="mesh", severity="warning", message=f"the true mesh is unreadable: {error}.", remedy=remedy
            )
        ]
    corners = torch.from_numpy(np.asarray(mesh.vertices, np.float64))
    step = max(len(corners) // _MAX_POINTS, 1)
    points = (corners[::step] - normal_set.world_from_unit[:3, 3]) / normal_set.scale
    reach = float(points.norm(dim=-1).max())
    # Black masks are reported by themselves.
    fractions = {
        view.name: _share_in_mask(normal_set, number, points)
        for number, view in enumerate(normal_set.views)
        if bool(view.mask.any())
    }
    if not fractions:
        return []
    worst = min(fractions, key=lambda name: fractions[name])
    if reach <= _MAX_REACH and fractions[worst] >= _MIN_IN_MASK:
        return []
    message = (
        f"the true mesh reaches {reach:.3g} from the origin of the unit sphere, and {fractions[worst]:.0%} of it "
        f"projects into the mask of view {worst} (the worst): it is not where the cameras see the object."
    )
    remedy = "Convert it to the units and axes of world_mat (millimeters for DiLiGenT-MV); training does not need it."
    return [DataFinding(name="mesh", severity="warning", message=message, remedy=remedy)]


def _share_in_mask(normal_set: NormalSet, number: int, points: Float[Tensor, "n 3"]) -> float:
    view = normal_set.views[number]
    pixels, depth = view.camera.project(points)
    height, width = view.size
    in_picture = (depth > 0) & (pixels >= 0).all(-1) & (pixels[:, 0] < width) & (pixels[:, 1] < height)
    # Pixels outside are replaced by (0, 0), a valid index, and masked out below.
    column, row = torch.where(in_picture[:, None], pixels, torch.zeros_like(pixels)).floor().long().unbind(-1)
    # One pixel of tolerance: silhouettes are drawn at pixel centers.
    dilated_mask = torch.nn.functional.max_pool2d(view.mask[None].float(), 3, 1, 1)[0] > 0
    return float((in_picture & dilated_mask[row, column]).double().mean())


def write_sheet(normal_set: NormalSet, path: Path) -> None:
    """Write the contact sheet as PNG, atomically.

    Raises:
        BadInput: the name does not end in .png, or the file cannot be written.
    """
    if path.suffix.lower() != ".png":
        raise BadInput(f"--picture {path}: the contact sheet is a PNG file: give a name that ends in .png")
    picture = Image.fromarray(normal_map_sheet(normal_set))
    try:
        with whole_file(path) as draft:
            picture.save(draft, "PNG")
    except OSError as error:
        raise BadInput(f"--picture {path} cannot be written ({error}): give a writable path") from error
