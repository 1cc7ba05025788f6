"""Output of the growth ledger: a table of at most 80 columns, totals, and a CSV file."""

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.table import Table
from rich.text import Text

from fieldwatch.base import number, percent, spreadsheet_cell, whole_file
from fieldwatch.report.growth.entry import GrowthTotals, LedgerEntry

MOST = 40
"""Default maximum number of rows of the table."""
_COLORS = {"growth": "", "prune": "magenta", "reset": "cyan"}
_Column = tuple[str, Callable[[LedgerEntry], str]]
"""Heading of a column, and the function that returns its cell."""


def chosen_entries(entries: Sequence[LedgerEntry], most: int = MOST) -> list[LedgerEntry]:
    """Return at most ``most`` entries in order; lasting drops, prunes and resets first, then large growths."""
    if len(entries) <= most:
        return list(entries)
    ranked = sorted(
        entries, key=lambda entry: (not entry.lasting, entry.kind == "growth", -abs(entry.after - entry.before))
    )
    # By identity: two events of a step can have equal entries.
    kept = {id(entry) for entry in ranked[:most]}
    return [entry for entry in entries if id(entry) in kept]


def ledger_table(entries: Sequence[LedgerEntry]) -> Table:
    """Return the table without empty columns."""
    columns = list(_columns(entries))
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="bold")
    for name, _ in columns:
        table.add_column(name, justify="left" if name == "event" else "right", no_wrap=True)
    for entry in entries:
        style = "bold red" if entry.lasting else _COLORS[entry.kind]
        table.add_row(*(Text(cell(entry)) for _, cell in columns), style=style)
    return table


def totals_text(totals: GrowthTotals, population: str = "primitives") -> Text:
    """Return the totals as lines of text.

    Args:
        totals: totals of the ledger.
        population: plural name of the model's primitives.
    """
    kinds = ((totals.growths, "growth step"), (totals.prunes, "prune"), (totals.resets, "reset"))
    happened = ", ".join(f"{count:,} {name}{'s' if count != 1 else ''}" for count, name in kinds if count)
    moves = ("cloned", "split", "pruned", "relocated", "drawn")
    parts = [f"{getattr(totals, name):,} {name}" for name in moves if getattr(totals, name)]
    lines = [f"{happened}: {', '.join(parts) or f'no {population} added or removed'}"]
    if totals.too_large:
        lines.append(f"pruned for their size (--largest-size): {totals.too_large:,}")
    if totals.last:
        peak = f", at most {totals.most:,}" if totals.most > max(totals.first, totals.last) else ""
        lines.append(f"{population}: {totals.first:,} -> {totals.last:,}{peak}")
    if totals.held_back:
        lines.append(f"held back by the cap: {totals.held_back:,} times")
    text = Text("\n".join(lines))
    if totals.lasting:
        steps = ", ".join(map(str, totals.lasting[:8])) + (" ..." if len(totals.lasting) > 8 else "")
        warning = f"\nPSNR fell by more than 1 dB and did not recover within 200 steps, after: {steps}"
        text.append(warning, style="bold red")
    return text


def write_csv(entries: Sequence[LedgerEntry], path: Path) -> None:
    """Write a CSV file with one line per event and all columns; unknown values are empty.

    Raises:
        OSError: if the file cannot be written.
    """
    names = [field.name for field in fields(LedgerEntry)]
    # All columns also if they are empty: a script must find the same ones in every run.
    with whole_file(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "lasting"])
        for entry in entries:
            values = asdict(entry)
            writer.writerow([*(_plain(values[name]) for name in names), int(entry.lasting)])


def _plain(value: object) -> object:
    """Return a value for the CSV file; empty if it is not finite."""
    return "" if isinstance(value, float) and not math.isfinite(value) else spreadsheet_cell(value)


def _columns(entries: Sequence[LedgerEntry]) -> Iterator[_Column]:
    yield "step", lambda entry: str(entry.step)
    yield "event", lambda entry: entry.kind
    short = {"cloned": "cloned", "split": "split", "pruned": "pruned", "relocated": "moved", "drawn": "drawn"}
    for name, head in (short | {"held_back": "held"}).items():
        if any(getattr(entry, name) for entry in entries):
            # The default binds the name of this iteration; a closure would see the last one.
            yield head, lambda entry, name=name: _count(getattr(entry, name))
    yield "after", lambda entry: _count(entry.after) or "-"
    yield "loss", lambda entry: _loss_change(entry.loss_before, entry.loss_after)
    yield "PSNR", lambda entry: number(round(entry.psnr_change, 2), signed=True)
    if any(entry.lasting or entry.recovered_after for entry in entries):
        yield "recovered", lambda entry: "never" if entry.lasting else str(entry.recovered_after or "")
    if any(math.isfinite(entry.memory_after - entry.memory_before) for entry in entries):
        yield "MiB", lambda entry: number(round(entry.memory_after - entry.memory_before, 1), signed=True)


def _loss_change(before: float, after: float) -> str:
    """Return the change of a loss in percent; from fivefold on as a factor."""
    # A ratio of losses makes sense for positive ones only.
    if not (before > 0 and math.isfinite(after)):
        return "-"
    return percent(after / before - 1, 0, signed=True) if after < 5 * before else f"x{number(round(after / before))}"


def _count(count: int) -> str:
    """Return a count in at most six characters, so that the table fits 80 columns; nothing for 0."""
    if count < 100_000:
        return number(count) if count else ""
    return f"{count / 1e3:.0f}k" if count < 1_000_000 else f"{count / 1e6:.2f}M"
