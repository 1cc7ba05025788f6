"""``fieldwatch compare``: runs beside each other, or the checkpoints of one run."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from fieldwatch.base import InputError
from fieldwatch.cli.options import parse_with_options, refuse_options
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
    """Say which of several runs is better, and why; or rank the checkpoints that one run has kept.

    Example: fieldwatch compare runs/a runs/b -o compare.html

    By seconds, and other metrics: fieldwatch compare runs/a runs/b --by time --metric Loss/total "Eval/*"

    With the logs of others: fieldwatch compare their_logs/ runs/mine --json

    Runs of one folder that repeat an experiment: fieldwatch compare logs/a logs/b --repeats

    Checkpoints: fieldwatch compare --checkpoints runs/bear

    Values at the end and best values, speed, memory, findings, what differs in config and environment, the first step
    where the runs differ, and whether seeds explain the difference. A folder may be a run, a TensorBoard folder that
    anybody wrote, or hold several of these. Nothing is written but the page.

    With --checkpoints: the run's pipeline scores each of them, by held-out data where there are some. Table and curves
    are written. The last one is not always the best; a run keeps few unless --keep-last says more.

    Exits with 0; with 2 for what cannot be read; with 1 when a checkpoint was left out.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, TensorBoard folders, or folders that hold some; with --checkpoints one run."""
    by: Literal["step", "time", "phase"] = "step"
    """What the runs are aligned by in the terminal; page and JSON have all three."""
    metric: tuple[str, ...] = ()
    """Metrics to show, * for any text; default: those that say which way is good. The first one decides."""
    repeats: bool = False
    """The runs in one given folder repeat one experiment with other seeds (needed where no config says so)."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Also write a page (.html) that opens offline; with --checkpoints the folder, default RUN/products/compare."""
    json: bool = False
    """Print what was found as JSON, and nothing else on standard output."""
    checkpoints: bool = False
    """Rank the checkpoints of one run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """--checkpoints: where to draw."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = parse_with_options(Arguments, "rank_options", "fieldwatch compare", arguments)
    # Ranking renders, and so imports torch; comparing reads records only.
    if chosen.checkpoints:
        folder = only_run(chosen.runs)
        ranking = import_module("fieldwatch.cli.compare_ranking")  # it draws, and so needs torch; the rest does not
        return int(ranking.rank(folder, chosen.device, chosen, chosen.out, as_json=chosen.json))
    refuse_options(chosen, "it is for --checkpoints, and runs beside each other are not drawn")
    if not chosen.runs:
        raise BadInput("0 runs were given (none): give two or more folders, or --checkpoints with one run")
    return compare_runs(chosen)


def only_run(runs: Sequence[Path]) -> Path:
    """Return the run whose checkpoints are to be ranked.

    Raises:
        BadInput: none or several were given.
    """
    if len(runs) != 1:
        names = " ".join(map(str, runs)) or "none"
        raise BadInput(
            f"{len(runs)} runs were given ({names}), and --checkpoints ranks those of one: give one run, or leave "
            "--checkpoints out to compare several"
        )
    return runs[0]


def compare_runs(chosen: Arguments) -> int:
    """Compare the runs; print the answer, and write the page that was asked for."""
    console = Terminal(stderr=chosen.json)
    with reading_input():
        refuse_other_files(chosen.out)
        with console.status("reading the runs"):
            comparison = compare(read_sides(chosen.runs), chosen.metric, repeats=chosen.repeats)
        if chosen.out is not None:
            write_page(comparison_account(comparison), chosen.out)
    page = chosen.out.absolute() if chosen.out is not None else None
    if chosen.json:
        print_json({**as_json(comparison), "page": page})
        return 0
    show(console, comparison, chosen.by)
    paths = {printable(side.name, 60): printable(side.folder.absolute(), 4096) for side in comparison.sides[:20]}
    print_paths(console, {**paths, **({"page": str(page)} if page else {})})
    if page is None:
        console.print("-o FILE.html writes all of it as a page, with curves", highlight=False)
    return 0


def refuse_other_files(path: Path | None) -> None:
    """Refuse a place for the page that holds something else.

    Raises:
        InputError: it is no .html file, a folder, or a file that is no page of ours.
    """
    if path is None:
        return
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise InputError(f"-o {path} is no HTML file: name one that ends with .html, such as compare.html")
    if path.exists() and not is_page(path):
        raise InputError(f"{path} exists and is no page of fieldwatch: name another file, or remove it")


def show(console: Console, comparison: Comparison, by: By) -> None:
    """Print the answer and its tables."""
    for part in tables(comparison, by):
        console.print(part, highlight=False)
