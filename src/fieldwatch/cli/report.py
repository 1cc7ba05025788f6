"""``fieldwatch report RUN``: write a run as one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.text import Text

from fieldwatch.base import nbytes
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import BadInput, print_json, print_paths, reading_input
from fieldwatch.record import Terminal
from fieldwatch.report.account import account_of
from fieldwatch.report.page import is_page, write_page

NAME = "report.html"
COLORS = {"healthy": "green", "notes": "green", "findings": "yellow", "failed": "bold red", "running": "cyan"}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Write a run as one page: verdict, losses, gradients, memory, timing, quality, growth, checkpoints, config.

    Example: fieldwatch report runs/bunny -o bunny.html

    The page opens offline in any browser, on a phone, and prints well. The run is only read, and may still be training.
    Exit code 0 means that the page was written, whatever the run's state; `fieldwatch health` reports that one.
    """

    run: tyro.conf.Positional[Path]
    """Run folder, or its run.json."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o", "--out"])] = None
    """File to write, or a folder for report.html; by default report.html in the run folder."""
    json: bool = False
    """Print the report's data as JSON, and write nothing."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch report", arguments=arguments)
    folder = chosen.run.parent if chosen.run.name == "run.json" else chosen.run
    with reading_input():
        path = _place(folder, chosen.output)
        if not chosen.json:
            _check(path)
        account = account_of(folder)
    if chosen.json:
        print_json(account)
        return 0
    with reading_input():
        write_page(account, path)
    _print_verdict(account, path)
    return 0


def _place(folder: Path, output: Path | None) -> Path:
    """Return the file to write: the named file, or report.html in the named folder or in the run folder."""
    if output is None:
        return folder / NAME
    is_folder = output.is_dir() or (not output.suffix and not output.exists())
    return output / NAME if is_folder else output


def _check(path: Path) -> None:
    """Refuse to overwrite anything but a report."""
    if path.parent.exists() and not path.parent.is_dir():
        msg = (
            f"{path.parent} is a file, so no report can be written into it: give a folder, or a file with -o FILE.html"
        )
        raise BadInput(msg)
    if path.is_dir() or (path.exists() and not is_page(path)):
        msg = f"{path} exists and is not a report, so it is not overwritten: give another file with -o FILE.html"
        raise BadInput(msg)


def _print_verdict(account: dict[str, Any], path: Path) -> None:
    console = Terminal()
    verdict = account["verdict"]
    # Names in a run may hold control characters, which a terminal would interpret.
    title = "".join(c if c.isprintable() else "?" for c in str(verdict["title"]))
    console.print(Text(title, COLORS.get(verdict["level"], "")), soft_wrap=True, highlight=False)
    size = nbytes(path.stat().st_size)
    console.print(f"{account['run']['rows']:,} rows, {len(account['series'])} series in {size}", highlight=False)
    print_paths(console, {"report": path.absolute()})
