"""``fieldwatch health RUN``: what the rules find in a run, finished or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.text import Text

from fieldwatch.cli.ending import print_findings, print_json, reading_input
from fieldwatch.cli.pipeline import pipeline_of, rules_of
from fieldwatch.health import examine, exit_code
from fieldwatch.monitor import read_post_mortems
from fieldwatch.record import read_manifest


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Examine a run by the rules it was trained under, and list its deaths; its record is read, nothing is written.

    Example: fieldwatch health runs/bunny --json

    Exits with 0 when nothing is worse than a note, 1 with warnings or errors, 3 when the run had to stop.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    json: bool = False
    """Print the findings as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = tyro.cli(Arguments, prog="fieldwatch health", args=arguments)
    with reading_input():
        manifest = read_manifest(chosen.run)
        findings = examine(chosen.run, rules_of(pipeline_of(chosen.run)))
        deaths = read_post_mortems(chosen.run)
    if chosen.json:
        found = [finding.as_event() for finding in findings]
        print_json({"run": chosen.run, "state": manifest.state, "findings": found, "post_mortems": deaths})
    else:
        console = Console()
        console.print(f"{chosen.run}: {manifest.state}")
        print_findings(console, findings)
        for death in deaths:
            what = f"{death.get('cause', 'unknown')} in step {death.get('step', '?')}: {death.get('error', '')}"
            console.print(Text(f"died of {what} ({death['place']})"), soft_wrap=True)
    return exit_code(findings, stopped=manifest.state == "diverged")
