"""``fieldwatch import SOURCE -o RUN``: make a run folder of what another tool recorded."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from fieldwatch.base import printable
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import print_findings, print_json, print_paths, reading_input
from fieldwatch.record import Terminal, tags
from fieldwatch.report.imports import (
    ImportedRun,
    SourceRun,
    choose_run,
    find_runs,
    recorded_names,
    refuse_bad_steps,
    refuse_target,
    write_run,
)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Import a run that another tool recorded, so that report, health, compare and tensorboard work on it.

    Example: fieldwatch import wandb/offline-run-20261127_0658-x2 -o runs/imported

    Example: fieldwatch import logs/ --run version_0 --map val_loss=Eval/loss -o runs/imported

    Reads TensorBoard event files, W&B runs (run-*.wandb), MLflow (mlruns/ or mlflow.db), Trackio (PROJECT.db), and CSV
    files with a column step or epoch, such as Lightning's metrics.csv. Values, hyperparameters and pictures are kept.
    Names are kept, too, except that the training loss becomes Loss/total, which the health rules read. The source is
    only read.

    Exit codes: 0, or 2 if there is no run, if there are several, or if a file is damaged.
    """

    source: tyro.conf.Positional[Path]
    """File or folder of the other tool."""
    out: Annotated[Path, tyro.conf.arg(aliases=("-o",))]
    """Run folder to write; it must not exist."""
    run: str | None = None
    """Name of the run to import, if the source holds several."""
    map: tuple[str, ...] = ()
    """Other names for the record, each NAME=NEW, such as train/mse=Loss/total."""
    partial: bool = False
    """Import a damaged file up to the damage."""
    json: bool = False
    """Print the result as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch import", arguments=arguments)
    with reading_input():
        found = find_runs(chosen.source)
        refuse_target(chosen.source, chosen.out)
        source = choose_run(found, chosen.source, chosen.run).read(chosen.partial)
        refuse_bad_steps(source)
        names = recorded_names(source.series, chosen.map)
        written = write_run(source, names, chosen.out)
    renamed = {name: new for name, new in names.items() if name != new}
    if chosen.json:
        print_json(
            {
                "run": written.folder.absolute(),
                "tool": source.tool,
                "name": source.name,
                "from": source.place.absolute(),
                "steps": written.steps,
                "names": sorted(names.values()),
                "renamed": renamed,
                "pictures": written.pictures,
                "findings": [finding.as_event() for finding in written.findings],
                "notes": written.notes,
            }
        )
        return 0
    _print(source, written, renamed, has_loss=tags.TOTAL in names.values())
    return 0


def _print(source: SourceRun, written: ImportedRun, renamed: Mapping[str, str], *, has_loss: bool) -> None:
    console = Terminal()
    span = f"{written.first:,} to {written.last:,}" if written.steps > 1 else f"{written.first:,}"
    pictures = f", {written.pictures:,} pictures" if written.pictures else ""
    size = f"{written.steps:,} steps ({source.axis} {span}), {len(source.series):,} series{pictures}"
    lines = [
        f"{source.tool} run {printable(source.name)}: {size}",
        *(f"{printable(name)} is recorded as {printable(new)}" for name, new in renamed.items()),
    ]
    if not has_loss:
        known = ", ".join(map(printable, sorted(source.series)))
        lines.append(f"no training loss: if one of {known} is it, import with --map NAME={tags.TOTAL}")
    lines += [f"note: {printable(note)}" for note in written.notes]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    # Without a loss, hardly a rule can judge the run: to call it healthy would be too much.
    if has_loss or written.findings:
        print_findings(console, written.findings)
    print_paths(
        console, {"run": written.folder.absolute(), "show": f"fieldwatch report {shlex.quote(str(written.folder))}"}
    )
