"""``fieldwatch compare --checkpoints RUN``: which of a run's checkpoints is best, and by what."""

import csv
from pathlib import Path
from typing import Any

import orjson
from PIL import Image
from rich.table import Table
from rich.text import Text

from fieldwatch.base import output_path, whole_file, write_file
from fieldwatch.cli.compare_checkpoints import Compared, curves
from fieldwatch.cli.ending import print_json, print_places, reading_input
from fieldwatch.cli.options import options_of
from fieldwatch.cli.training import check_writable
from fieldwatch.record import Terminal
from fieldwatch.registry import pipeline_of
from fieldwatch.run import Device

FINDINGS = 1


def rank(folder: Path, device: Device, chosen: Any, place: Path | None, *, as_json: bool) -> int:
    """Rank the checkpoints of a run, write table and curves, and say which to use.

    Args:
        folder: the run.
        device: where to draw.
        chosen: the command line, with the further flags of pipelines.
        place: the folder for the files; None is the run's products/compare.
        as_json: print the answer for a script.

    Returns:
        0, or 1 when a checkpoint could not be read and was left out.

    Raises:
        BadInput: the run cannot be read, has no checkpoint, or the files cannot be written.
    """
    with reading_input():
        pipeline = pipeline_of(folder, "rank")
    options = options_of(chosen, pipeline)
    compare = pipeline.load("rank")
    out = place or output_path(folder, "products", "compare")
    console = Terminal(stderr=as_json)
    with reading_input():
        check_writable(out)
        with console.status("looking at the checkpoints") as status:
            found = compare(folder, device, options, lambda step: status.update(f"step {step}"))
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
    rows = [row.flat() for row in found.rows]
    table_file = output_path(folder, "checkpoints.csv")
    with whole_file(table_file) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table: dict[str, Any] = {"ranked_by": found.ranked_by, "best": found.rows[0].step, "checkpoints": rows}
    data = orjson.dumps(table, option=orjson.OPT_INDENT_2) + b"\n"
    drawing = output_path(folder, "checkpoints.png")
    with whole_file(drawing) as draft:
        Image.fromarray(curves(found)).save(draft, "PNG")
    return {"table": table_file, "json": write_file(output_path(folder, "checkpoints.json"), data), "curves": drawing}


def _written(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
