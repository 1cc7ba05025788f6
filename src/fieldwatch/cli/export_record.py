"""``fieldwatch export RUN --to parquet/csv/tensorboard``: export the record of any run, without importing torch."""

import shlex
import sys
from pathlib import Path

from fieldwatch.base import output_path
from fieldwatch.cli.output import print_json, print_paths, reading_input
from fieldwatch.record import Terminal
from fieldwatch.record.exports import Target, export_record


def export_the_record(run: Path, to: Target, out: Path | None, *, overwrite: bool, json: bool) -> int:
    """Write the rows and events of a run.

    Args:
        run: run folder of any pipeline, or of a custom training loop.
        to: format of the files.
        out: folder to write; None means RUN/products.
        overwrite: whether to replace an earlier export.
        json: whether to print the result as JSON.

    Raises:
        BadInput: there is no run, nothing is recorded, the folder exists, or pyarrow is not installed.
    """
    folder = out or output_path(run, "products", f"record-{to}")
    with reading_input():
        written = export_record(run, to, folder, overwrite=overwrite)
    # On standard error, so that it does not mix with --json; the sound rows are exported.
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
    # Quoted: the line is meant to be copied into a shell.
    if to == "tensorboard":
        paths["show"] = f"tensorboard --logdir {shlex.quote(str(folder))}"
    print_paths(console, paths)
    return 0
