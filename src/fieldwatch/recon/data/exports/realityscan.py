"""RealityScan's and RealityCapture's CSV of internal and external camera parameters, one row per photo.

Columns: name; x, y, alt (position); heading or yaw, pitch, roll (degrees); f (focal length for a sensor 36 mm wide);
px, py (principal point relative to the center); k1 to k4, t1, t2. The rotation from the camera (axes right, up, back)
to the world is Rz(-heading) Rx(pitch) Ry(roll), as Nerfstudio and Brush read it. px, py are fractions of the longer
side: RealityScan's own header calls them px_norm, py_norm.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from fieldwatch.recon.data.exports.axes import brown_lens, number, pose_of, turn_about
from fieldwatch.recon.data.exports.error import ExportError
from fieldwatch.recon.data.exports.model import CameraExport, ExportedCamera
from fieldwatch.recon.geometry import Lens

PROGRAM = "RealityScan"
_ALIASES = {"yaw": "heading", "f_35mm": "f", "px_norm": "px", "py_norm": "py"}
_NEEDED = frozenset({"name", "x", "y", "alt", "heading", "pitch", "roll", "f"})
_FILM_WIDTH = 36.0  # millimeters
_REMEDY = (
    "export it again with Alignment, Export, Registration, Internal/External camera parameters, in local Euclidean "
    "coordinates"
)


def is_realityscan(file: Path) -> bool:
    """Return whether a CSV file has the columns of the export."""
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        return set(_columns(lines.readline(1 << 12))) >= _NEEDED


def read_realityscan(file: Path) -> CameraExport:
    """Read the cameras of a CSV file.

    Raises:
        ExportError: if a column is missing, a number is not one, or there are no rows.
    """
    lines = file.read_text("utf-8-sig", "replace").splitlines()
    columns = _columns(lines[0] if lines else "")
    if missing := sorted(_NEEDED - set(columns)):
        raise ExportError(f"{file} lacks the columns {', '.join(missing)}: {_REMEDY}")
    rows = [dict(zip(columns, row, strict=False)) for row in csv.reader(lines[1:]) if row]
    if not rows:
        raise ExportError(f"{file} has no rows: align the photos, and {_REMEDY}")
    return CameraExport(
        program=PROGRAM, file=file, cameras=tuple(_camera(row, file) for row in rows), photos=file.parent
    )


def _columns(header: str) -> list[str]:
    names = [name.strip().lstrip("#").strip().lower() for name in header.split(",")]
    return [_ALIASES.get(name, name) for name in names]


def _camera(row: Mapping[str, str], file: Path) -> ExportedCamera:
    where = f"{file}, {row['name']}"
    values = {name: number(text, where, name) for name, text in row.items() if name != "name" and text.strip()}
    if missing := sorted(_NEEDED - set(values) - {"name"}):
        raise ExportError(f"{where}: expected numbers for {', '.join(missing)}: {_REMEDY}")
    turn = turn_about("z", -values["heading"]) @ turn_about("x", values["pitch"]) @ turn_about("y", values["roll"])
    position = [values[name] for name in ("x", "y", "alt")]
    return ExportedCamera(
        name=row["name"].strip(),
        lens=lambda size: _lens(size, values, where),
        world_from_camera=pose_of(turn, position, where, opengl=True),
    )


def _lens(size: tuple[int, int], values: Mapping[str, float], where: str) -> Lens:
    longer = max(size)
    focal = values["f"] / _FILM_WIDTH * longer
    return brown_lens(
        size,
        focal=(focal, focal),
        center=(size[0] / 2 + values.get("px", 0.0) * longer, size[1] / 2 + values.get("py", 0.0) * longer),
        radial=[values.get(f"k{i}", 0.0) for i in range(1, 5)],
        tangential=(values.get("t1", 0.0), values.get("t2", 0.0)),
        where=where,
    )
