"""``fieldwatch data photos FILM-or-FOLDER``: photos with cameras, in COLMAP's layout."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

from fieldwatch.cli.kit import Terminal, print_json, print_paths, read_flags, reading_input, write_page
from fieldwatch.files import output_path, whole_file
from fieldwatch.recon.commands.capture.flags import PhotosFlags
from fieldwatch.recon.commands.capture.outcome import CaptureOutcome, outcome_of, print_outcome
from fieldwatch.recon.commands.capture.process import CaptureFailedError, capture
from fieldwatch.recon.commands.capture.sheet import contact_sheet
from fieldwatch.recon.data.capture import REPORTS, CaptureSettings

FAILED = 3


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(PhotosFlags, prog="fieldwatch data photos", arguments=arguments)
    chosen = replace(chosen, input=chosen.input.expanduser(), out=chosen.out.expanduser())
    # Standard output has the result alone.
    progress = Terminal(stderr=True)
    try:
        outcome = find_cameras(chosen.input, chosen.out, chosen.settings, progress, overwrite=chosen.overwrite)
    except CaptureFailedError as error:
        sys.stderr.write(f"fieldwatch data photos: {error}\n")
        return FAILED
    if chosen.json:
        print_json(outcome.as_json())
    else:
        console = Terminal()
        print_outcome(console, outcome)
        print_paths(console, {**outcome.files, "train on it": outcome.train_command})
    return int(outcome.is_poor)


def find_cameras(
    path: Path, out: Path, settings: CaptureSettings, console: Console, *, overwrite: bool = False
) -> CaptureOutcome:
    """Find the cameras of a film or photos, and write the report.

    Raises:
        InputError: the input or the folder cannot be used.
        CaptureFailedError: the process that finds them crashed, or was killed.
    """
    with reading_input():
        try:
            capture(path, out, settings, console, overwrite=overwrite)
        except KeyboardInterrupt:
            console.print(Text(f"interrupted; the same command continues with what is in {out}"), soft_wrap=True)
            raise
        outcome = outcome_of(out)
        write_reports(outcome)
    return outcome


def write_reports(outcome: CaptureOutcome) -> None:
    """Write the contact sheet and the page."""
    from fieldwatch.recon.commands.capture.page import capture_account  # noqa: PLC0415  at first use: it loads torch

    page, sheet = (output_path(outcome.folder, name) for name in REPORTS)
    pixels = contact_sheet(outcome)
    with whole_file(sheet) as draft:
        Image.fromarray(pixels).save(draft, "PNG")
    write_page(capture_account(outcome, pixels), page)
