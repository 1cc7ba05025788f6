"""``fieldwatch resume RUN``: go on with a run as it was started."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from fieldwatch.base import printable
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import count, print_findings, print_json, print_paths, reading_input
from fieldwatch.cli.profiling import spelled_out
from fieldwatch.cli.quality import quality_of
from fieldwatch.cli.train_flags import ResumeFlags
from fieldwatch.cli.training import train_and_report
from fieldwatch.health import examine, training_exit_code
from fieldwatch.record import Terminal, read_history, read_manifest
from fieldwatch.registry import Pipeline, pipeline_of
from fieldwatch.run import ExternalTargets

SINK_FILES = {"csv": "metrics.csv", "wandb": "wandb", "mlflow": "mlflow.db"}
"""What each extra sink leaves in the folder of a run."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    words = spelled_out(arguments)
    chosen = read_flags(ResumeFlags, prog="fieldwatch resume", arguments=words)
    chosen.profile.chosen()  # refuses flags that exclude each other, also where the run is finished
    with reading_input():
        pipeline = pipeline_of(chosen.run)
        config = pipeline.stored_config(chosen.run)
        preset = pipeline.stored_preset(chosen.run)
        state = read_manifest(chosen.run).state
        check_resumable = pipeline.load("check_resumable")
        # A finished run needs nothing of what a resumed one does.
        if state != "finished" and check_resumable is not None:
            check_resumable(chosen.run, config)
    if state == "finished":
        return report_finished(pipeline, chosen.run, as_json=chosen.json, strict=chosen.strict)
    sinks, notes = sinks_of(chosen)
    for note in notes:
        Terminal(stderr=True).print(Text(printable(note, keep=""), "yellow"), soft_wrap=True)
    return train_and_report(
        pipeline,
        config,
        chosen.run,
        chosen,
        preset=preset,
        resume="must",
        sinks=sinks,
    )


def sinks_of(chosen: ResumeFlags) -> tuple[list[str], list[str]]:
    """Return the extra sinks of a resumed run, and lines about the others that the folder suggests and the mirror.

    On are those that a flag names, and those that this user started the run with: not what a folder from elsewhere
    names or contains.
    """
    with reading_input():
        stored = ExternalTargets.stored(chosen.run)
    # A folder from elsewhere must not make this machine send data anywhere.
    wanted = [name for name in SINK_FILES if getattr(chosen, name) or (stored.trusted and name in stored.sinks)]
    notes = [
        f"{chosen.run} suggests the sink {name}, which you did not choose on this machine: it stays off; --{name} "
        "turns it on"
        for name, trace in SINK_FILES.items()
        if name not in wanted and (name in stored.sinks or (chosen.run / trace).exists())
    ]
    if stored.trusted and stored.mirror and not chosen.mirror:
        notes.append(f"every checkpoint is copied to the mirror {stored.mirror}")
    return wanted, notes


def report_finished(pipeline: Pipeline, folder: Path, *, as_json: bool, strict: bool) -> int:
    """Say that there is nothing to do, how good the run was, and what the rules find in it.

    Returns:
        0, or 1 with an error among the findings (with ``strict`` also with a warning).
    """
    with reading_input():
        findings = examine(folder, pipeline.load("rules"))
        metrics = last_metrics(folder, pipeline.measured)
    code = training_exit_code(findings, strict=strict)
    if as_json:
        found = [finding.as_event() for finding in findings]
        about = {"run": folder, "exit_code": code, "metrics": metrics, "counted": count(findings)}
        print_json({**about, "findings": found})
        return code
    console = Terminal()
    console.print(
        f"{folder} is finished: there is nothing to resume. For more steps, train with {pipeline.longer} into a new "
        "run."
    )
    if metrics:
        console.print(quality_of(pipeline, metrics))
    print_findings(console, findings)
    print_paths(console, {"run folder": folder.absolute(), "log": folder.absolute() / "log.txt"})
    return code


def last_metrics(folder: Path, beginnings: tuple[str, ...]) -> Mapping[str, float]:
    """The last recorded value of every tag that begins in one of these ways."""
    history = read_history(folder)
    return {name: float(history[name].values[-1]) for name in history.names() if name.startswith(beginnings)}
