"""Flags of the commands that train; importing them needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import tyro

from fieldwatch.base import output_path
from fieldwatch.cli.flag_help import FlagGroups, read_flags
from fieldwatch.cli.flags import preset_of, with_current_preset
from fieldwatch.cli.new_run import new_run
from fieldwatch.cli.output import BadInput
from fieldwatch.cli.profiling import ProfileFlags, spelled_out
from fieldwatch.cli.supervise import WatchFlags
from fieldwatch.registry import CommandLine, Pipeline, find_pipeline, resolve

if TYPE_CHECKING:
    from fieldwatch.record import Sink

DATA: Final = "data and output"
METHOD: Final = "method and quality"
LENGTH: Final = "run length and evaluation"
SAVING: Final = "saving and resuming"
MACHINE: Final = "machine"
RECORDS: Final = "records and exit code"


_ABOUT_RUNS = """
The run folder holds the record (run.json, journal.jsonl, events.jsonl, log.txt, tensorboard/), checkpoints/ and
products/. After a kill or a crash, the same command (or `fieldwatch resume RUN`) continues the run.

Exit codes: 0 finished; 1 finished with an error among the findings (with --strict, or a warning); 2 bad input;
3 diverged or failed; 4 --supervise gave up; 128 + the signal if one stopped it after saving (130 ctrl-C, 143 SIGTERM).
"""


@dataclass(frozen=True, kw_only=True)
class ExtraSink:
    """A sink that a flag of its name adds to the default ones.

    Attributes:
        path: file or folder that it writes, in the run folder.
        kind: reference to its class; `--help` needs no sink, and their modules import numpy.
        scheme: scheme of the URL that the class takes instead of a path; empty if it takes the path.
    """

    path: str
    kind: str
    scheme: str = ""

    def of_run(self, folder: Path) -> "Sink":
        """Return the sink of a run."""
        path = output_path(folder, self.path)
        return resolve(self.kind)(f"{self.scheme}{path.absolute()}" if self.scheme else path)


# A new sink needs an entry here and a switch of that name below; `NewRunFlags.main_flags` has those that many want.
EXTRA_SINKS: Final[Mapping[str, ExtraSink]] = {
    "csv": ExtraSink(path="metrics.csv", kind="fieldwatch.record.sinks:Csv"),
    "wandb": ExtraSink(path="wandb", kind="fieldwatch.record.sinks:Wandb"),
    "mlflow": ExtraSink(path="mlflow.db", kind="fieldwatch.record.sinks:MLflow", scheme="sqlite:///"),
    "trackio": ExtraSink(path="trackio", kind="fieldwatch.record.sinks:Trackio"),
}
"""Sinks that flags add to the default ones, by name."""


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """Flags of every command that trains, `fieldwatch resume` included."""

    profile: ProfileFlags = field(default_factory=ProfileFlags)
    watch: WatchFlags = field(default_factory=WatchFlags)
    mirror: str = ""
    """Also copy every checkpoint to this URL (s3://..., file://...: any that fsspec knows); a lost run starts there."""
    replay_within: str = ""
    """Keep checkpoints from which `fieldwatch replay` reaches every step within this time of training: 90s, 10m, 1h."""
    csv: bool = False
    """Also write every value to RUN/metrics.csv."""
    wandb: bool = False
    """Also log to Weights & Biases (WANDB_MODE=offline needs no network)."""
    mlflow: bool = False
    """Also log to MLflow, into RUN/mlflow.db."""
    trackio: bool = False
    """Also log to Trackio, into RUN/trackio (or the folder TRACKIO_DIR)."""
    log_every: int | None = None
    """Steps between two summary lines of RUN/log.txt: by default 100, or what the resumed run was started with."""
    viewer: bool = False
    """Show the model in a browser (extra viewer)."""
    viewer_port: int = 8080
    """Port of --viewer; from another machine: ssh -L 8080:localhost:8080 MACHINE."""
    strict: bool = False
    """Exit with 1 for warnings, too."""
    json: bool = False
    """Print the outcome as JSON at the end, and nothing else on standard output."""

    def __post_init__(self) -> None:
        """Check the interval of the log.

        Raises:
            BadInput: it is less than 1.
        """
        if self.log_every is not None and self.log_every < 1:
            raise BadInput(f"--log-every must be at least 1 step, got {self.log_every}")


@dataclass(frozen=True, kw_only=True)
class NewRunFlags(TrainingFlags):
    """Flags of every command that starts a run."""

    main_flags: ClassVar[FlagGroups] = {
        DATA: ("out", "preset", "doctor"),
        SAVING: ("resume",),
        MACHINE: ("supervise",),
        RECORDS: ("viewer", "profile_tensors", "wandb", "mlflow", "strict", "json"),
    }

    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Run folder; by default runs/PIPELINE/<time>. A run that is already there is continued if the config agrees."""
    preset: str = "default"
    """Settings from which the other flags start."""
    doctor: bool = True
    """Check the data before the first step, as `fieldwatch doctor --data` does: what cannot train is refused, what is
    doubtful is recorded."""
    resume: Literal["auto", "never", "must", "start-over"] = "auto"
    """Whether to continue a run found in --out: auto (if there is one), must (fail if there is none), never, or
    start-over (move its checkpoints and results aside and begin at step 0; the settings may differ)."""


@dataclass(frozen=True, kw_only=True)
class ResumeFlags(TrainingFlags):
    """Continue a run that was interrupted, killed or crashed: same config, same data order, same random numbers.

    Example: fieldwatch resume runs/bunny

    Example: fieldwatch resume runs/bunny --checkpoint 4000

    Everything is taken from the run folder, also the mirror, --csv, --wandb, --mlflow and --trackio if you chose them
    when you started the run. A finished run is not changed, and its findings are printed again, unless --checkpoint
    names an earlier step than its last.

    Exit codes are those of `fieldwatch train`: 0 finished; 1 finished with an error among the findings (with --strict,
    or a warning); 2 bad input; 3 diverged or failed.
    """

    run: tyro.conf.Positional[Path]
    """Run folder."""
    checkpoint: str = "last"
    """Checkpoint to continue from: last, best (by the metric of the run), or a step. Later checkpoints are renamed to
    abandoned-..., and later rows of the record become void; nothing is deleted. It acts each time: leave it out to
    continue from the newest checkpoint again."""


@dataclass(frozen=True, kw_only=True)
class TrainManyFlags:
    """Train many scenes, each in its own run folder and process, with retries from the last checkpoint.

    Example: fieldwatch train-many examples/scenes.toml

    Example: fieldwatch train-many scenes.toml --ray 10.0.0.1:6379 --out /shared/runs/city

    The file has one [[scene]] table per scene: name, pipeline, any flag of `fieldwatch train PIPELINE` as key = value,
    and cpus, gpus, memory (GiB), retries, timeout (s), env. [defaults] and [defaults.PIPELINE] apply to all scenes.
    Everything is checked before anything starts. On Ctrl-C or SIGTERM all scenes save and stop; the same command
    continues them.

    Runs are written to OUT/SCENE. OUT/report.html, summary.json and summary.csv compare them; OUT/console holds their
    output, OUT/many.jsonl the events. Exit codes: 0 all finished (warnings are printed); 1 some with an error among
    their findings (with --strict, or a warning); 3 some failed; 130 stopped.
    """

    plan: tyro.conf.Positional[Path]
    """TOML file of the scenes."""
    out: Path | None = None
    """Folder of all runs; by default runs/many/<name of the file>. Scenes finished there are not trained again."""
    ray: str = "local"
    """local (Ray on this machine), ADDRESS (a Ray cluster that sees the same files), or off (plain processes)."""
    cpus: int | None = None
    """Processors to use on this machine; by default all."""
    grace: float = 120.0
    """Seconds that a process has for saving when it is stopped."""
    dry_run: bool = False
    """Check everything, print the plan, and start nothing."""
    strict: bool = False
    """Exit with 1 for warnings, too."""
    json: bool = False
    """Print the outcome as JSON at the end, and nothing else on standard output."""


def preset_choice(presets: Sequence[str], default: str = "default") -> tuple[str, Any, Any]:
    """Return the field ``preset`` for a class of flags, with the names of the presets as its choices."""
    return "preset", Literal[tuple(presets)], field(default=default)  # pyright: ignore[reportInvalidTypeForm]  the names are known when it runs


def merged_groups(*parts: Mapping[str, Sequence[str]]) -> FlagGroups:
    """Return groups of main flags with the flags of all parts, in the order in which they are given."""
    merged: dict[str, tuple[str, ...]] = {}
    for part in parts:
        for title, names in part.items():
            merged[title] = (*merged.get(title, ()), *names)
    return merged


@dataclass(frozen=True, kw_only=True)
class ParsedCommand:
    """A parsed command line.

    Attributes:
        pipeline: pipeline that trains.
        flags: `NewRunFlags` with the config in ``config``, and additional flags of the pipeline, if any, in ``more``.
        preset: config from which ``config`` was derived.
        line: translation of the words by the pipeline.
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
            BadInput: several processes train together, and no folder is given.
        """
        return self.flags.out or self.line.out or new_run(self.pipeline.name)


def parse(pipeline: Pipeline, arguments: Sequence[str]) -> ParsedCommand:
    """Read the words after ``fieldwatch train NAME``.

    Raises:
        BadInput: there is no such preset, or a flag is not available.
    """
    translate = pipeline.load("command_line")
    arguments = with_current_preset(arguments, pipeline.former_presets)
    line = translate(arguments) if translate else CommandLine(arguments=arguments)
    words = spelled_out(line.arguments)
    # The preset is read before the flags: it supplies their defaults.
    preset = preset_of(words, pipeline.load_presets())
    kind = flags_class(pipeline, line.config or preset)
    flags = read_flags(kind, prog=f"fieldwatch train {pipeline.name}", arguments=words)
    return ParsedCommand(pipeline=pipeline, flags=flags, preset=preset, line=line)


def flags_of_words(name: str, arguments: Sequence[str]) -> type[NewRunFlags]:
    """Return the class of all flags of ``fieldwatch train NAME``, with the defaults of the preset that is named.

    Raises:
        BadInput: there is no such preset.
        PipelineError: the pipeline's package cannot be used.
    """
    pipeline = find_pipeline(name)
    words = with_current_preset(arguments, pipeline.former_presets)
    return flags_class(pipeline, preset_of(words, pipeline.load_presets()))


def flags_class(pipeline: Pipeline, config: Any) -> type[NewRunFlags]:
    """Return the class of all flags of a training.

    Args:
        pipeline: the pipeline, whose settings and further flags become flags.
        config: settings with the defaults.
    """
    flags: list[tuple[str, Any, Any]] = [
        ("config", pipeline.load("config"), field(default_factory=lambda: config)),
        preset_choice(tuple(pipeline.load_presets())),
    ]
    more = pipeline.load("flags")
    if more is not None:
        flags.append(("more", more, field(default_factory=more)))
    content: dict[str, Any] = {"__doc__": f"{pipeline.help or pipeline.about}\n{_ABOUT_RUNS}"}
    # A pipeline that names no main flags has all of its settings in the short help.
    main = pipeline.main_flags or {METHOD: tuple(each.name for each in fields(pipeline.load("config")))}
    content["main_flags"] = merged_groups({DATA: ()}, main, NewRunFlags.main_flags)
    return make_dataclass("Flags", flags, bases=(NewRunFlags,), frozen=True, kw_only=True, namespace=content)
