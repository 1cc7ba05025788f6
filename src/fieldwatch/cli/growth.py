"""``fieldwatch growth RUN``: the effect of every densification, prune and reset of a run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from rich.console import Console

from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import print_json, print_paths, reading_input
from fieldwatch.record import EVENTS, JOURNAL, Terminal, read_manifest
from fieldwatch.registry import population_of
from fieldwatch.report.growth import (
    LedgerEntry,
    chosen_entries,
    growth_ledger,
    ledger_table,
    totals_of,
    totals_text,
    write_csv,
)

LEGEND = """
left: number of {population}. loss, allocated MiB: mean of the 20 steps after, minus mean of the 20 steps before.
PSNR, dB: over the same steps, each photo compared with its previous visit.
back: steps until a drop of more than 1 dB was recovered; never: not within 200.
If one step has two events, the change is attributed to the second.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """List every densification, prune and reset of a run: size, loss, PSNR and memory before and after.

    Example: fieldwatch growth runs/bunny --csv growth.csv

    The run is only read; only the CSV file is written. Exit codes: 0, or 2 if there is no such run.
    """

    run: tyro.conf.Positional[Path]
    """Run folder."""
    all: bool = False
    """List every event; by default at most 40: all prunes, resets and lasting drops, then the largest growth."""
    json: bool = False
    """Print the events as JSON, and nothing else on standard output."""
    csv: Path | None = None
    """Also write every event to this file."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch growth", arguments=arguments)
    with reading_input():
        read_manifest(chosen.run)
        entries = growth_ledger(chosen.run)
        # All entries, also those that the table leaves out.
        if chosen.csv is not None:
            write_csv(entries, chosen.csv)
    totals = totals_of(entries)
    population = population_of(chosen.run)
    if chosen.json:
        events = [asdict(entry) | {"lasting": entry.lasting} for entry in entries]
        print_json({"run": chosen.run, "totals": asdict(totals), "events": events, "csv": chosen.csv})
        return 0
    console = Terminal()
    if entries:
        _print(console, entries, chosen.run, population, everything=chosen.all)
        console.print(totals_text(totals, population), highlight=False)
    else:
        console.print(
            f"{chosen.run}: no densification, prune or reset is recorded: the number of {population} never changed",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    paths = {"events": (chosen.run / EVENTS).absolute(), "journal": (chosen.run / JOURNAL).absolute()}
    print_paths(console, paths | ({"csv": chosen.csv.absolute()} if chosen.csv is not None else {}))
    return 0


def _print(
    console: Console, entries: Sequence[LedgerEntry], folder: Path, population: str, *, everything: bool
) -> None:
    listed = list(entries) if everything else chosen_entries(entries)
    more = f", {len(listed)} of them shown (--all shows all)" if len(listed) < len(entries) else ""
    console.print(f"{folder}: {len(entries)} events{more}", soft_wrap=True, highlight=False, markup=False)
    console.print(ledger_table(listed), highlight=False)
    console.print(LEGEND.format(population=population), style="dim", highlight=False)
