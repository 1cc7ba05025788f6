"""``fieldwatch resume RUN``: go on with a run as it was started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.console import Console

from fieldwatch.cli.ending import print_findings, print_json, print_places, reading_input
from fieldwatch.cli.profiling import ProfileFlags, spelled_out
from fieldwatch.cli.training import quality_table, train_and_tell
from fieldwatch.health import VIDEO, examine, exit_code
from fieldwatch.pipelines.video import check_teacher, stored_config, stored_preset
from fieldwatch.record import read_history, read_manifest

TRACES = {"csv": "metrics.csv", "wandb": "wandb", "mlflow": "mlflow.db"}
"""What each extra sink left in the folder of a run that was started with it."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Continue a run that was interrupted, killed or crashed: same config, same data order, same random numbers.

    Example: fieldwatch resume runs/bunny

    Everything is taken from the run folder. A run that is finished is left alone: its findings are shown again.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    profile: ProfileFlags = field(default_factory=ProfileFlags)
    json: bool = False
    """Print the outcome as JSON at the end, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    words = spelled_out(arguments)
    chosen = tyro.cli(Arguments, prog="fieldwatch resume", args=words, config=(tyro.conf.OmitArgPrefixes,))
    profile = chosen.profile.chosen()
    with reading_input():
        config, preset = stored_config(chosen.run), stored_preset(chosen.run)
        state = read_manifest(chosen.run).state
        if state != "finished":
            check_teacher(chosen.run, config)
    if state == "finished":
        return tell_finished(chosen.run, as_json=chosen.json)
    extra = [name for name, trace in TRACES.items() if (chosen.run / trace).exists()]
    return train_and_tell(
        config, chosen.run, preset=preset, resume="must", extra_sinks=extra, as_json=chosen.json, profile=profile
    )


def tell_finished(folder: Path, *, as_json: bool) -> int:
    """Say that there is nothing to do, how good the run was, and what the rules find in it.

    Returns:
        0 without findings above a note, else 1.
    """
    with reading_input():
        findings, metrics = examine(folder, VIDEO), last_metrics(folder)
    if as_json:
        found = [finding.as_event() for finding in findings]
        print_json({"run": folder, "exit_code": exit_code(findings), "metrics": metrics, "findings": found})
        return exit_code(findings)
    console = Console()
    console.print(
        f"{folder} is finished: there is nothing to resume. For more steps, train with --epochs into a new run."
    )
    console.print(quality_table(metrics))
    print_findings(console, findings)
    print_places(console, {"run folder": folder.absolute(), "log": folder.absolute() / "log.txt"})
    return exit_code(findings)


def last_metrics(folder: Path) -> Mapping[str, float]:
    """The last recorded value of every evaluation tag and reference."""
    history = read_history(folder)
    names = [name for name in history.names() if name.startswith(("Eval/", "Reference/"))]
    return {name: float(history[name].values[-1]) for name in names}
