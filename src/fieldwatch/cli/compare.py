"""``fieldwatch compare --checkpoints RUN``: which of a run's checkpoints is best, and by what."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import tyro
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


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Rank the checkpoints that a run has kept: the last one is not always the best.

    Example: fieldwatch compare --checkpoints runs/bear

    Of normals: the mesh's Chamfer distance where the true mesh is known, and the mean angular error, of the held-out
    views where there are some. The score is the geometric mean of both over their best values: 1 is best in everything.
    Of splats: PSNR, of held-out photos where there are some; the score is what is missing to the best, dB. Written are
    a table (CSV, JSON) and curves over the iterations. A run keeps few checkpoints unless --keep-last says more.

    Exits with 0; with 1 when a checkpoint could not be read and was left out.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The run folder."""
    checkpoints: bool = False
    """Compare the checkpoints of one run."""
    resolution: int | None = None
    """Normals: nodes of the meshes along a side of their box; default: as in the training."""
    device: Device = "auto"
    """Where to draw."""
    out: Path | None = None
    """Where the files go; default RUN/products/compare."""
    json: bool = False
    """Print what was found as JSON, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = tyro.cli(Arguments, prog="fieldwatch compare", args=arguments)
    folder = the_run(chosen)
    compare = by_pipeline(folder, {"normals": compare_normals, "splats": compare_splats})
    out = chosen.out or folder / "products" / "compare"
    console = Console(stderr=chosen.json)
    with reading_input():
        check_writable(out)
        with console.status("looking at the checkpoints") as status:
            found = compare(folder, chosen.device, chosen.resolution, lambda step: status.update(f"step {step}"))
        files = write_files(found, out)
    places = {name: path.absolute() for name, path in files.items()}
    best = found.rows[0]
    advice = f"best is step {best.step} (iteration {best.iteration:,}): use --checkpoint {best.step}"
    if chosen.json:
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


def the_run(chosen: Arguments) -> Path:
    """Return the run whose checkpoints are to be compared.

    Raises:
        BadInput: none, several, or the flag is missing.
    """
    names = " ".join(map(str, chosen.runs))
    if len(chosen.runs) != 1:
        raise BadInput(
            f"{len(chosen.runs)} runs were given ({names or 'none'}): runs side by side are not compared yet; give "
            "one and --checkpoints to rank its checkpoints, as in fieldwatch compare --checkpoints runs/bear"
        )
    if not chosen.checkpoints:
        raise BadInput(f"{names} alone can be compared with nothing: add --checkpoints to rank its checkpoints")
    if chosen.resolution is not None and not 8 <= chosen.resolution <= 512:
        raise BadInput(f"--resolution is {chosen.resolution}: wanted 8 to 512 nodes along a side of the box")
    return chosen.runs[0]


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
