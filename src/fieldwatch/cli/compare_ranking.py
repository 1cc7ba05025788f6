"""``fieldwatch compare --checkpoints RUN``: which of a run's checkpoints is best, and by what."""

import csv
from pathlib import Path
from typing import Any

import orjson
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fieldwatch.cli.compare_checkpoints import Compared, compare_normals, compare_splats, curves
from fieldwatch.cli.ending import BadInput, print_json, print_places, reading_input
from fieldwatch.cli.pipeline import by_pipeline
from fieldwatch.cli.training import check_writable
from fieldwatch.run import Device

FINDINGS = 1


def rank(folder: Path, device: Device, resolution: int | None, place: Path | None, *, as_json: bool) -> int:
    """Rank the checkpoints of a run, write table and curves, and say which to use.

    Args:
        folder: the run.
        device: where to draw.
        resolution: nodes of the meshes along a side; None takes the run's own.
        place: the folder for the files; None is the run's products/compare.
        as_json: print the answer for a script.

    Returns:
        0, or 1 when a checkpoint could not be read and was left out.

    Raises:
        BadInput: the run cannot be read, has no checkpoint, or the files cannot be written.
    """
    if resolution is not None and not 8 <= resolution <= 512:
        raise BadInput(f"--resolution is {resolution}: wanted 8 to 512 nodes along a side of the box")
    compare = by_pipeline(folder, {"normals": compare_normals, "splats": compare_splats})
    out = place or folder / "products" / "compare"
    console = Console(stderr=as_json)
    with reading_input():
        check_writable(out)
        with console.status("looking at the checkpoints") as status:
            found = compare(folder, device, resolution, lambda step: status.update(f"step {step}"))
        files = write_files(found, out)
    places = {name: path.absolute() for name, path in files.items()}
    best = found.rows[0]
    advice = f"best is step {best.step} (iteration {best.iteration:,}): use --checkpoint {best.step}"
    if as_json:
        rows = [row.flat() for row in found.rows]
        about = {"run": folder, "ranked_by": found.ranked_by, "best": best.step, "advice": advice}
        print_json({**about, "checkpoints": rows, "left_out": found.left_out, "files": places})
    else:
        console.print(table_of(found))
        console.print(Text(f"{advice}; ranked by {found.ranked_by}"), soft_wrap=True)
        if len(found.rows) == 1:
            console.print("there is only one: train with a larger --keep-last to have others", soft_wrap=True)
        print_places(console, places)
    for step, why in found.left_out.items():
        console.print(Text(f"step {step} was left out: {why}", "yellow"), soft_wrap=True)
    return FINDINGS if found.left_out else 0


def table_of(found: Compared) -> Table:
    """One row per checkpoint, the best first."""
    table = Table(title="checkpoints, the best first", title_justify="left")
    columns = [name for name in found.columns if any(row.figures.get(name) is not None for row in found.rows)]
    for name in ("step", "iteration", *columns, "score"):
        table.add_column(name, justify="right")
    for row in found.rows:
        values = (_written(row.figures.get(name), found.columns[name]) for name in columns)
        table.add_row(str(row.step), f"{row.iteration:,}", *values, f"{row.score:.3f}")
    return table


def write_files(found: Compared, folder: Path) -> dict[str, Path]:
    """Write the table and the curves; returns them by what they are."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row.flat() for row in found.rows]
    with (folder / "checkpoints.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table: dict[str, Any] = {"ranked_by": found.ranked_by, "best": found.rows[0].step, "checkpoints": rows}
    (folder / "checkpoints.json").write_bytes(orjson.dumps(table, option=orjson.OPT_INDENT_2) + b"\n")
    Image.fromarray(curves(found)).save(folder / "checkpoints.png")
    return {
        "table": folder / "checkpoints.csv",
        "json": folder / "checkpoints.json",
        "curves": folder / "checkpoints.png",
    }


def _written(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
