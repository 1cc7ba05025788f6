"""``fieldwatch resume RUN``: go on with a run as it was started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from fieldwatch.cli.ending import print_findings, print_json, print_places, reading_input
from fieldwatch.cli.front import Front
from fieldwatch.cli.fronts import front_of
from fieldwatch.cli.pipeline import rules_of
from fieldwatch.cli.profiling import ProfileFlags, spelled_out
from fieldwatch.cli.supervise import WatchFlags
from fieldwatch.cli.training import train_and_tell
from fieldwatch.health import examine, exit_code
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
    watch: WatchFlags = field(default_factory=WatchFlags)
    json: bool = False
    """Print the outcome as JSON at the end, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    words = spelled_out(arguments)
    chosen = tyro.cli(Arguments, prog="fieldwatch resume", args=words, config=(tyro.conf.OmitArgPrefixes,))
    profile = chosen.profile.chosen()
    front = front_of(chosen.run)
    with reading_input():
        config, preset = front.stored_config(chosen.run), front.stored_preset(chosen.run)
        state = read_manifest(chosen.run).state
        if state != "finished":
            front.check_resumable(chosen.run, config)
    if state == "finished":
        return tell_finished(front, chosen.run, as_json=chosen.json)
    return train_and_tell(
        front,
        config,
        chosen.run,
        preset=preset,
        resume="must",
        extra_sinks=[name for name, trace in TRACES.items() if (chosen.run / trace).exists()],
        as_json=chosen.json,
        profile=profile,
        hang_timeout=chosen.watch.timeout,
    )


def tell_finished(front: Front[Any], folder: Path, *, as_json: bool) -> int:
    """Say that there is nothing to do, how good the run was, and what the rules find in it.

    Returns:
        0 without findings above a note, else 1.
    """
    with reading_input():
        findings, metrics = examine(folder, rules_of(front.name)), last_metrics(folder, front.measured)
    if as_json:
        found = [finding.as_event() for finding in findings]
        print_json({"run": folder, "exit_code": exit_code(findings), "metrics": metrics, "findings": found})
        return exit_code(findings)
    console = Console()
    console.print(
        f"{folder} is finished: there is nothing to resume. For more steps, train with {front.longer} into a new run."
    )
    if metrics:
        console.print(front.quality(metrics))
    print_findings(console, findings)
    print_places(console, {"run folder": folder.absolute(), "log": folder.absolute() / "log.txt"})
    return exit_code(findings)


def last_metrics(folder: Path, beginnings: tuple[str, ...]) -> Mapping[str, float]:
    """The last recorded value of every tag that begins in one of these ways."""
    history = read_history(folder)
    return {name: float(history[name].values[-1]) for name in history.names() if name.startswith(beginnings)}
