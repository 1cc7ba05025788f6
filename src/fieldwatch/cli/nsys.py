"""Shared parts of the two ``fieldwatch nsys`` commands: finding nsys, and printing its statistics."""

import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fieldwatch.cli.output import BadInput
from fieldwatch.monitor.nsight import Statistics, find_nsys, parse_statistics, report_file, stats_line

TABLE_ROWS = 5
"""Number of printed rows per table; the report holds all."""
COLUMNS = {
    "cuda_gpu_kern_sum": ("Time (%)", "Instances", "Avg (ns)", "Name"),
    "cuda_gpu_mem_size_sum": ("Total (MB)", "Count", "Avg (MB)", "Operation"),
    "nvtx_sum": ("Time (%)", "Instances", "Avg (ns)", "Range"),
}


def required_nsys() -> str:
    """Return the path of nsys.

    Raises:
        BadInput: nsys is not installed; the message says where to get it.
    """
    path = find_nsys()
    if path is None:
        raise BadInput(
            "nsys (NVIDIA Nsight Systems) was found neither on PATH nor in /opt/nvidia or /usr/local/cuda: install it "
            "(https://developer.nvidia.com/nsight-systems, or the package nsight-systems), or put it on PATH"
        )
    return path


def report_place(out: Path | None) -> Path:
    """Return the path of a report without its suffix; by default a new name under ``nsight/``.

    Raises:
        BadInput: the report exists already, or its folder cannot be created.
    """
    stem = out or Path("nsight") / datetime.now().astimezone().strftime("%Y%m%d_%H%M%S")
    # nsys adds the suffix itself.
    stem = stem.absolute().with_name(stem.name.removesuffix(".nsys-rep"))
    if report_file(stem).exists():
        raise BadInput(f"{report_file(stem)} exists already: choose another name with --out, or move it away")
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot create the folder of the report ({error}): choose another one with --out") from error
    return stem


def statistics(nsys: str, report: Path) -> tuple[Statistics, ...]:
    """Return the statistics tables of a report.

    Raises:
        BadInput: nsys could not read the report; the message includes its output.
    """
    done = _called(stats_line(nsys, report))
    tables = parse_statistics(done.stdout)
    # Tables that were printed before an error are still useful.
    if done.returncode != 0 and not tables:
        output = (done.stderr or done.stdout).strip()
        raise BadInput(f"the report {report} was written, but `nsys stats` could not read it: {output}")
    return tables


def print_statistics(console: Console, tables: Sequence[Statistics]) -> None:
    """Print the first rows of each table."""
    if not any(table.rows for table in tables):
        console.print("The report holds no CUDA work and no named ranges.")
    for statistic in tables:
        if not statistic.rows:
            continue
        # Unknown reports and other column names: print all columns.
        columns = [name for name in COLUMNS.get(statistic.report, ()) if name in statistic.rows[0]]
        names = columns or list(statistic.rows[0])
        table = Table(title=Text(statistic.title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in names:
            last = name == names[-1]
            table.add_column(name, justify="left" if last else "right", no_wrap=True, overflow="ellipsis")
        for row in statistic.rows[:TABLE_ROWS]:
            table.add_row(*(Text(row[name]) for name in names))
        console.print(table)


def _called(line: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603  our command line, no shell
