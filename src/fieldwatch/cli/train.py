"""``fieldwatch train NAME``: the one training command, with the settings of an installed pipeline as its flags."""

from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fieldwatch.cli.flags import preset_of
from fieldwatch.cli.new_run import new_run
from fieldwatch.cli.profiling import ProfileFlags, spelled_out
from fieldwatch.cli.supervise import WatchFlags
from fieldwatch.cli.training import EXTRA_SINKS, train_and_tell
from fieldwatch.registry import CommandLine, Pipeline, find_pipeline

_EXIT_CODES = """
The run folder holds everything: run.json, journal.jsonl, events.jsonl, log.txt, tensorboard/, checkpoints/, products/.
Killed at any time, the same command (or `fieldwatch resume RUN`) continues it.

Exits with 0 (finished; warnings are printed), 1 (finished with an error among the findings, or with a warning and
--strict), 2 (bad input), 3 (diverged or failed), 4 (--supervise gave up), 128 + the signal after it was stopped by
one and has saved: 130 ctrl-C, 143 SIGTERM.
"""


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Flags that every training has.

    The pipeline's class of settings takes the place of ``config``, and its names of presets that of ``preset``.
    """

    config: Any = None
    profile: ProfileFlags = field(default_factory=ProfileFlags)
    watch: WatchFlags = field(default_factory=WatchFlags)
    out: Path | None = None
    """Run folder; default runs/PIPELINE/<time>. One that holds a run is continued if the config agrees."""
    preset: str = "default"
    resume: Literal["auto", "never", "must", "start-over"] = "auto"
    """Continue a run found in --out: auto (if there is one), must (there has to be one), never; start-over moves its
    checkpoints aside and begins at step 0."""
    mirror: str = ""
    """Also copy every checkpoint to this URL (s3://..., file://...: any that fsspec knows); a lost run starts there."""
    csv: bool = False
    """Also write every value to RUN/metrics.csv."""
    wandb: bool = False
    """Also log to Weights & Biases (WANDB_MODE=offline needs no network)."""
    mlflow: bool = False
    """Also log to MLflow, into RUN/mlflow.db."""
    strict: bool = False
    """Exit with 1 for warnings, too."""
    json: bool = False
    """Print the outcome as JSON at the end, and nothing else on standard output."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A command line, read.

    Attributes:
        pipeline: the one that trains.
        flags: a `TrainFlags` with the pipeline's settings in ``config``, and its further flags, if any, in ``more``.
        preset: the settings that ``config`` was derived from.
        line: what the pipeline made of the words.
    """

    pipeline: Pipeline
    flags: Any
    preset: Any
    line: CommandLine

    @property
    def config(self) -> Any:
        """The settings of the training."""
        return self.flags.config

    @property
    def out(self) -> Path:
        """The run folder.

        Raises:
            BadInput: several processes train, and none is named.
        """
        return self.flags.out or self.line.out or new_run(self.pipeline.name)


def run(name: str, arguments: Sequence[str]) -> int:
    """Train with an installed pipeline.

    Raises:
        InputError: the pipeline is not installed, or the command line or the input cannot be used.
        PipelineError: the pipeline's package cannot be used.
    """
    pipeline = find_pipeline(name)
    chosen = parse(pipeline, arguments)
    flags = chosen.flags
    return train_and_tell(
        pipeline,
        chosen.config,
        chosen.out,
        preset=chosen.preset,
        resume=flags.resume,
        extra_sinks=[sink for sink in EXTRA_SINKS if getattr(flags, sink)],
        as_json=flags.json,
        profile=flags.profile.chosen(),
        hang_timeout=flags.watch.timeout,
        mirror=flags.mirror,
        strict=flags.strict,
        notes=chosen.line.notes,
    )


def parse(pipeline: Pipeline, arguments: Sequence[str]) -> Chosen:
    """Read the words after ``fieldwatch train NAME``.

    Raises:
        BadInput: there is no such preset, or a flag means nothing here.
    """
    translate = pipeline.load("command_line")
    line = translate(arguments) if translate else CommandLine(arguments=arguments)
    words = spelled_out(line.arguments)
    presets = pipeline.load_presets()
    preset = preset_of(words, presets)
    flags = tyro.cli(
        _flags_of(pipeline, line.config or preset, tuple(presets)),
        prog=f"fieldwatch train {pipeline.name}",
        args=words,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return Chosen(pipeline=pipeline, flags=flags, preset=preset, line=line)


def _flags_of(pipeline: Pipeline, config: Any, presets: Sequence[str]) -> type[TrainFlags]:
    """Return the class of all flags: settings that begin as ``config``, what every training has, further flags."""
    about_preset = tyro.conf.arg(metavar="{" + ",".join(presets) + "}", help="Where the other settings start from.")
    own: list[tuple[str, Any, Any]] = [
        ("config", pipeline.load("config"), field(default_factory=lambda: config)),
        ("preset", Annotated[str, about_preset], field(default="default")),
    ]
    more = pipeline.load("flags")
    if more is not None:
        own.append(("more", more, field(default_factory=more)))
    text = f"{pipeline.help or pipeline.about}\n{_EXIT_CODES}"
    return make_dataclass("Flags", own, bases=(TrainFlags,), frozen=True, kw_only=True, namespace={"__doc__": text})
