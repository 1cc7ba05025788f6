"""``fieldwatch resume RUN``: continue a run with its stored config."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from fieldwatch.base import printable
from fieldwatch.checkpoint import Checkpoints, CheckpointSelector
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.open_run import which_checkpoint
from fieldwatch.cli.output import closer_look, count, print_findings, print_json, print_paths, reading_input
from fieldwatch.cli.profiling import spelled_out
from fieldwatch.cli.quality import quality_of
from fieldwatch.cli.train_flags import EXTRA_SINKS, ResumeFlags
from fieldwatch.cli.training import train_and_report
from fieldwatch.health import examine, training_exit_code
from fieldwatch.record import CHECKPOINTS, Terminal, read_history, read_manifest
from fieldwatch.registry import Pipeline, pipeline_of
from fieldwatch.run import ExternalTargets, stored_log_interval


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    # --profile-tensors may stand without a number, which tyro cannot parse.
    words = spelled_out(arguments)
    chosen = read_flags(ResumeFlags, prog="fieldwatch resume", arguments=words)
    # Refuses flags that exclude each other, also if the run is finished.
    chosen.profile.chosen()
    which = which_checkpoint(chosen.checkpoint)
    with reading_input():
        pipeline = pipeline_of(chosen.run)
        config = pipeline.stored_config(chosen.run)
        preset = pipeline.stored_preset(chosen.run)
        # First, because it also checks that the step exists.
        finished = is_newest(chosen.run, which) and read_manifest(chosen.run).state == "finished"
        check_resumable = pipeline.load("check_resumable")
        # A finished run is only read: its inputs may be gone.
        if not finished and check_resumable is not None:
            check_resumable(chosen.run, config)
    if finished:
        return report_finished(pipeline, chosen.run, as_json=chosen.json, strict=chosen.strict)
    if chosen.log_every is None:
        chosen = replace(chosen, log_every=stored_log_interval(chosen.run))
    sinks, notes = sinks_of(chosen)
    for note in notes:
        Terminal(stderr=True).print(Text(printable(note, keep=""), "yellow"), soft_wrap=True)
    return train_and_report(
        pipeline,
        config,
        chosen.run,
        chosen,
        preset=preset,
        # A folder without a checkpoint must fail instead of starting at step 0.
        resume="must",
        resume_from=which,
        sinks=sinks,
    )


def is_newest(folder: Path, which: CheckpointSelector) -> bool:
    """Return whether a checkpoint is the newest of a run, from which a finished run has nothing left to train.

    Raises:
        CheckpointError: a step is given that has no checkpoint; the message lists those that have one.
    """
    if isinstance(which, str):
        return which == "last"
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    return checkpoints.find(which).step == max(checkpoints.steps())


def sinks_of(chosen: ResumeFlags) -> tuple[list[str], list[str]]:
    """Return the extra sinks of a resumed run, and notes about the mirror and about sinks that stay off.

    A sink is on if a flag names it, or if this user started the run with it. A folder that was copied from elsewhere
    cannot turn one on.
    """
    with reading_input():
        stored = ExternalTargets.stored(chosen.run)
    # Security: a folder from elsewhere must not make this machine send data to a server.
    enabled = [name for name in EXTRA_SINKS if getattr(chosen, name) or (stored.trusted and name in stored.sinks)]
    notes = [
        f"{chosen.run} names the sink {name}, which was not chosen on this machine: it stays off; enable it with "
        f"--{name}"
        for name, sink in EXTRA_SINKS.items()
        if name not in enabled and (name in stored.sinks or (chosen.run / sink.path).exists())
    ]
    if stored.trusted and stored.mirror and not chosen.mirror:
        notes.append(f"every checkpoint is copied to the mirror {stored.mirror}")
    return enabled, notes


def report_finished(pipeline: Pipeline, folder: Path, *, as_json: bool, strict: bool) -> int:
    """Print quality and findings of a finished run.

    Returns:
        0, or 1 if there is an error among the findings (with ``strict`` also a warning).
    """
    with reading_input():
        findings = examine(folder, pipeline.load("rules"))
        metrics = last_metrics(folder, pipeline.measured)
    code = training_exit_code(findings, strict=strict)
    if as_json:
        events = [finding.as_event() for finding in findings]
        about = {"run": folder, "exit_code": code, "metrics": metrics, "counted": count(findings)}
        print_json({**about, "findings": events})
        return code
    console = Terminal()
    console.print(
        f"{folder} is finished: there is nothing to resume. To train for more steps, start a new run with a larger "
        f"{pipeline.longer}; to repeat its last part, resume it from an earlier step with --checkpoint."
    )
    if metrics:
        console.print(quality_of(pipeline, metrics))
    print_findings(console, findings)
    paths: dict[str, str | Path] = {"run folder": folder.absolute(), "log": folder.absolute() / "log.txt"}
    print_paths(console, paths | closer_look(folder, findings))
    return code


def last_metrics(folder: Path, beginnings: tuple[str, ...]) -> Mapping[str, float]:
    """Return the last recorded value of every tag that starts with one of the prefixes."""
    history = read_history(folder)
    return {name: float(history[name].values[-1]) for name in history.names() if name.startswith(beginnings)}
