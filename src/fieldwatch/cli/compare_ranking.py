"""``fieldwatch compare --checkpoints RUN``: rank the checkpoints of a run."""

import csv
from pathlib import Path
from typing import Any

import orjson
from PIL import Image
from rich.table import Table
from rich.text import Text

from fieldwatch.base import number, output_path, whole_file, write_file
from fieldwatch.cli.compare_checkpoints import CheckpointRanking, curves
from fieldwatch.cli.options import options_of
from fieldwatch.cli.output import print_json, print_paths, reading_input
from fieldwatch.cli.training import check_writable
from fieldwatch.record import Terminal
from fieldwatch.registry import pipeline_of
from fieldwatch.run import Device

FINDINGS = 1


def rank(folder: Path, device: Device, chosen: Any, place: Path | None, *, as_json: bool) -> int:
    """Rank the checkpoints of a run, write table and curves, and recommend one.

    Args:
        folder: run folder.
        device: device to render on.
        chosen: parsed command line, with the flags of pipelines.
        place: folder for the files; None means RUN/products/compare.
        as_json: whether to print JSON.

    Returns:
        0, or 1 if an unreadable checkpoint was left out.

    Raises:
        BadInput: the run cannot be read or has no checkpoint, or the files cannot be written.
    """
    with reading_input():
        pipeline = pipeline_of(folder, "rank")
    options = options_of(chosen, pipeline)
    compare = pipeline.load("rank")
    out = place or output_path(folder, "products", "compare")
    console = Terminal(stderr=as_json)
    with reading_input():
        # Scoring may take minutes: find out first whether the result can be written.
        check_writable(out)
        with console.status("evaluating the checkpoints") as status:
            ranking = compare(folder, device, options, lambda step: status.update(f"step {step}"))
        files = write_files(ranking, out)
    paths = {name: path.absolute() for name, path in files.items()}
    best = ranking.rows[0]
    advice = f"best is step {best.step} (iteration {best.iteration:,}): use --checkpoint {best.step}"
    if as_json:
        rows = [row.flat() for row in ranking.rows]
        about = {"run": folder, "ranked_by": ranking.ranked_by, "best": best.step, "advice": advice}
        print_json({**about, "checkpoints": rows, "left_out": ranking.left_out, "files": paths})
    else:
        console.print(table_of(ranking))
        console.print(Text(f"{advice}; ranked by {ranking.ranked_by}"), soft_wrap=True)
        if len(ranking.rows) == 1:
            console.print("there is only one checkpoint: train with a larger --keep-last to keep more", soft_wrap=True)
        print_paths(console, paths)
    for step, why in ranking.left_out.items():
        console.print(Text(f"step {step} was left out: {why}", "yellow"), soft_wrap=True)
    return FINDINGS if ranking.left_out else 0


def table_of(ranking: CheckpointRanking) -> Table:
    """Return a table with one row per checkpoint, the best first."""
    table = Table(title="checkpoints, the best first", title_justify="left")
    # Columns without any value are left out, such as held-out PSNR if no photo is held out.
    columns = [name for name in ranking.columns if any(row.figures.get(name) is not None for row in ranking.rows)]
    for name in ("step", "iteration", *columns, "score"):
        table.add_column(name, justify="right")
    for row in ranking.rows:
        values = (_written(row.figures.get(name), ranking.columns[name]) for name in columns)
        table.add_row(str(row.step), number(row.iteration), *values, number(row.score, 3))
    return table


def write_files(ranking: CheckpointRanking, folder: Path) -> dict[str, Path]:
    """Write the table and the curves; return the files by content."""
    rows = [row.flat() for row in ranking.rows]
    table_file = output_path(folder, "checkpoints.csv")
    # Atomic writes: an interrupted command leaves the previous table.
    with whole_file(table_file) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table: dict[str, Any] = {"ranked_by": ranking.ranked_by, "best": ranking.rows[0].step, "checkpoints": rows}
    data = orjson.dumps(table, option=orjson.OPT_INDENT_2) + b"\n"
    drawing = output_path(folder, "checkpoints.png")
    with whole_file(drawing) as draft:
        Image.fromarray(curves(ranking)).save(draft, "PNG")
    return {"table": table_file, "json": write_file(output_path(folder, "checkpoints.json"), data), "curves": drawing}


def _written(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
