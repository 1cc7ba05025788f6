"""``fieldwatch compare``: compare runs, or rank the checkpoints of one run."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from fieldwatch.base import InputError
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.options import flags_with_options, refuse_options
from fieldwatch.cli.output import BadInput, print_json, print_paths, reading_input
from fieldwatch.record import Terminal
from fieldwatch.report.compare import (
    By,
    Comparison,
    as_json,
    compare,
    comparison_account,
    printable,
    read_sides,
    tables,
)
from fieldwatch.report.page import is_page, write_page


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Compare runs: which one is better, and why; or rank the checkpoints of one run.

    Example: fieldwatch compare runs/a runs/b -o compare.html

    By seconds, and other metrics: fieldwatch compare runs/a runs/b --by time --metric Loss/total "Eval/*"

    With the logs of others: fieldwatch compare their_logs/ runs/mine --json

    Runs of one folder that repeat an experiment: fieldwatch compare logs/a logs/b --repeats

    Checkpoints: fieldwatch compare --checkpoints runs/bear

    Reports final and best values, speed, memory, findings, differences of config and environment, the first step at
    which the runs differ, and whether random seeds explain it. A folder may be a run, a TensorBoard folder of
    any program, or hold several of these. Only the page of --out is written.

    With --checkpoints, the run's pipeline scores each checkpoint, on held-out data if there is some, and writes a table
    and curves. A run keeps few checkpoints unless it was trained with a larger --keep-last.

    Exit codes: 0; 1 if a checkpoint was left out; 2 if something cannot be read.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, TensorBoard folders, or folders of these; with --checkpoints one run."""
    by: Literal["step", "time", "phase"] = "step"
    """Axis by which the runs are aligned in the terminal; page and JSON have all three."""
    metric: tuple[str, ...] = ()
    """Metrics to list, * for any text; by default those with a known direction. The first one decides."""
    repeats: bool = False
    """The runs of each given folder repeat one experiment with other seeds (needed if they have no config)."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Also write a page (.html) that opens offline; with --checkpoints the folder, by default RUN/products/compare."""
    json: bool = False
    """Print the result as JSON, and nothing else on standard output."""
    checkpoints: bool = False
    """Rank the checkpoints of one run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """With --checkpoints: where to render."""


def flags_class(arguments: Sequence[str]) -> type[Arguments]:
    """Return the flags, with those that pipelines add.

    Raises:
        PipelineError: the package of the pipeline that trained the run cannot be used.
    """
    return flags_with_options(Arguments, "rank_options", arguments)


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(flags_class(arguments), prog="fieldwatch compare", arguments=arguments)
    # Ranking renders, and so imports torch; comparing reads records only.
    if chosen.checkpoints:
        folder = only_run(chosen.runs)
        ranking = import_module("fieldwatch.cli.compare_ranking")
        return int(ranking.rank(folder, chosen.device, chosen, chosen.out, as_json=chosen.json))
    refuse_options(chosen, "it needs --checkpoints")
    if not chosen.runs:
        raise BadInput("expected two or more run folders, or one with --checkpoints, got 0")
    return compare_runs(chosen)


def only_run(runs: Sequence[Path]) -> Path:
    """Return the run whose checkpoints are ranked.

    Raises:
        BadInput: there is not exactly one.
    """
    if len(runs) != 1:
        names = " ".join(map(str, runs)) or "none"
        raise BadInput(
            f"--checkpoints expects one run, got {len(runs)} ({names}): give one, or leave --checkpoints out to "
            "compare several runs"
        )
    return runs[0]


def compare_runs(chosen: Arguments) -> int:
    """Compare the runs; print the result, and write the page of ``--out``."""
    console = Terminal(stderr=chosen.json)
    with reading_input():
        # Before the comparison, which may take minutes.
        refuse_other_files(chosen.out)
        # A status line on standard error with --json; see `Terminal` above.
        with console.status("reading the runs"):
            comparison = compare(read_sides(chosen.runs), chosen.metric, repeats=chosen.repeats)
        if chosen.out is not None:
            write_page(comparison_account(comparison), chosen.out)
    page = chosen.out.absolute() if chosen.out is not None else None
    if chosen.json:
        print_json({**as_json(comparison), "page": page})
        return 0
    show(console, comparison, chosen.by)
    # Names come from folders of others: control characters are removed. A page lists more than 20 runs.
    paths = {printable(side.name, 60): printable(side.folder.absolute(), 4096) for side in comparison.sides[:20]}
    print_paths(console, {**paths, **({"page": str(page)} if page else {})})
    if page is None:
        console.print("-o FILE.html writes the whole comparison as a page, with curves", highlight=False)
    return 0


def refuse_other_files(path: Path | None) -> None:
    """Refuse to overwrite anything but a page of this program.

    Raises:
        InputError: the path is no .html file, is a folder, or is a file that this program did not write.
    """
    if path is None:
        return
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise InputError(f"-o {path} must be an HTML file: give a name that ends with .html, such as compare.html")
    if path.exists() and not is_page(path):
        raise InputError(f"{path} exists and is not a page of fieldwatch: choose another file, or remove it")


def show(console: Console, comparison: Comparison, by: By) -> None:
    """Print the result and its tables."""
    for part in tables(comparison, by):
        console.print(part, highlight=False)
