"""``fieldwatch memory {FILE,RUN,latest}``: report on the memory of runs, or on snapshots of the allocator."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import BadInput, print_findings, print_json, print_paths, reading_input
from fieldwatch.health import exit_code
from fieldwatch.record import Terminal
from fieldwatch.report.memory import Analysis, analyze, comparison, labels, latest, memory_account, read_trace, report
from fieldwatch.report.page import write_page
from fieldwatch.report.ranks import RANKS, ranks_table, read_ranks
from fieldwatch.report.snapshot import read_snapshot, snapshot_account, snapshot_json, snapshot_table

LATEST = "latest"
# First byte of every pickle since protocol 2.
_PICKLE = b"\x80"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Report where the memory went: from a run folder, a memory.jsonl, a tensor log or an allocator snapshot.

    Example: fieldwatch memory runs/bunny --html memory.html

    Several inputs are listed side by side. Tensor logs of the original profiler are read, too; a snapshot (.pickle) is
    read without executing it. Only the page of --html is written. Exit codes: 0 without findings, 1 with findings, 2 if
    an input cannot be read.
    """

    inputs: tyro.conf.Positional[tuple[str, ...]]
    """Run folders, profiles/ folders, memory.jsonl, tensor_profile_*.log, *.pickle, or latest (the newest one here)."""
    json: bool = False
    """Print the report as JSON, and nothing else on standard output."""
    html: Path | None = None
    """Also write the report as one HTML page that opens offline."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch memory", arguments=arguments)
    if not chosen.inputs:
        raise BadInput("expected an input: a run folder, a memory.jsonl, a tensor log, a *.pickle, or latest")
    console = Terminal(stderr=chosen.json)
    with reading_input():
        paths = [_resolved(console, name) for name in chosen.inputs]
        snapshots = [_is_pickle(path) for path in paths]
    if all(snapshots):
        return _snapshots(chosen, console, paths)
    if any(snapshots):
        raise BadInput(
            f"{paths[snapshots.index(True)]} is a snapshot of the allocator, and "
            f"{paths[snapshots.index(False)]} is not: use one command for each kind"
        )
    return _traces(chosen, console, paths)


def _resolved(console: Console, name: str) -> Path:
    """Return the path of an input; print the path that ``latest`` stands for."""
    if name != LATEST or Path(name).exists():
        return Path(name)
    path = latest(Path())
    console.print(f"latest: {path}", soft_wrap=True, highlight=False, markup=False)
    return path


def _is_pickle(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(1)
    # An old or damaged pickle is still recognized by its name, so that its reader can report the damage.
    return start == _PICKLE or (path.suffix in (".pickle", ".pkl") and start != b"")


def _traces(chosen: Arguments, console: Console, paths: Sequence[Path]) -> int:
    with reading_input():
        traces = [read_trace(path, label) for path, label in zip(paths, labels(paths), strict=True)]
        analyses = [analyze(trace) for trace in traces]
        if chosen.html is not None:
            write_page(memory_account(analyses), chosen.html)
    files = {trace.label: trace.files[-1].absolute() for trace in traces}
    files |= {"page": chosen.html.absolute()} if chosen.html is not None else {}
    if chosen.json:
        print_json({"inputs": [analysis.as_json() for analysis in analyses], "html": chosen.html})
    else:
        _print(console, analyses)
        # A run with several processes also has a memory log per rank.
        for path in paths:
            if (path / RANKS).is_dir():
                console.print(ranks_table(read_ranks(path)))
        print_paths(console, files)
    return exit_code(finding for analysis in analyses for finding in analysis.findings)


def _print(console: Console, analyses: Sequence[Analysis]) -> None:
    if len(analyses) > 1:
        console.print(comparison(analyses))
    for analysis in analyses:
        # With several inputs the table above compares them; each adds only its notes and findings.
        if len(analyses) > 1:
            console.print(f"\n{analysis.trace.label}", soft_wrap=True, highlight=False, markup=False)
            for note in analysis.trace.notes:
                console.print(f"  {note}", highlight=False, markup=False)
        else:
            report(analysis, console)
        print_findings(console, analysis.findings)


def _snapshots(chosen: Arguments, console: Console, paths: Sequence[Path]) -> int:
    """Print tables of allocator snapshots; a page shows one snapshot."""
    if chosen.html is not None and len(paths) > 1:
        raise BadInput(f"--html shows one snapshot, got {len(paths)}: run the command once for each")
    with reading_input():
        snapshots = [read_snapshot(path) for path in paths]
        if chosen.html is not None:
            write_page(snapshot_account(snapshots[0]), chosen.html)
    if chosen.json:
        print_json({"snapshots": [snapshot_json(snapshot) for snapshot in snapshots], "html": chosen.html})
        return 0
    for snapshot in snapshots:
        console.print(snapshot_table(snapshot))
    files = {path.name: path.absolute() for path in paths}
    print_paths(console, files | ({"page": chosen.html.absolute()} if chosen.html is not None else {}))
    return 0
