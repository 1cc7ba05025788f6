"""``fieldwatch train normals``: from normal maps of several views to a watertight surface, poses optimised."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fieldwatch.cli.ending import BadInput, reading_input
from fieldwatch.cli.flags import dashed, preset_of
from fieldwatch.cli.front import Front, Job
from fieldwatch.cli.front_normals import NORMALS_FRONT
from fieldwatch.cli.new_run import new_run
from fieldwatch.cli.pmni import PmniSettings, read_pmni
from fieldwatch.cli.pmni_flags import in_our_words
from fieldwatch.cli.profiling import ProfileFlags, spelled_out
from fieldwatch.cli.supervise import WatchFlags
from fieldwatch.cli.training import EXTRA_SINKS, train_and_tell
from fieldwatch.pipelines.normals import PRESETS, NormalsConfig

BESIDE_CONF = "seeds"
"""Preset that a .conf file changes, unless another one is named: what the file does not say is as in the seeds."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train a surface on normal maps with masks and cameras; without --data, on a built-in object.

    Example: fieldwatch train normals --data diligent_mv/bear --preset cpu --out runs/bear

    Example: fieldwatch train normals --data my_object --preset poses --pose-start ring --ring-radius 4

    Example: fieldwatch train normals --conf config/diligent_bear.conf --obj-name bear

    Example: fieldwatch train normals --steps 2000 --stages "shape@0 mask=1 eikonal=0.1" "normals@10000+5000 normal=1
    mask=1 eikonal=0.1"

    --data is a folder with cameras_sphere.npz, normals and masks (DiLiGenT-MV, PMNI, SuperNormal), or with normals and
    COLMAP's sparse/0; `fieldwatch doctor --data FOLDER` checks it. Iterations in the settings are nominal, of --nominal
    ones: --steps alone makes the whole schedule shorter or longer. --conf reads PMNI's own files; flags beside it win,
    and what the file does not say is as in --preset (there: seeds). Then --out is the file's base_exp_dir, and the same
    command again continues the run.

    The run folder holds everything: run.json, journal.jsonl, events.jsonl, log.txt, tensorboard/, checkpoints/,
    meshes_validation/, normals/, depths/, poses/ and products/. Killed at any time, the same command (or `fieldwatch
    resume RUN`) continues it. Flags of the original script (--conf, --obj_name, --is_continue, --gpu 0) work.

    Exits with 0 (healthy), 1 (findings above a note), 2 (bad input), 3 (diverged or failed), 4 (--supervise gave up),
    128 + the signal after it was stopped by one and has saved: 130 ctrl-C, 143 SIGTERM.
    """

    config: NormalsConfig
    profile: ProfileFlags = field(default_factory=ProfileFlags)
    watch: WatchFlags = field(default_factory=WatchFlags)
    conf: Path | None = None
    """A .conf file of PMNI (HOCON). Every key is used, known to do nothing, or refused: see docs/migrate.md."""
    obj_name: str | None = None
    """What CASE_NAME in that file stands for."""
    out: Path | None = None
    """Run folder; default runs/normals/<time>. One that holds a run is continued if the config agrees."""
    preset: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(PRESETS) + "}")] = "default"
    """Where the other settings start from."""
    resume: Literal["auto", "never", "must"] = "auto"
    """Continue a run found in --out: auto (if there is one), must (there has to be one), never."""
    mirror: str = ""
    """Also copy every checkpoint to this URL (s3://..., file://...: any that fsspec knows); a lost run starts there."""
    csv: bool = False
    """Also write every value to RUN/metrics.csv."""
    wandb: bool = False
    """Also log to Weights & Biases (WANDB_MODE=offline needs no network)."""
    mlflow: bool = False
    """Also log to MLflow, into RUN/mlflow.db."""
    json: bool = False
    """Print the outcome as JSON at the end, and nothing else on standard output."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A command line, read.

    Attributes:
        arguments: what it says; its config is complete.
        preset: the settings that the config was derived from.
        conf: the .conf file that it names.
    """

    arguments: Arguments
    preset: NormalsConfig
    conf: PmniSettings | None

    @property
    def out(self) -> Path:
        """The run folder."""
        named = self.conf.out if self.conf else None
        return self.arguments.out or named or new_run("normals")

    @property
    def front(self) -> Front[NormalsConfig]:
        """The pipeline; it tells at the start what is to be known about the .conf file."""
        if self.conf is None:
            return NORMALS_FRONT
        notes = self.conf.notes

        def prepare(config: NormalsConfig) -> Job:
            job = NORMALS_FRONT.prepare(config)
            return replace(job, notes=(*notes, *job.notes))

        return replace(NORMALS_FRONT, prepare=prepare)


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = parse(arguments)
    words = chosen.arguments
    return train_and_tell(
        chosen.front,
        words.config,
        chosen.out,
        preset=chosen.preset,
        resume=words.resume,
        extra_sinks=[name for name in EXTRA_SINKS if getattr(words, name)],
        as_json=words.json,
        profile=words.profile.chosen(),
        hang_timeout=words.watch.timeout,
        mirror=words.mirror,
    )


def parse(arguments: Sequence[str]) -> Chosen:
    """Read a command line, and the .conf file that it names.

    Raises:
        BadInput: no such preset, a file that cannot be read, or a flag of the original script that means nothing here.
    """
    words = spelled_out(in_our_words(arguments))
    path = _given(words, "--conf")
    if path is not None and _given(words, "--preset") is None:
        words = ["--preset", BESIDE_CONF, *words]
    preset = preset_of(words, PRESETS)
    conf = None
    if path is not None:
        with reading_input():
            conf = read_pmni(Path(path), preset, object_name=_given(words, "--obj-name"))
    default = Arguments(config=conf.config if conf else preset, preset="default")
    chosen = tyro.cli(
        Arguments, prog="fieldwatch train normals", args=words, default=default, config=(tyro.conf.OmitArgPrefixes,)
    )
    if chosen.obj_name is not None and conf is None:
        raise BadInput(f"--obj-name {chosen.obj_name} names what CASE_NAME stands for in a file: give --conf FILE, too")
    return Chosen(arguments=chosen, preset=preset, conf=conf)


def _given(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag, the last one where it is given again."""
    value = None
    for i, word in enumerate(words):
        name, equals, rest = word.partition("=")
        if dashed(name) == flag:
            value = rest if equals else (words[i + 1] if i + 1 < len(words) else None)
    return value
