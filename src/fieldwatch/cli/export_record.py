"""``fieldwatch export RUN --to parquet/csv/tensorboard``: the record of any run, for other tools; without torch."""

import shlex
import sys
from pathlib import Path

from fieldwatch.base import output_path
from fieldwatch.cli.output import print_json, print_paths, reading_input
from fieldwatch.record import Terminal
from fieldwatch.record.exports import Target, export_record


def export_the_record(run: Path, to: Target, out: Path | None, *, overwrite: bool, json: bool) -> int:
    """Write a run's rows and events.

    Args:
        run: the run folder; of any pipeline, or of a loop of somebody's own.
        to: the kind of files.
        out: the folder to write; None means the run's products.
        overwrite: whether an earlier export may be replaced.
        json: print the answer as JSON.

    Raises:
        BadInput: there is no run, nothing was recorded, the folder is there, or pyarrow is not installed.
    """
    folder = out or output_path(run, "products", f"record-{to}")
    with reading_input():
        written = export_record(run, to, folder, overwrite=overwrite)
    for damage in written.damage:
        sys.stderr.write(f"damaged: {damage.message}\n")
    if json:
        print_json(
            {
                "run": run,
                "to": to,
                "folder": folder.absolute(),
                "files": written.files,
                "rows": written.rows,
                "metrics": written.columns,
            }
        )
        return 0
    console = Terminal()
    for table, rows in written.rows.items():
        metrics = f" of {written.columns[table]:,} metrics" if table in written.columns else ""
        console.print(f"{table}: {rows:,} rows{metrics}")
    console.print(f"{sum(written.files.values()):,} bytes")
    paths: dict[str, str | Path] = {to: folder.absolute()}
    if to == "tensorboard":
        paths["show"] = f"tensorboard --logdir {shlex.quote(str(folder))}"
    print_paths(console, paths)
    return 0
