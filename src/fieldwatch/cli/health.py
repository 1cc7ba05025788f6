"""``fieldwatch health RUN``: examine a run with the health rules, finished or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.text import Text

from fieldwatch.cli.annotations import print_annotations
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import (
    BadInput,
    closer_look,
    print_findings,
    print_json,
    print_paths,
    reading_input,
    verdict_of,
)
from fieldwatch.cli.rules import rules_of_run
from fieldwatch.health import diagnose, examine, exit_code
from fieldwatch.monitor import read_post_mortems, state_of
from fieldwatch.record import Terminal, read_events, read_manifest


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Examine a run with the health rules of its pipeline, and list its crashes. The run is only read.

    Example: fieldwatch health runs/bunny --json

    Exit codes: 0 if nothing is worse than a note, 1 with warnings or errors, 3 if the run diverged, failed or was
    killed.
    """

    run: tyro.conf.Positional[Path]
    """Run folder."""
    json: bool = False
    """Print the findings as JSON."""
    format: Literal["text", "json", "github"] = "text"
    """Print the findings as text, as JSON (as --json does), or as annotations of GitHub Actions."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch health", arguments=arguments)
    if chosen.json and chosen.format == "github":
        raise BadInput("--json and --format github exclude each other: leave one of them out")
    with reading_input():
        read_manifest(chosen.run)
        diagnoses = diagnose(examine(chosen.run, rules_of_run(chosen.run)), read_events(chosen.run))
        # A crash may have ended the process before a rule could report anything.
        deaths = read_post_mortems(chosen.run)
    findings = [finding for each in diagnoses for finding in (each.cause, *each.consequences)]
    state = state_of(chosen.run)
    if chosen.format == "github":
        print_annotations(Terminal(), str(chosen.run), state, findings, deaths)
    elif chosen.json or chosen.format == "json":
        events = [finding.as_event() for finding in findings]
        facts = {"run": chosen.run, "state": state.word, "detail": state.detail, "resume": state.resume}
        print_json({**facts, "verdict": verdict_of(diagnoses), "findings": events, "post_mortems": deaths})
    else:
        console = Terminal()
        console.print(Text(f"{chosen.run}: {state}"), soft_wrap=True)
        print_findings(console, findings, broken=state.broken)
        for death in deaths:
            cause = f"{death.get('cause', 'unknown')} in step {death.get('step', '?')}"
            error = str(death.get("error", ""))
            # The last death's error is the state's, which stands above.
            cause += f": {error}" if error and error not in str(state) else ""
            console.print(Text(f"died of {cause} ({death['place']})"), soft_wrap=True)
            if "advice" in death:
                console.print(Text(f"-> {death['advice']}"), soft_wrap=True)
        look = closer_look(chosen.run, findings)
        if look:
            print_paths(console, look)
    return exit_code(findings, stopped=state.broken)
